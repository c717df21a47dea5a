"""Readers of the data sets that are known by name, in their official files."""
