"""How unlike all training images an image is, and how that raises its score."""
