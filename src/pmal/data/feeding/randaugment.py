"""RandAugment of whole batches (Cubuk et al., 2020), as in the public code that open-set papers use.

Every image gets one of 16 changes. Each is computed for all images and chosen by a mask, so that no shape
depends on values and a CUDA graph can capture a step. Pixels are whole numbers from 0 to 255 in float32, with
the rounding of Pillow, whose functions that code calls. Strengths go from 0 to 30.

B batch, C channels, H height, W width.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d

STRONGEST = 30
_HOLE = (125.0, 123.0, 114.0)
_LUMA = (19595.0, 38470.0, 7471.0)
"""The shares of red, green and blue in gray, in 65536ths."""
_SIDES = 5
"""Changes of geometry: rotation, two shears and two shifts."""


def randaugment(images_BCHW: Tensor, strength: int) -> Tensor:
    """Return uint8 images as floats in 0 to 255, each with one random change of this strength."""
    x = images_BCHW.float()
    batch, device, share = len(x), x.device, strength / STRONGEST
    changes: list[Callable[[Tensor], Tensor]] = [
        auto_contrast,
        equalize,
        lambda x: 255 - x,
        lambda x: posterize(x, max(1, int(4 * share))),
        lambda x: solarize(x, 256 * share),
        lambda x: solarize((x + 110 * share).clamp(max=255).floor(), 128),
        lambda x: blend(gray(x), x, 0.1 + 1.8 * share),
        lambda x: blend(mean_gray(x), x, 0.1 + 1.8 * share),
        lambda x: blend(torch.zeros_like(x), x, 0.1 + 1.8 * share),
        lambda x: blend(smooth(x), x, 0.1 + 1.8 * share),
        lambda x: hole(x, 40 * share, torch.rand(2, batch, device=device)),
    ]
    chosen = torch.randint(0, len(changes) + _SIDES, (batch, 1, 1, 1), device=device)
    sign_B = 1 - 2.0 * torch.randint(0, 2, (batch,), device=device)
    found = transform(x, matrices(chosen.flatten() - len(changes), sign_B * share, *x.shape[2:]))
    for i, change in enumerate(changes):
        found = torch.where(chosen == i, change(x), found)
    return found


def auto_contrast(x_BCHW: Tensor) -> Tensor:
    """Stretch every channel to 0 to 255; a channel of one value stays."""
    low, high = x_BCHW.amin((2, 3), keepdim=True), x_BCHW.amax((2, 3), keepdim=True)
    # In float64, and not by the reciprocal, which a number divided by a tensor is: else pixels are one off.
    span = (high - low).clamp(min=1).double()
    scale = torch.full_like(span, 255) / span
    stretched = (x_BCHW * scale - low * scale).floor().clamp(0, 255)
    return torch.where(high > low, stretched.float(), x_BCHW)


def equalize(x_BCHW: Tensor) -> Tensor:
    """Spread the values of every channel such that each is as frequent as another."""
    flat = x_BCHW.flatten(2).long()
    count = torch.zeros(*flat.shape[:2], 256, dtype=torch.int64, device=flat.device)
    count = count.scatter_add(2, flat, torch.ones_like(flat))
    last = count.gather(2, flat.amax(dim=2, keepdim=True))
    step = (flat.shape[2] - last) // 255
    before = count.cumsum(dim=2) - count
    table = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=flat.device))
    spread: Tensor = table.gather(2, flat).view_as(x_BCHW).to(x_BCHW.dtype)
    return spread


def posterize(x_BCHW: Tensor, bits: int) -> Tensor:
    """Keep so many bits of every pixel."""
    step = 2 ** (8 - bits)
    kept: Tensor = (x_BCHW / step).floor() * step
    return kept


def solarize(x_BCHW: Tensor, threshold: float) -> Tensor:
    """Invert the pixels from a threshold on."""
    return torch.where(x_BCHW < threshold, x_BCHW, 255 - x_BCHW)


def gray(x_BCHW: Tensor) -> Tensor:
    """Return the brightness in all channels."""
    if x_BCHW.shape[1] != len(_LUMA):
        return x_BCHW
    red, green, blue = x_BCHW.double().chunk(3, dim=1)
    luma = ((_LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue + 0x8000) / 0x10000).floor()
    everywhere: Tensor = luma.to(x_BCHW.dtype).expand_as(x_BCHW)
    return everywhere


def mean_gray(x_BCHW: Tensor) -> Tensor:
    """Return images of one gray, their mean brightness."""
    mean = gray(x_BCHW)[:, :1].double().mean((1, 2, 3), keepdim=True)
    return (mean + 0.5).floor().to(x_BCHW.dtype).expand_as(x_BCHW)


def smooth(x_BCHW: Tensor) -> Tensor:
    """Blur every channel with its eight neighbors; the border stays."""
    kernel = torch.ones(1, 1, 3, 3, device=x_BCHW.device)
    B, C, H, W = x_BCHW.shape
    summed = conv2d(x_BCHW.reshape(-1, 1, H, W), kernel).view(B, C, H - 2, W - 2)
    inside = (summed + 4 * x_BCHW[:, :, 1:-1, 1:-1]) / 13
    found = x_BCHW.clone()
    found[:, :, 1:-1, 1:-1] = (inside + 0.5).floor().clamp(0, 255)
    return found


def blend(from_BCHW: Tensor, to_BCHW: Tensor, share: float) -> Tensor:
    """Return the mixture of two images; beyond a share of 1, what leads away from the first."""
    mixed = from_BCHW + share * (to_BCHW - from_BCHW)
    return mixed.clamp(0, 255).floor()


def hole(x_BCHW: Tensor, side: float, place_2B: Tensor) -> Tensor:
    """Fill a square of this side around a place, given in shares of the sides; borders may clip it."""
    _, C, H, W = x_BCHW.shape
    top, left = (
        (place * size - side / 2).clamp(min=0).floor() for place, size in zip(place_2B, (H, W), strict=True)
    )
    rows, columns = torch.arange(H, device=x_BCHW.device), torch.arange(W, device=x_BCHW.device)
    down = (rows >= top[:, None]) & (rows <= (top[:, None] + side).clamp(max=H))
    across = (columns >= left[:, None]) & (columns <= (left[:, None] + side).clamp(max=W))
    inside = (down[:, :, None] & across[:, None, :])[:, None]
    filled = torch.cat(
        [
            torch.where(inside, value, x_BCHW[:, c : c + 1])
            for c, value in zip(range(C), _HOLE * C, strict=False)
        ],
        dim=1,
    )
    return filled if side > 0 else x_BCHW


def matrices(kind_B: Tensor, share_B: Tensor, height: int, width: int) -> Tensor:
    """Return where each pixel comes from, (B, 2, 3), in pixels from the corner.

    A kind is 0 for rotation, 1 and 2 for shears, 3 and 4 for shifts; anything else is no change. The share is
    that of the strongest change, with its sign.
    """
    one, zero = torch.ones_like(share_B), torch.zeros_like(share_B)
    angle = torch.where(kind_B == 0, share_B * math.radians(30), zero)
    shear_x, shear_y = (torch.where(kind_B == k, 0.3 * share_B, zero) for k in (1, 2))
    right, down = (torch.where(kind_B == k, 100 * share_B, zero) for k in (3, 4))
    cos, sin = angle.cos(), -angle.sin()
    middle_x, middle_y = width / 2, height / 2
    turned_x = middle_x - cos * middle_x + sin * -middle_y
    turned_y = middle_y + sin * middle_x - cos * middle_y
    rows = [cos, sin + shear_x, turned_x + right, shear_y - sin, cos, turned_y + down]
    return torch.stack([row * one for row in rows], dim=1).view(-1, 2, 3)


def transform(x_BCHW: Tensor, matrices_B23: Tensor) -> Tensor:
    """Return every pixel from the nearest place that its matrix names; black from outside."""
    _, _, H, W = x_BCHW.shape
    columns = torch.arange(W, device=x_BCHW.device) + 0.5
    rows = torch.arange(H, device=x_BCHW.device)[:, None] + 0.5
    xx, xy, x0, yx, yy, y0 = matrices_B23.flatten(1)[:, :, None, None].unbind(1)
    from_x = (xx * columns + xy * rows + x0).floor()
    from_y = (yx * columns + yy * rows + y0).floor()
    inside = (from_x >= 0) & (from_x < W) & (from_y >= 0) & (from_y < H)
    index = from_y.clamp(0, H - 1).long() * W + from_x.clamp(0, W - 1).long()
    found = x_BCHW.flatten(2).gather(2, index.flatten(1)[:, None].expand(-1, x_BCHW.shape[1], -1))
    return torch.where(inside[:, None], found.view_as(x_BCHW), 0.0)
