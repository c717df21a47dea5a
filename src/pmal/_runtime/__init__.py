"""Knows nothing of the algorithm: files, checkpoints, devices, seeds, signals, progress."""
