"""Random changes of whole image batches, on any device.

Every function draws from the default generator of the batch's device, never reads a value back to the host
and has no shape that depends on values, so that a CUDA graph can capture a training step with it.
Legend: B batch, C channels, H height, W width. Geometry is in pixels from the image's center.
"""

import itertools
import math
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, pad

from pmal.data.feeding.randaugment import STRONGEST, randaugment
from pmal.errors import DataError, UsageError, unknown_name

POLICIES = ("none", "standard", "strong", "imagenet", "randaugment")
USUAL_STRENGTH = 9
"""The strength of randaugment if its name says none."""
CROP_AREA = (0.08, 1.0)
CROP_RATIO = (3 / 4, 4 / 3)
"""Area share and width-to-height ratio of a resized crop (Szegedy et al., CVPR 2015)."""


def augment(images_BCHW: Tensor, policy: str, mean_C: Tensor, std_C: Tensor, flip: bool) -> Tensor:
    """Return a normalized float batch, augmented by a policy. Empty areas are 0, the training mean.

    - none: normalization only.
    - standard: random crop of the padded image, and flip.
    - strong: in addition, half of the images get an affine change and, independently, half get a color
      change, so that sharp and undistorted images, as seen at test time, stay frequent; all get a cutout of
      0 to half the side.
    - randaugment, randaugment-6: one change out of 16 of this strength (0 to 30), then crop and flip.
    - imagenet: a part of the image, enlarged to the whole size, and flip; for photographs.

    Args:
        images_BCHW: uint8 images; embeddings only with policy none.
        policy: one of `POLICIES`; with a strength, as in randaugment-6, if it has one.
        mean_C: mean of each channel, of pixels scaled to [0, 1].
        std_C: deviation of each channel, likewise.
        flip: whether images may be mirrored.
    """
    name, _, strength = policy.partition("-")
    if name not in POLICIES or not _is_strength(policy, name, strength):
        raise unknown_name("augmentation policy", policy, (*POLICIES, "randaugment-0 to randaugment-30"))
    if policy != "none" and images_BCHW.is_floating_point():
        raise UsageError(f"data.augmentation = '{policy}' changes pixels: embeddings take 'none'")
    if policy == "strong":
        x = color_jitter(_unit_range(images_BCHW), probability=0.5)
        x = _shift_flip_affine(_standardize(x, mean_C, std_C), flip)
        return cutout(x, min(x.shape[2:]) // 2)
    if name == "randaugment":
        changed = randaugment(images_BCHW, int(strength or USUAL_STRENGTH))
        x = _standardize(changed / 255, mean_C, std_C)
    else:
        x = normalize(images_BCHW, mean_C, std_C)
    if policy == "imagenet":
        return _resample(x, _crop_matrices(x, flip))
    if name in ("standard", "randaugment"):
        x = random_crop(x, crop_padding(x))
        x = random_flip(x) if flip else x
    return x


def _is_strength(policy: str, name: str, strength: str) -> bool:
    if policy == name:
        return True
    return name == "randaugment" and strength.isdecimal() and int(strength) <= STRONGEST


def normalize(images_BCHW: Tensor, mean_C: Tensor, std_C: Tensor) -> Tensor:
    """Return uint8 pixels as floats, minus mean, over deviation (both of pixels scaled to [0, 1]).

    Embeddings in place of images are floats already, and keep their scale.
    """
    return _standardize(_unit_range(images_BCHW), mean_C, std_C)


def channel_statistics(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and deviation per channel of uint8 pixels scaled to [0, 1].

    The deviation of a constant channel is 1. Counting the 256 values is exact, so the result depends on
    neither the device nor the order of the images. Embeddings, which are floats, are not scaled.

    Raises:
        DataError: there are no images.
    """
    remaining = iter(batches)
    first = next(remaining, None)
    if first is None:
        raise DataError("no images to compute the mean and deviation of: the training part is empty")
    batches = itertools.chain([first], remaining)
    if first.is_floating_point():
        return _float_statistics(batches)
    counts = [torch.zeros(256, dtype=torch.int64, device=first.device)] * first.shape[1]
    for images_BCHW in batches:
        for channel, before_256 in enumerate(counts):
            counts[channel] = before_256 + torch.bincount(images_BCHW[:, channel].flatten(), minlength=256)
    statistics = [_mean_and_deviation(counts_256.tolist()) for counts_256 in counts]
    mean_std_C2 = torch.tensor(statistics, dtype=torch.float32, device=counts[0].device)
    return mean_std_C2[:, 0].contiguous(), mean_std_C2[:, 1].contiguous()


def crop_padding(x_BCHW: Tensor) -> int:
    """Return 4 pixels, as usual for 32 px images, or an eighth of the shorter side for images over 40 px."""
    side = min(x_BCHW.shape[2:])
    return 4 if side <= 40 else side // 8


def random_crop(x_BCHW: Tensor, padding: int = 4) -> Tensor:
    """Return windows of the zero-padded images, of their own size: exact pixels, shifted up to `padding`."""
    B, C, H, W = x_BCHW.shape
    padded = pad(x_BCHW, (padding,) * 4)
    corner = torch.randint(0, 2 * padding + 1, (2, B, 1, 1), device=x_BCHW.device)
    rows_BH1 = corner[0] + torch.arange(H, device=x_BCHW.device)[:, None]
    cols_B1W = corner[1] + torch.arange(W, device=x_BCHW.device)
    flat_BHW = rows_BH1 * padded.shape[3] + cols_B1W
    index = flat_BHW.view(B, 1, H * W).expand(B, C, H * W)
    return padded.flatten(2).gather(2, index).view(B, C, H, W)


def random_flip(x_BCHW: Tensor) -> Tensor:
    """Mirror half of the images left to right."""
    mirrored = torch.rand(len(x_BCHW), 1, 1, 1, device=x_BCHW.device) < 0.5
    return torch.where(mirrored, x_BCHW.flip(3), x_BCHW)


def color_jitter(
    x01_BCHW: Tensor,
    brightness: float = 0.5,
    contrast: float = 0.5,
    saturation: float = 0.5,
    probability: float = 1.0,
) -> Tensor:
    """Change images in [0, 1] by random factors within 1 plus or minus each limit.

    Contrast is the distance to the image's mean, saturation the distance to its gray version.

    Args:
        x01_BCHW: images in [0, 1].
        brightness: limit of its factor.
        contrast: limit of its factor.
        saturation: limit of its factor.
        probability: share of the images that are changed.
    """
    B, C = x01_BCHW.shape[:2]
    applied = torch.rand(B, 1, 1, 1, device=x01_BCHW.device) < probability
    change = (2 * torch.rand(3, B, 1, 1, 1, device=x01_BCHW.device) - 1) * applied
    x = (x01_BCHW * (1 + brightness * change[0])).clamp(0, 1)
    x = torch.lerp(x.mean((1, 2, 3), keepdim=True), x, 1 + contrast * change[1]).clamp(0, 1)
    if C > 1:
        x = torch.lerp(x.mean(1, keepdim=True), x, 1 + saturation * change[2]).clamp(0, 1)
    return x


def cutout(x_BCHW: Tensor, size: int) -> Tensor:
    """Set a random square of 0 to `size` pixels a side to zero. Borders may clip it."""
    B, _, H, W = x_BCHW.shape
    device = x_BCHW.device
    side = torch.randint(0, size + 1, (B, 1, 1), device=device)
    top = torch.randint(0, H, (B, 1, 1), device=device) - side // 2
    left = torch.randint(0, W, (B, 1, 1), device=device) - side // 2
    rows_H1 = torch.arange(H, device=device)[:, None]
    cols_W = torch.arange(W, device=device)
    hole_BHW = (rows_H1 >= top) & (rows_H1 < top + side) & (cols_W >= left) & (cols_W < left + side)
    return x_BCHW.masked_fill(hole_BHW[:, None], 0.0)


def _float_statistics(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the statistics of floats: each batch's moments in float64, merged so no large mean cancels."""
    count, mean_C, squares_C = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for images_BCHW in batches:
        x_CN = images_BCHW.transpose(0, 1).flatten(1).double().cpu()
        own_mean_C, new = x_CN.mean(dim=1), x_CN.shape[1]
        apart_C = own_mean_C - mean_C
        squares_C = squares_C + (x_CN - own_mean_C[:, None]).square().sum(dim=1)
        squares_C = squares_C + apart_C.square() * (count * new / (count + new))
        mean_C = mean_C + apart_C * (new / (count + new))
        count += new
    std_C = (squares_C / count).sqrt()
    # What single precision cannot distinguish from the mean is constant: it must not be scaled up to noise.
    constant_C = std_C <= mean_C.abs() * torch.finfo(torch.float32).eps
    device = images_BCHW.device
    return mean_C.float().to(device), std_C.masked_fill(constant_C, 1.0).float().to(device)


def _mean_and_deviation(counts_256: list[int]) -> tuple[float, float]:
    """Return both from how often each pixel value occurs. Python integers neither overflow nor cancel."""
    count = sum(counts_256)
    total = sum(value * times for value, times in enumerate(counts_256))
    squares = sum(value**2 * times for value, times in enumerate(counts_256))
    deviation = math.sqrt(count * squares - total**2) / (255 * count)
    return total / (255 * count), deviation or 1.0


def _unit_range(images_BCHW: Tensor) -> Tensor:
    return images_BCHW if images_BCHW.is_floating_point() else images_BCHW.float() / 255


def _standardize(x01_BCHW: Tensor, mean_C: Tensor, std_C: Tensor) -> Tensor:
    return (x01_BCHW - mean_C[:, None, None]) / std_C[:, None, None]


def _shift_flip_affine(x_BCHW: Tensor, flip: bool) -> Tensor:
    """Shift, flip and distort in one resampling; whole-pixel shifts keep undistorted images sharp."""
    B, padding, device = len(x_BCHW), crop_padding(x_BCHW), x_BCHW.device
    matrices_B23 = _affine_matrices(
        x_BCHW, degrees=15.0, scale=(0.8, 1.2), shear=0.15, translate=0.0, probability=0.5
    )
    matrices_B23[:, :, 2] += torch.randint(-padding, padding + 1, (B, 2), device=device)
    if flip:
        matrices_B23[:, :, 0] *= 1 - 2 * torch.randint(0, 2, (B, 1), device=device)
    return _resample(x_BCHW, matrices_B23)


def _crop_matrices(x_BCHW: Tensor, flip: bool) -> Tensor:
    """Return matrices (B, 2, 3) that enlarge a random part of each image, of any place, area and shape.

    A part wider or higher than the image is cut to it. Other implementations draw again, but then the work
    depends on values. No pixel comes from outside the centers of the outermost ones, so nothing is empty.
    """
    B, _, H, W = x_BCHW.shape
    device = x_BCHW.device
    area_B = _uniform(*CROP_AREA, B, device)
    ratio_B = torch.exp(_uniform(math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1]), B, device))
    width_B, height_B = (area_B * ratio_B).sqrt().clamp(max=1), (area_B / ratio_B).sqrt().clamp(max=1)
    right_B = _uniform(-0.5, 0.5, B, device) * (1 - width_B) * (W - 1)
    down_B = _uniform(-0.5, 0.5, B, device) * (1 - height_B) * (H - 1)
    if flip:
        width_B = width_B * (1 - 2 * torch.randint(0, 2, (B,), device=device))
    zero_B = torch.zeros_like(area_B)
    rows = [width_B, zero_B, right_B, zero_B, height_B, down_B]
    return torch.stack(rows, dim=1).view(B, 2, 3)


