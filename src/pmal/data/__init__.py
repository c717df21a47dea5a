"""Reading pixels and labels: sources, protocols (splits), augmentation, batches."""
