"""The colors of the report, as people see them who cannot tell red from green."""

import itertools
import re
from importlib import resources

import numpy as np
import pytest

STYLE = (resources.files("pmal.reporting.page") / "assets" / "style.css").read_text()
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
"""On linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = XYZ.sum(axis=1)


def seen(color):
    """Where a color lies in CIELAB for a deuteranope."""
    rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(XYZ @ np.clip(DEUTERANOPIA @ linear, 0, 1) / WHITE)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_classes_and_unknown_are_told_apart_without_red_and_green(theme):
    """Twelve units are seen at a glance; the green of the first palette was 6 from the gray of unknown."""
    found = re.findall(r"--(c\d|unknown): (#[0-9a-f]{6});", STYLE.split("@media screen")[theme])
    assert len(found) == 8
    for (one, a), (other, b) in itertools.combinations(found, 2):
        assert np.linalg.norm(seen(a) - seen(b)) > 12, (one, other)
