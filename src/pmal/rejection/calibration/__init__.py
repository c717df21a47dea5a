"""Scores of held-out known images, and the thresholds that follow from them."""
