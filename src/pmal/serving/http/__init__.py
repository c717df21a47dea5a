"""The service of `pmal serve`: app, batching, server and page."""
