"""A network's layout in memory (a convolution copies what comes in another than its own), and its heads."""

import pytest
import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec, in_half_precision, with_head
from pmal.ensemble.heads import HeadConfig
from pmal.errors import UsageError


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


def test_an_embedding_is_that_of_normalized_pixels():
    torch.manual_seed(0)
    model = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 16, 3)).eval()
    model.set_normalization(torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.1]))
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8)
    views = (images / 255 - model.mean[:, None, None]) / model.std[:, None, None]
    with torch.no_grad():
        z_BD, logits_BK = model.embed(images)
        torch.testing.assert_close(z_BD, model.encoder(views))
        torch.testing.assert_close(logits_BK, model(views))


@pytest.mark.parametrize("training", [True, False])
def test_another_head_starts_from_what_was_learned(training):
    torch.manual_seed(0)
    model = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 16, 3)).train(training)
    model.set_normalization(torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.1]))
    other = with_head(model, HeadConfig("proser"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
    assert other.spec.head.name == "proser"
    assert other.training == training


def test_an_encoder_of_half_precision_gives_the_same_embedding_to_three_digits():
    torch.manual_seed(0)
    model = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 16, 3)).eval()
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        z_BD, logits_BK = model.embed(images)
        model.encoder.half()
        half_BD, half_BK = model.embed(images)
    assert half_BD.dtype == half_BK.dtype == torch.float32
    assert not torch.equal(half_BD, z_BD)
    torch.testing.assert_close(half_BD, z_BD, rtol=0, atol=4e-3 * float(z_BD.abs().max()))
    torch.testing.assert_close(half_BK, logits_BK, rtol=0, atol=1e-2)


def test_half_precision_is_for_a_gpu():
    model = Classifier(ClassifierSpec(EncoderConfig("small"), ("a", "b"), 16, 3))
    with pytest.raises(UsageError, match="slower on a CPU"):
        in_half_precision(model)
