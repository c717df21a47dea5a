"""Every change against Pillow, which the public code calls."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from pmal.data.feeding import randaugment as ours
from pmal.data.feeding.augmentation import augment
from pmal.errors import UsageError


def images(count=6, size=21):
    """Noise, a ramp, a flat image, one of two values, dark and bright ones."""
    random = np.random.default_rng(0)
    found = [random.integers(0, 256, (size, size + 2, 3))]
    ramp = np.linspace(20, 180, size * (size + 2) * 3).reshape(size, size + 2, 3)
    found += [ramp, np.full_like(found[0], 77), 200 * (found[0] > 128), found[0] // 4, 255 - found[0] // 5]
    return [Image.fromarray(np.asarray(one, np.uint8)) for one in found[:count]]


def as_batch(pictures):
    return torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1).float() for one in pictures])


def hole(picture, x, y, side):
    left, top = (int(max(0, place - side / 2)) for place in (x, y))
    picture = picture.copy()
    box = (left, top, min(picture.width, left + side), min(picture.height, top + side))
    ImageDraw.Draw(picture).rectangle(box, (125, 123, 114))
    return picture


@pytest.mark.parametrize(
    ("change", "pillow"),
    [
        (ours.auto_contrast, ImageOps.autocontrast),
        (ours.equalize, ImageOps.equalize),
        (lambda x: ours.posterize(x, 3), lambda p: ImageOps.posterize(p, 3)),
        (lambda x: ours.solarize(x, 51.2), lambda p: ImageOps.solarize(p, 51.2)),
        (lambda x: ours.blend(ours.gray(x), x, 0.46), lambda p: ImageEnhance.Color(p).enhance(0.46)),
        (lambda x: ours.blend(ours.mean_gray(x), x, 1.7), lambda p: ImageEnhance.Contrast(p).enhance(1.7)),
        (lambda x: ours.blend(0 * x, x, 0.46), lambda p: ImageEnhance.Brightness(p).enhance(0.46)),
        (lambda x: ours.blend(ours.smooth(x), x, 1.7), lambda p: ImageEnhance.Sharpness(p).enhance(1.7)),
        (
            lambda x: ours.hole(x, 8.0, torch.tensor([[0.1], [0.6]]).expand(2, len(x))),
            lambda p: hole(p, 0.6 * p.width, 0.1 * p.height, 8.0),
        ),
    ],
)
def test_a_change_of_colors_is_pillow_s(change, pillow):
    found, wanted = change(as_batch(images())), as_batch([pillow(one) for one in images()])
    # Pillow computes in float32; where a product is a whole number but for that, one value lies between.
    assert (found - wanted).abs().max() <= 1
    assert (found != wanted).float().mean() < 0.01


@pytest.mark.parametrize("share", [0.2, -0.5])
def test_a_change_of_geometry_is_pillow_s(share):
    pictures, x = images(2), as_batch(images(2))
    affine = [(1, 0.3 * share, 0, 0, 1, 0), (1, 0, 0, 0.3 * share, 1, 0)]
    affine += [(1, 0, 100 * share, 0, 1, 0), (1, 0, 0, 0, 1, 100 * share)]
    wanted = [[one.rotate(30 * share) for one in pictures]]
    wanted += [[one.transform(one.size, Image.Transform.AFFINE, m) for one in pictures] for m in affine]
    for kind, expected in enumerate([*wanted, pictures]):  # beyond the last: no change
        found = ours.transform(
            x, ours.matrices(torch.tensor([kind] * 2), torch.tensor([share] * 2), *x.shape[2:])
        )
        assert (found != as_batch(expected)).float().mean() < 0.01, kind


def test_every_image_gets_one_change_and_crop_and_flip_follow():
    torch.manual_seed(0)
    x = as_batch(images(1)).expand(400, -1, -1, -1).to(torch.uint8)
    found = ours.randaugment(x, 6)
    assert found.min() >= 0
    assert found.max() <= 255
    assert torch.equal(found, found.floor())
    kinds = {one.numpy().tobytes() for one in found}
    assert len(kinds) > 15 + 20  # eleven changes of colors, five of geometry with two signs, and many holes
    plain = ours.randaugment(x[:, :1], 6)  # of one channel
    assert plain.shape == x[:, :1].shape
    mean, std = torch.zeros(3), torch.ones(3)
    views = augment(x, "randaugment-6", mean, std, True)
    assert views.shape == x.shape
    assert views.max() <= 1
    for wrong in ("randaugment-31", "randaugment-x", "randaugment6"):
        with pytest.raises(UsageError, match="augmentation policy"):
            augment(x[:2], wrong, mean, std, True)
