"""The finished model at work: its bundle, answers about images, export and service."""
