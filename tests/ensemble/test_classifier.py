"""The layout of a network in memory: a convolution copies what comes in another than its own."""

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec


def channels_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("encoder", ["small", "oscri"])
def test_no_layer_changes_the_layout_in_either_direction(encoder, channels):
    model = Classifier(ClassifierSpec(EncoderConfig(encoder), ("a", "b"), 16, channels)).use_channels_last()
    layouts = []

    def look(module, inputs, output):
        layouts.append((module, channels_last(output)))
        output.register_hook(lambda gradient: layouts.append((module, channels_last(gradient))))

    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.BatchNorm2d | torch.nn.ReLU | torch.nn.LeakyReLU):
            module.register_forward_hook(look)
    model(torch.randn(4, channels, 16, 16)).sum().backward()
    assert layouts
    assert all(right for _, right in layouts), [module for module, right in layouts if not right]
