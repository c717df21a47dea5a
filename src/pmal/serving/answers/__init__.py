"""From files to answers: what `pmal predict` prints about each image or row."""
