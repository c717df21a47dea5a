"""Files, checkpoints, devices, seeds, signals and progress: independent of the algorithm."""
