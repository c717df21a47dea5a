"""Hypothesis draws new examples for developers, and the same ones in CI, where red must mean the change."""

import os

from hypothesis import settings

settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
