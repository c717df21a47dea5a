"""Readers of the official files of data sets that are known by name."""
