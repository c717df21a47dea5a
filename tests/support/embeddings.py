"""Small files of embeddings that are easy to tell apart."""

import numpy as np

from pmal.data.decoding.decode import encode_png

CLASSES = ("cat", "dog", "owl", "fox")
WIDTH = 16
CENTERS = np.random.default_rng(0).normal(scale=3.0, size=(len(CLASSES), WIDTH))


def rows(count, seed=1):
    """Embeddings float32, and the names of their classes in turn."""
    labels = np.arange(count) % len(CLASSES)
    noise = np.random.default_rng(seed).normal(size=(count, WIDTH))
    return (CENTERS[labels] + noise).astype(np.float32), np.array(CLASSES)[labels]


def write_rows(path, count=240, **more):
    """An .npz with labels, and what else is given."""
    embeddings, labels = rows(count)
    np.savez(path, **({"embeddings": embeddings, "labels": labels} | more))
    return path


def write_pictures(folder, count, readable=None):
    """Image files of which some may be missing; their paths from the folder."""
    (folder / "img").mkdir(parents=True)
    for i in range(count if readable is None else readable):
        (folder / "img" / f"{i}.png").write_bytes(encode_png(np.full((12, 12, 3), i % 256, np.uint8)))
    return np.array([f"img/{i}.png" for i in range(count)])
