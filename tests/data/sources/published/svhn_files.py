"""SVHN's .mat files, written by scipy in the shapes that the authors publish."""

from pathlib import Path

import numpy as np
from scipy.io import savemat


def write_part(path: Path, count: int, **changed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(count)
    images = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
    labels = (np.arange(count, dtype=np.uint8) % 10 + 1)[:, np.newaxis]
    content = {"X": images, "y": labels, **changed}
    savemat(path, {key: value for key, value in content.items() if value is not None}, do_compression=True)
    return images, labels


def write_svhn(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder / "train_32x32.mat", 23)
    write_part(folder / "test_32x32.mat", 12)
    return folder
