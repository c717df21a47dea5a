"""The finished model in use: its bundle, answers about images, export and service."""
