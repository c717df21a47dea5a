"""Commands other than those of the main job, which are in `cli.py`. None imports torch at the start."""
