"""Pixels and labels in: sources, protocols (splits), augmentation, batches."""
