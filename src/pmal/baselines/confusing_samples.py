"""Generator and discriminator of ARPL+CS: DCGAN-like networks for images of any size from 8 px.

The generator doubles a map of 3 or 4 px until it covers the image, and crops the rest. The discriminator
halves the image as often. Both are trained by Adam at a constant rate of their own. Images are generated as
pixels in 0 to 1 and normalized like real ones.

    loss of the discriminator = -log s(D(x)) - log(1 - s(D(G(noise))))     G fixed
    loss of the generator     = -log s(D(G(noise)))                        D fixed

What the generator learns from the classifier is in `arpl.py`.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import softplus

from pmal._engine.optimizers import OwnAdam
from pmal.errors import UsageError

SMALLEST_IMAGE = 8
WIDEST = 8
"""The innermost maps have at most this many times the channels of the outermost."""


class ConfusingSamples(OwnAdam):
    """Networks that train next to the classifier and are dropped after the training."""

    def __init__(self, channels: int, image_size: int, noise: int, width: int) -> None:
        super().__init__()
        if image_size < SMALLEST_IMAGE:
            sizes = f"images of {SMALLEST_IMAGE} px or more, not of {image_size}"
            raise UsageError(f"method arpl+cs generates {sizes}: choose arpl")
        if noise < 1 or width < 1:
            raise UsageError(f"method_options: noise = {noise}, width = {width}: both must be 1 or more")
        self.noise, self.image_size = noise, image_size
        self.generator = generator(channels, image_size, noise, width)
        self.discriminator = discriminator(channels, image_size, width)
        self.apply(_initialize)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def generate(self, count: int, mean_C: Tensor, std_C: Tensor) -> Tensor:
        """Return new normalized images (count, C, H, W)."""
        noise_BN = torch.randn(count, self.noise, device=mean_C.device)
        pixels_BCHW: Tensor = self.generator(noise_BN)[:, :, : self.image_size, : self.image_size].float()
        normalized_BCHW = (pixels_BCHW - mean_C[:, None, None]) / std_C[:, None, None]
        return normalized_BCHW.contiguous(memory_format=torch.channels_last)

    def adversarial_loss(self, reals_BCHW: Tensor, fakes_BCHW: Tensor) -> Tensor:
        """Return the sum of both networks' losses; each network gets the gradient of its own loss only."""
        frozen = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        real_B = self.discriminator(reals_BCHW).float()
        fake_B = self.discriminator(fakes_BCHW.detach()).float()
        shown_B = functional_call(self.discriminator, frozen, (fakes_BCHW,)).float()
        return softplus(-real_B).mean() + softplus(fake_B).mean() + softplus(-shown_B).mean()


def embed_apart(encoder: nn.Module, images_BCHW: Tensor) -> Tensor:
    """Return embeddings without changing the running statistics of batch norm, which describe real images."""
    scratch = {name: buffer.clone() for name, buffer in encoder.named_buffers()}
    z_BD: Tensor = functional_call(encoder, scratch, (images_BCHW,))
    return z_BD


def generator(channels: int, image_size: int, noise: int, width: int) -> nn.Sequential:
    """Return a network from noise (B, noise) to pixels in 0 to 1, at least as large as the image.

    >>> generator(1, 28, noise=100, width=16)(torch.zeros(2, 100)).shape
    torch.Size([2, 1, 32, 32])
    """
    times = halvings(image_size)
    start = math.ceil(image_size / 2**times)
    widths = [width * min(2 ** (times - 1 - i), WIDEST) for i in range(times)]
    # Equal to a transposed convolution of one pixel; torch's compiler mistakes the layout of that one.
    first = nn.Linear(noise, widths[0] * start**2, bias=False)
    layers: list[nn.Module] = [first, nn.Unflatten(1, (widths[0], start, start)), *_rectify(widths[0])]
    for before, after in pairwise(widths):
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, bias=False), *_rectify(after)]
    layers += [nn.ConvTranspose2d(widths[-1], channels, 4, stride=2, padding=1), nn.Sigmoid()]
    return nn.Sequential(*layers)


def discriminator(channels: int, image_size: int, width: int) -> nn.Sequential:
    """Return a network from normalized images to logits (B, 1), large for images that look real.

    >>> discriminator(3, 32, width=16)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1])
    """
    times = halvings(image_size)
    widths = [width * min(2**i, WIDEST) for i in range(times)]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1, bias=False), *_rectify(after, 0.2)]
    layers += [nn.Conv2d(widths[-1], 1, image_size // 2**times), nn.Flatten()]
    return nn.Sequential(*layers)


def halvings(image_size: int) -> int:
    """Return how often the image is halved until at most 4 px are left.

    >>> [halvings(size) for size in (8, 9, 28, 32, 64, 224)]
    [1, 2, 3, 3, 4, 6]
    """
    return math.ceil(math.log2(image_size / 4))


def _rectify(width: int, slope: float = 0.0) -> list[nn.Module]:
    # Only used in training, so always with the statistics of the batch: none are kept.
    return [nn.BatchNorm2d(width, track_running_stats=False), nn.LeakyReLU(slope)]


def _initialize(module: nn.Module) -> None:
    """Initialize weights as in DCGAN (Radford et al., ICLR 2016)."""
    if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
