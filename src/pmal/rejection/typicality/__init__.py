"""How unlike all training images an image is, and what that adds to its score."""
