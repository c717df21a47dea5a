"""Pure functions on embeddings: the paper's distance, and what all distances reveal about a sample."""
