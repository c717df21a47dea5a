"""The results of a run, in numbers and pictures."""
