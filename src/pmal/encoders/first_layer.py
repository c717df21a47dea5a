"""A convolution of few input channels, which GPUs have no fast kernels for, as one of eight."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

PAD_CHANNELS = False
"""Whether convolutions of bfloat16 on a GPU get more input channels."""
PAD_HALF = True
"""The same of float16, in which finished networks may compute."""
FAST_CHANNELS = 8
"""16 bytes of bfloat16: what tensor cores read at a time."""


class PaddedConv2d(nn.Conv2d):
    """The same convolution, with zeros for the channels that are missing: same weights, same results."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        missing = FAST_CHANNELS - self.in_channels
        # Weights of a single channel do not tell in which layout they are.
        if missing <= 0 or self.in_channels == 1 or not pays(x_BCHW):
            return super().forward(x_BCHW)
        more = (0, 0, 0, 0, 0, missing)
        x, weight = pad(x_BCHW, more), pad(self.weight, more)
        return conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def pays(x_BCHW: Tensor) -> bool:
    """Whether more channels are faster than few."""
    if not x_BCHW.is_cuda:
        return False
    if x_BCHW.dtype == torch.float16:
        return PAD_HALF
    if not (PAD_CHANNELS and torch.is_autocast_enabled("cuda")):
        return False
    return torch.get_autocast_dtype("cuda") == torch.bfloat16
