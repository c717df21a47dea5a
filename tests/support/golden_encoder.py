"""An encoder of a few kilobytes, as a user registers one: a shipped one would take megabytes."""

from torch import nn

from pmal.encoders.adapters import FeatureAdapter

NAME = "golden"


def golden(in_channels, image_size):
    layers = [nn.Conv2d(in_channels, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return FeatureAdapter(nn.Sequential(*layers), num_features=16)
