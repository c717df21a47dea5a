"""Images that have something in common."""

import numpy as np
import torch

CPU = torch.device("cpu")


def smooth_images(count, seed=0, size=12):
    """Blobs of any place and size: images that have something in common."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size]
    place, width = rng.uniform(3, size - 3, (2, count, 1, 1)), rng.uniform(1.5, 3, (count, 1, 1))
    blobs = 255 * np.exp(-((y - place[0]) ** 2 + (x - place[1]) ** 2) / (2 * width**2))
    return torch.from_numpy(blobs.astype(np.uint8))[:, None]