def _uniform(low: float, high: float, count: int, device: torch.device) -> Tensor:
    return low + (high - low) * torch.rand(count, device=device)


def _affine_matrices(
    x_BCHW: Tensor,
    degrees: float,
    scale: tuple[float, float],
    shear: float,
    translate: float,
    probability: float,
) -> Tensor:
    """Return matrices (B, 2, 3): the place in the image that each pixel of the result comes from.

    Rotation is up to `degrees` either way, size is times a factor in `scale`, `shear` is a slope along both
    axes, `translate` is a share of the sides. Images are unchanged with probability 1 - `probability`.
    """
    B, _, H, W = x_BCHW.shape
    applied = torch.rand(B, device=x_BCHW.device) < probability
    zoom = 1 + applied * (scale[0] - 1 + (scale[1] - scale[0]) * torch.rand(B, device=x_BCHW.device))
    turn, slope_x, slope_y, right, down = (2 * torch.rand(5, B, device=x_BCHW.device) - 1) * applied
    cos, sin = torch.cos(turn * math.radians(degrees)), torch.sin(turn * math.radians(degrees))
    slope_x, slope_y = shear * slope_x, shear * slope_y
    row_x = [(cos - sin * slope_y) / zoom, (cos * slope_x - sin) / zoom, translate * W * right]
    row_y = [(sin + cos * slope_y) / zoom, (sin * slope_x + cos) / zoom, translate * H * down]
    return torch.stack(row_x + row_y, dim=1).view(B, 2, 3)


def _resample(x_BCHW: Tensor, matrices_B23: Tensor) -> Tensor:
    """Resample each image by its own matrix, bilinear, with zeros outside."""
    B, _, H, W = x_BCHW.shape
    cols_W = torch.arange(W, device=x_BCHW.device) - (W - 1) / 2
    rows_H1 = (torch.arange(H, device=x_BCHW.device) - (H - 1) / 2)[:, None]
    # Written out: affine_grid is a matrix product, whose coordinates TF32 and autocast would round.
    xx, xy, x0, yx, yy, y0 = matrices_B23.view(B, 6, 1, 1).unbind(1)
    from_x = (xx * cols_W + xy * rows_H1 + x0) * (2 / W)
    from_y = (yx * cols_W + yy * rows_H1 + y0) * (2 / H)
    grid = torch.stack([from_x, from_y], dim=3)
    return grid_sample(
        x_BCHW, grid.to(x_BCHW.dtype), mode="bilinear", padding_mode="zeros", align_corners=False
    )
