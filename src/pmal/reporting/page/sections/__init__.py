"""The sections of the report, as HTML."""
