"""Candidates of high quality, and a diverse few of them as each class's prototypes."""
