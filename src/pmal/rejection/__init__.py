"""Unknown scores and calibrated thresholds."""
