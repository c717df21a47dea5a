"""An encoder: a convolution over patches, then one over their neighbors."""

from torch import nn

import pmal


@pmal.register_encoder("patches")
def make_patches(in_channels, image_size, width=16, patch=4):
    layers = [
        nn.Conv2d(in_channels, width, patch, stride=patch),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
    ]
    return pmal.FeatureAdapter(nn.Sequential(*layers), num_features=2 * width)
