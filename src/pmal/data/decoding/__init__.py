"""From encoded bytes to pixels of one size."""
