import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmal.data.feeding import augmentation as module
from pmal.data.feeding.augmentation import (
    POLICIES,
    _affine_matrices,
    _crop_matrices,
    _resample,
    augment,
    channel_statistics,
    color_jitter,
    crop_padding,
    cutout,
    normalize,
    random_crop,
    random_flip,
)
from pmal.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def random_images(batch: int, channels: int = 3, size: int = 32) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (batch, channels, size, size), dtype=torch.uint8, generator=generator)


def repeated(batch: int, channels: int = 3, size: int = 32) -> Tensor:
    """The same image many times: what differs in the result is the augmentation."""
    return random_images(1, channels, size).expand(batch, -1, -1, -1).contiguous()


def statistics_of(channels: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([0.5, 0.4, 0.3][:channels]), torch.tensor([0.25, 0.3, 0.2][:channels])


def translates(image_CHW: np.ndarray, padding: int) -> dict[bytes, tuple[int, int]]:
    """All windows of the zero-padded image, by their bytes."""
    _, height, width = image_CHW.shape
    padded = np.pad(image_CHW, ((0, 0), (padding, padding), (padding, padding)))
    offsets = range(2 * padding + 1)
    return {padded[:, y : y + height, x : x + width].tobytes(): (y, x) for y in offsets for x in offsets}


@pytest.mark.parametrize("channels", [1, 3])
def test_normalize_against_numpy(channels: int) -> None:
    images, (mean, std) = random_images(5, channels), statistics_of(channels)
    expected = (images.numpy() / 255.0 - mean.numpy()[:, None, None]) / std.numpy()[:, None, None]
    np.testing.assert_allclose(normalize(images, mean, std).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_policy_none_is_plain_normalization() -> None:
    images, (mean, std) = random_images(5), statistics_of(3)
    assert torch.equal(augment(images, "none", mean, std, flip=True), normalize(images, mean, std))


@pytest.mark.parametrize(("channels", "size", "padding"), [(1, 8, 4), (3, 8, 2), (3, 32, 4)])
def test_crops_are_exact_translates_of_the_padded_image(channels: int, size: int, padding: int) -> None:
    images = random_images(200, channels, size).float() + 1
    seen = set()
    for image, crop in zip(images.numpy(), random_crop(images, padding).numpy(), strict=True):
        windows = translates(image, padding)
        assert crop.tobytes() in windows
        seen.add(windows[crop.tobytes()])
    offsets = set(range(2 * padding + 1))
    assert {y for y, _ in seen} == offsets
    assert {x for _, x in seen} == offsets
    assert len(seen) > len(offsets)


def test_crop_of_an_oblong_image() -> None:
    images = torch.arange(1.0, 1 + 64 * 8 * 12).view(64, 1, 8, 12)
    for image, crop in zip(images.numpy(), random_crop(images, 3).numpy(), strict=True):
        assert crop.tobytes() in translates(image, 3)


def test_flip_is_exact_and_happens_to_half() -> None:
    images = random_images(1000, size=8).float()
    flipped = random_flip(images)
    same = (flipped == images).flatten(1).all(1)
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 420 < int(mirrored.sum()) < 580


def test_standard_is_crop_and_flip_alone() -> None:
    images, (mean, std) = repeated(200, size=16), statistics_of(3)
    image = normalize(images[:1], mean, std)[0]
    straight, mirrored = translates(image.numpy(), 4), translates(image.flip(2).numpy(), 4)
    results = [x.numpy().tobytes() for x in augment(images, "standard", mean, std, flip=True)]
    assert all(x in straight or x in mirrored for x in results)
    assert 60 < sum(x in mirrored for x in results) < 140
    digits = [x.numpy().tobytes() for x in augment(images, "standard", mean, std, flip=False)]
    assert all(x in straight for x in digits)


@pytest.mark.parametrize("channels", [1, 3])
def test_strong_mirrors_only_where_asked(channels: int) -> None:
    ramp = torch.arange(0, 256, 8, dtype=torch.uint8).expand(400, channels, 32, 32)
    mean, std = torch.full((channels,), 0.5), torch.full((channels,), 0.3)

    def mirrored_share(flip: bool) -> float:
        steps = augment(ramp, "strong", mean, std, flip=flip).diff(dim=3).sign()
        return (steps.sum((1, 2, 3)) < 0).float().mean().item()

    assert mirrored_share(flip=False) == 0
    assert 0.4 < mirrored_share(flip=True) < 0.6


def test_strong_leaves_a_share_of_the_images_sharp() -> None:
    """Outside of the cutout, about a quarter differ from a plain translate neither in shape nor in color."""
    images, (mean, std) = repeated(200, size=16), statistics_of(3)
    padded = np.pad(normalize(images[:1], mean, std)[0].numpy(), ((0, 0), (4, 4), (4, 4)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (16, 16), axis=(1, 2))
    results = augment(images, "strong", mean, std, flip=False).numpy()[:, :, None, None]
    equal = (np.abs(results - windows) < 1e-4).mean((1, 4, 5)).max((1, 2))
    sharp = (equal >= 0.75).mean()
    assert 0.15 < sharp < 0.35


def affine(x: Tensor, **ranges: float | tuple[float, float]) -> Tensor:
    """The affine change of the policy strong, with ranges of the test's own."""
    still = {"degrees": 0.0, "scale": (1.0, 1.0), "shear": 0.0, "translate": 0.0, "probability": 1.0}
    return _resample(x, _affine_matrices(x, **(still | ranges)))


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_affine_with_zero_ranges_is_the_identity(probability: float) -> None:
    x = random_images(16, 3, 20).float() / 255
    still = affine(x, probability=probability)
    torch.testing.assert_close(still, x, rtol=0, atol=1e-5)


def blob_positions(x_B1HW: Tensor) -> tuple[Tensor, Tensor]:
    """Center of mass, in pixels right of and below the image's center."""
    _, _, height, width = x_B1HW.shape
    weight = x_B1HW.sum((1, 2, 3))
    right = (x_B1HW * (torch.arange(width) - (width - 1) / 2)).sum((1, 2, 3)) / weight
    below = (x_B1HW * (torch.arange(height) - (height - 1) / 2)[:, None]).sum((1, 2, 3)) / weight
    return right, below


def blob(batch: int, right: float, below: float, height: int = 64, width: int = 96) -> Tensor:
    cols = torch.arange(width) - (width - 1) / 2 - right
    rows = (torch.arange(height) - (height - 1) / 2 - below)[:, None]
    return torch.exp(-(cols**2 + rows**2) / 8).expand(batch, 1, height, width)


def assert_fills(values: Tensor, low: float, high: float) -> None:
    """All within the range, and the ends are nearly reached."""
    margin = 0.05 * (high - low)
    assert low - 0.1 * margin <= values.min() < low + margin
    assert high - margin < values.max() <= high + 0.1 * margin


def test_affine_turns_by_degrees_about_the_center() -> None:
    turned = affine(blob(300, 20, 0), degrees=30)
    right, below = blob_positions(turned)
    assert_fills(torch.rad2deg(torch.atan2(below, right)), -30, 30)
    torch.testing.assert_close(torch.hypot(right, below), torch.full((300,), 20.0), rtol=0, atol=0.05)


def test_affine_scales_about_the_center() -> None:
    scaled = affine(blob(300, 20, -10), scale=(0.7, 1.1))
    right, below = blob_positions(scaled)
    assert_fills(right / 20, 0.7, 1.1)
    torch.testing.assert_close(right, -2 * below, rtol=0, atol=0.1)


def test_affine_translates_by_a_share_of_each_side() -> None:
    moved = affine(blob(300, 0, 0), translate=0.2)
    right, below = blob_positions(moved)
    assert_fills(right / 96, -0.2, 0.2)
    assert_fills(below / 64, -0.2, 0.2)


def test_affine_shear_tilts_each_axis_on_its_own() -> None:
    """The matrix (1, a; b, 1) takes the result to the image, so the blob goes the other way."""
    sheared = affine(blob(300, 20, 0), shear=0.2)
    right, below = blob_positions(sheared)
    assert_fills(-below / right, -0.2, 0.2)
    assert (right - 20).abs().max() < 20 * (1 / (1 - 0.2**2) - 1) + 0.1


def test_affine_probability_is_per_image() -> None:
    x = repeated(1000, 1, 8).float()
    still = (affine(x, degrees=15, scale=(0.8, 1.2), shear=0.15, probability=0.3) - x).abs().flatten(1).amax(
        1
    ) < 1e-2
    assert 0.63 < still.float().mean() < 0.77


def test_strong_turns_zooms_shears_and_shifts_within_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovered from the matrices: rotation times (1, a; b, 1) over the zoom, and a shift of whole pixels."""
    seen = []
    monkeypatch.setattr(module, "_resample", lambda x, matrices: seen.append(matrices) or x)
    monkeypatch.setattr(module, "cutout", lambda x, size: seen.append(size) or x)
    augment(random_images(4000, 1, 48), "strong", *statistics_of(1), flip=False)
    matrices, size = seen[0].double(), seen[1]
    assert size == 24
    assert sorted(set(matrices[:, :, 2].flatten().tolist())) == list(range(-6, 7))
    xx, xy, yx, yy = matrices[:, :, :2].flatten(1).T
    changed = (xx - 1).abs() + xy.abs() + yx.abs() + (yy - 1).abs() > 0
    assert 0.46 < changed.double().mean() < 0.54
    clear = changed & ((xy + yx).abs() > 0.02)  # shears that cancel leave the turn undetermined
    xx, xy, yx, yy = (part[clear] for part in (xx, xy, yx, yy))
    turn = torch.atan((yy - xx) / (xy + yx))
    cos, sin = torch.cos(turn), torch.sin(turn)
    zoom = 1 / (cos * xx + sin * yx)
    assert_fills(torch.rad2deg(turn), -15, 15)
    assert_fills(zoom, 0.8, 1.2)
    assert_fills(zoom * (cos * xy + sin * yy), -0.15, 0.15)
    assert_fills(zoom * (cos * yx - sin * xx), -0.15, 0.15)


def crops_of_ramps(batch: int, flip: bool, height: int = 48, width: int = 64) -> tuple[Tensor, ...]:
    """Left, right, top and bottom end of each crop in the image, as shares of it from -1 to 1.

    Its two channels are ramps, so that a pixel's values say where it comes from.
    """
    x = torch.linspace(-1, 1, width).expand(height, width)
    y = torch.linspace(-1, 1, height)[:, None].expand(height, width)
    ramps = torch.stack([x, y]).expand(batch, 2, height, width)
    views = _resample(ramps, _crop_matrices(ramps, flip))
    columns, rows = views[:, 0].mean(1), views[:, 1].mean(2)
    torch.testing.assert_close(views[:, 0], columns[:, None].expand_as(views[:, 0]), rtol=0, atol=1e-4)
    torch.testing.assert_close(views[:, 1], rows[:, :, None].expand_as(views[:, 1]), rtol=0, atol=1e-4)
    return columns[:, 0], columns[:, -1], rows[:, 0], rows[:, -1]


@pytest.mark.slow
def test_resized_crops_have_every_area_shape_and_place() -> None:
    left, right, top, bottom = crops_of_ramps(4000, flip=False)
    for end in (left, right, top, bottom):
        assert end.abs().max() <= 1 + 1e-4
    wide, high = (right - left) / 2, (bottom - top) / 2
    assert (wide > 0).all()
    assert (high > 0).all()
    uncut = (wide < 0.999) & (high < 0.999)
    assert_fills((wide / high)[uncut], 3 / 4, 4 / 3)
    area = wide * high
    assert area.min() == pytest.approx(0.08, abs=0.005)
    assert area.max() > 0.95
    # Uniform areas: a quarter lies below a quarter of the range; only large ones may have been cut.
    assert (area < 0.08 + 0.92 / 4).float().mean() == pytest.approx(0.25, abs=0.03)
    small = area < 0.2
    for low, high_end in ((left, right), (top, bottom)):
        assert low[small].min() < -0.98
        assert high_end[small].max() > 0.98
        assert (low + high_end)[small].mean().abs() < 0.1


def test_resized_crops_are_mirrored_only_where_asked() -> None:
    left, right, *_ = crops_of_ramps(1000, flip=True)
    assert 0.45 < (left > right).float().mean() < 0.55
    assert max(left.abs().max(), right.abs().max()) <= 1 + 1e-4


def test_resized_crops_leave_nothing_empty() -> None:
    white = torch.full((500, 1, 20, 20), 255, dtype=torch.uint8)
    x = augment(white, "imagenet", torch.tensor([0.2]), torch.tensor([0.1]), flip=True)
    torch.testing.assert_close(x, torch.full_like(x, 8.0), rtol=0, atol=1e-4)


def jitter_alone(x01: Tensor, brightness: float = 0, contrast: float = 0, saturation: float = 0) -> Tensor:
    return color_jitter(x01, brightness=brightness, contrast=contrast, saturation=saturation)


def test_brightness_multiplies_the_image() -> None:
    x = repeated(300).float() / 255 * 0.6
    ratio = jitter_alone(x, brightness=0.5) / x
    factor = ratio.flatten(1).nanmedian(1).values
    assert_fills(factor, 0.5, 1.5)
    torch.testing.assert_close(jitter_alone(x, brightness=0.0), x, rtol=0, atol=1e-6)


def test_contrast_keeps_the_mean_and_saturation_the_gray_version() -> None:
    x = 0.4 + 0.2 * repeated(300).float() / 255
    flatter = jitter_alone(x, contrast=0.5)
    torch.testing.assert_close(flatter.mean((1, 2, 3)), x.mean((1, 2, 3)), rtol=0, atol=1e-5)
    assert_fills(flatter.std((1, 2, 3)) / x.std((1, 2, 3)), 0.5, 1.5)
    paler = jitter_alone(x, saturation=1.0)
    torch.testing.assert_close(paler.mean(1), x.mean(1), rtol=0, atol=1e-5)
    assert_fills((paler - x.mean(1, True)).std((1, 2, 3)) / (x - x.mean(1, True)).std((1, 2, 3)), 0.0, 2.0)


def test_contrast_has_one_mean_for_all_channels() -> None:
    x = 0.4 + 0.2 * repeated(50).float() / 255 * torch.tensor([1.0, 0.5, 0.1])[:, None, None]
    mean = x.mean((1, 2, 3), keepdim=True)
    apart, before = jitter_alone(x, contrast=0.5) - mean, x - mean
    factor = (apart * before).sum((1, 2, 3), True) / before.square().sum((1, 2, 3), True)
    torch.testing.assert_close(apart, factor * before, rtol=0, atol=1e-5)


def test_gray_images_have_no_saturation() -> None:
    x = repeated(50, channels=1).float() / 255
    torch.testing.assert_close(jitter_alone(x, saturation=1.0), x, rtol=0, atol=1e-6)


def test_color_stays_in_range_and_its_probability_is_per_image() -> None:
    x = repeated(1000, size=8).float() / 255
    changed = color_jitter(x, 0.9, 0.9, 0.9, probability=0.5)
    assert changed.min() >= 0
    assert changed.max() <= 1
    still = (changed - x).abs().flatten(1).amax(1) < 1e-6
    assert 0.43 < still.float().mean() < 0.57


@given(size=st.integers(0, 12), height=st.integers(8, 20), width=st.integers(8, 20))
@settings(max_examples=25, deadline=None)
def test_cutout_is_one_square_of_at_most_the_size(size: int, height: int, width: int) -> None:
    cut = cutout(torch.ones(64, 2, height, width), size) == 0
    assert torch.equal(cut[:, 0], cut[:, 1])
    rows, cols = cut[:, 0].any(2).sum(1), cut[:, 0].any(1).sum(1)
    assert torch.equal(cut[:, 0].sum((1, 2)), rows * cols)
    assert max(int(rows.max()), int(cols.max())) <= size


def test_cutout_sides_and_places_are_random() -> None:
    hole = cutout(torch.ones(2000, 1, 32, 32), 16)[:, 0] == 0
    sides = torch.maximum(hole.any(2).sum(1), hole.any(1).sum(1))
    assert set(sides.tolist()) == set(range(17))
    covered = hole.float().mean(0)
    # The mean squared side is 88: so many of the 1024 centers reach a pixel, a quarter of them at a corner.
    assert covered.min() > 22 / 1024 / 2
    assert covered.max() < 88 / 1024 * 1.5


@pytest.mark.parametrize(("side", "padding"), [(8, 4), (32, 4), (40, 4), (48, 6), (64, 8), (224, 28)])
def test_padding_grows_with_the_image(side: int, padding: int) -> None:
    assert crop_padding(torch.empty(1, 1, side, side + 5)) == padding


@pytest.mark.parametrize("policy", POLICIES)
def test_output_is_a_finite_float_batch(policy: str) -> None:
    for channels, size in ((1, 8), (1, 28), (3, 8), (3, 64)):
        images, (mean, std) = random_images(6, channels, size), statistics_of(channels)
        x = augment(images, policy, mean, std, flip=True)
        assert x.shape == images.shape
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        assert torch.isfinite(x).all()


@pytest.mark.parametrize("policy", ["standard", "strong", "imagenet"])
def test_images_of_a_batch_get_different_transforms_and_a_seed_repeats_them(policy: str) -> None:
    images, (mean, std) = repeated(64), statistics_of(3)
    first, second = (augment(images, policy, mean, std, flip=True) for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(augment(images, policy, mean, std, flip=True), first)
    assert not torch.equal(first, second)
    assert len({x.numpy().tobytes() for x in first}) > 40


@pytest.mark.parametrize("policy", POLICIES)
def test_no_value_is_read_back_to_the_host(policy: str) -> None:
    """Meta tensors have no values: reading one, or mixing in a tensor of another device, raises."""
    images = torch.empty(4, 3, 32, 32, dtype=torch.uint8, device="meta")
    statistics = torch.empty(3, device="meta")
    assert augment(images, policy, statistics, statistics, flip=True).shape == images.shape


def test_empty_places_hold_the_training_mean() -> None:
    white = torch.full((200, 1, 16, 16), 255, dtype=torch.uint8)
    x = augment(white, "standard", torch.tensor([0.2]), torch.tensor([0.1]), flip=True)
    assert {round(value, 4) for value in x.unique().tolist()} == {0.0, 8.0}


def test_unknown_policy_names_the_nearest() -> None:
    images, (mean, std) = random_images(2), statistics_of(3)
    with pytest.raises(UsageError, match="unknown augmentation policy 'stong': did you mean 'strong'"):
        augment(images, "stong", mean, std, flip=True)


@pytest.mark.parametrize("batch_size", [1, 10, 33])
def test_channel_statistics_against_numpy(batch_size: int) -> None:
    images = random_images(33, 3, 11) // torch.tensor([1, 2, 9], dtype=torch.uint8)[:, None, None]
    mean, std = channel_statistics(torch.split(images, batch_size))
    pixels = images.numpy().astype(np.float64) / 255
    assert mean.dtype == std.dtype == torch.float32
    np.testing.assert_allclose(mean.numpy(), pixels.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(std.numpy(), pixels.std((0, 2, 3)), rtol=1e-7)


def test_channel_statistics_of_a_constant_and_a_nearly_constant_channel() -> None:
    images = torch.full((50, 2, 100, 100), 251, dtype=torch.uint8)
    images[7, 1, 3, 3] = 250
    mean, std = channel_statistics([images])
    pixels = 500_000
    assert mean.tolist() == pytest.approx([251 / 255, (251 - 1 / pixels) / 255], rel=1e-7)
    assert std.tolist() == pytest.approx([1.0, math.sqrt(1 / pixels - 1 / pixels**2) / 255], rel=1e-6)


def test_normalized_training_images_have_mean_0_and_deviation_1() -> None:
    images = random_images(64)
    x = augment(images, "none", *channel_statistics([images]), flip=False)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3), rtol=0, atol=1e-5)


def test_channel_statistics_of_nothing_is_an_error() -> None:
    with pytest.raises(DataError, match="training part is empty"):
        channel_statistics([])
