"""Files in, answers out: what `pmal predict` says of each image or row."""
