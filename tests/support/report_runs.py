"""Small finished runs for the tests of the report."""

import numpy as np

from pmal import pipeline
from pmal.config import RunConfig, build, merge
from pmal.data.decoding.decode import encode_png

NAMES = ["<script>alert(1)<", '<!-- "x"', "owl & tit"]
UNKNOWN_NAME = "<b>'wolf'"
TINY = {
    "data": {"image_size": 12, "augmentation": "none", "held_out": 0.25},
    "encoder": {"name": "small"},
    "training": {"epochs": 2, "batch_size": 16},
    "mining": {"per_class": 3},
}


def write_photos(folder, per_class=40, contrast=150):
    """Classes that differ in where they are bright, named as nobody should name them."""
    random = np.random.default_rng(0)
    for k, name in enumerate([*NAMES, UNKNOWN_NAME]):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = random.integers(0, 90, (12, 12, 3), dtype=np.uint8)
            pixels[3 * k : 3 * k + 3, :, k % 3] += contrast
            (folder / name / f"{i:02d} <i>.png").write_bytes(encode_png(pixels))
    return folder


def photo_config(photos, **changes):
    known = {"source": str(photos), "known": NAMES}
    return build(RunConfig, merge(TINY, {"data": known}, changes))


def fit_photos(folder, contrast=150, **changes):
    """A run of method pmal on such photos, with one unknown class. Little contrast makes it err."""
    out = folder / "run"
    pipeline.fit(photo_config(write_photos(folder / "photos", contrast=contrast), **changes), out)
    return out
