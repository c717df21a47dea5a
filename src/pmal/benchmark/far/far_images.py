"""Images that are nothing like training images, made from known ones or from random numbers.

They are the same in every run. B images of C channels.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

_ROWS = 256
"""Number of images that are converted to floats at a time."""
_SHARE = 4
"""Patches in a row. The square of a blur is one patch wide."""


def noise(images: Tensor) -> Tensor:
    """Return images whose values are drawn from 0 to 255."""
    return torch.randint(0, 256, images.shape, generator=_generator(), dtype=torch.uint8)


def constant(images: Tensor) -> Tensor:
    """Return images of one color each: every gray, or as many random colors as there are images."""
    count, channels, height, width = images.shape
    if channels == 1:
        colors = torch.linspace(0, 255, min(count, 256)).round().byte()[:, None]
    else:
        colors = torch.randint(0, 256, (count, channels), generator=_generator(), dtype=torch.uint8)
    return colors[:, :, None, None].expand(-1, -1, height, width).contiguous()


def inverted(images: Tensor) -> Tensor:
    """Return the negatives of images."""
    return 255 - images


def shuffled_patches(images: Tensor) -> Tensor:
    """Return images whose 4 x 4 squares are in another order. Pixels beyond the last square stay."""
    count, channels, height, width = images.shape
    side, generator = min(height, width) // _SHARE, _generator()
    inner = images[:, :, : side * _SHARE, : side * _SHARE]
    squares = inner.reshape(count, channels, _SHARE, side, _SHARE, side).permute(0, 2, 4, 1, 3, 5)
    order = torch.stack([torch.randperm(_SHARE**2, generator=generator) for _ in range(count)])
    mixed = squares.flatten(1, 2)[torch.arange(count)[:, None], order]
    mixed = mixed.view(count, _SHARE, _SHARE, channels, side, side).permute(0, 3, 1, 4, 2, 5)
    found = images.clone()
    found[:, :, : side * _SHARE, : side * _SHARE] = mixed.reshape(inner.shape)
    return found


def blurred(images: Tensor) -> Tensor:
    """Return images whose pixels are means of a square around them, a quarter of the image wide."""
    side = min(images.shape[2:]) // _SHARE | 1
    parts = [avg_pool2d(part.float(), side, 1, side // 2).byte() for part in torch.split(images, _ROWS)]
    return torch.cat(parts)


MADE: dict[str, Callable[[Tensor], Tensor]] = {
    "noise": noise,
    "constant": constant,
    "inverted": inverted,
    "shuffled patches": shuffled_patches,
    "blurred": blurred,
}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
