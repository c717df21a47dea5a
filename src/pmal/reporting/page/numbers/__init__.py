"""What the sections of the report show, as numbers."""
