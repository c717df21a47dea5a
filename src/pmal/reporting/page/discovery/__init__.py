"""Groups of rejected images as people see and name them: a table, a contact sheet and a page."""
