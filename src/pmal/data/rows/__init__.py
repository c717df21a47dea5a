"""Files of embeddings of other models, and their contents."""
