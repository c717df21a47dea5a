"""Finished models tested on images of other sets and on artificial images."""
