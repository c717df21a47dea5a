"""Numbers that the sections of the report show."""
