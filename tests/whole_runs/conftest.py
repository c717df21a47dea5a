"""What several whole runs take for granted."""

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three colors, twenty images each, in the folder that the commands run in."""
    random = np.random.default_rng(0)
    for name, color in (("blue", (40, 40, 200)), ("green", (40, 200, 40)), ("red", (200, 40, 40))):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(20):
            pixels = np.array(color) + random.integers(-40, 40, (66, 80, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "images" / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path
