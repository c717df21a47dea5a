"""Finished models against images of other sets and of none."""
