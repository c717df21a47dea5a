"""Embeddings of other models: files of them, and what stands in these."""
