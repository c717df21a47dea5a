"""Checks of `pmal data check`."""
