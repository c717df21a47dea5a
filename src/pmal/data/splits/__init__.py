"""Known and unknown classes: the published splits, and the parts of a run."""
