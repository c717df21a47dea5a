"""Decoding of encoded bytes to pixels of one size."""
