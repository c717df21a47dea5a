"""The plain loop's pictures under the augmentation of the recipe `strong`, by Pillow, one by one."""

import math

import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from pmal.speed.reference import Pictures


class StrongPictures(Pictures):
    """Pictures with colors, rotation, scale and shear changed at random, and a square cut out."""

    def augmented(self, picture: Image.Image) -> Tensor:
        """Return a training picture, changed, cropped, flipped and cut."""
        return _cut_out(super().augmented(_random_affine(_random_colors(picture))))


def _random_colors(picture: Image.Image) -> Image.Image:
    """As `color_jitter` does: of half the pictures, brightness, contrast and saturation by up to a half."""
    if float(torch.rand(())) < 0.5:
        return picture
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        picture = enhance(picture).enhance(0.5 + float(torch.rand(())))
    return picture


def _random_affine(picture: Image.Image) -> Image.Image:
    """Half of the pictures turned by up to 15 degrees, scaled and sheared about their center."""
    if float(torch.rand(())) < 0.5:
        return picture
    turn, size, shear = (2 * torch.rand(3) - 1).tolist()
    angle, scale, center = math.radians(15 * turn), 1 + 0.2 * size, (picture.width - 1) / 2
    a, b = math.cos(angle) / scale, (math.sin(angle) + 0.15 * shear) / scale
    d, e = -math.sin(angle) / scale, math.cos(angle) / scale
    matrix = (a, b, center * (1 - a - b), d, e, center * (1 - d - e))
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


def _cut_out(image_CHW: Tensor) -> Tensor:
    """A square of 0 to half the side, set to zero."""
    height, width = image_CHW.shape[1:]
    side = int(torch.randint(0, height // 2 + 1, ()))
    top, left = (int(torch.randint(0, n, ())) - side // 2 for n in (height, width))
    image_CHW[:, max(top, 0) : max(top + side, 0), max(left, 0) : max(left + side, 0)] = 0
    return image_CHW
