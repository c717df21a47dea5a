"""Frozen networks from pixels to features, used in front of an encoder of features."""
