"""Readers, one file per layout on disk: each turns a path into a `Source`."""
