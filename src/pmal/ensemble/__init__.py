"""U independently seeded classifiers, and their embeddings of the training set."""
