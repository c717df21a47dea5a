"""The commands that measure: benchmark, far and bench."""
