"""A data set: stripes in six directions."""

import numpy as np

import pmal

NAMES = tuple(f"{30 * k} degrees" for k in range(6))


def draw(count, seed):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % len(NAMES)
    y, x = np.mgrid[:16, :16] / 16
    angle = np.pi * labels[:, None, None] / len(NAMES) + random.normal(0, 0.05, (count, 1, 1))
    waves = np.sin(20 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6, (count, 1, 1)))
    pixels = 128 + 60 * waves + random.normal(0, 20, waves.shape)
    store = pmal.ArrayStore("stripes", pixels.clip(0, 255).astype(np.uint8)[..., None])
    return pmal.Samples.whole(store, labels, NAMES)


@pmal.register_source("stripes")
def open_stripes(data_root):
    """Stripes in six directions, 16 px gray."""
    return pmal.Source("stripes", train=draw(600, 0), test=draw(120, 1))
