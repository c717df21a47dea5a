import pytest
import torch
from torch import nn

from pmal.encoders import create_encoder, first_layer
from pmal.encoders.first_layer import PaddedConv2d


def results(encoder, images):
    """Features, and gradients of all weights."""
    torch.manual_seed(1)  # of dropout
    encoder.zero_grad()
    features = encoder(images)
    torch.autograd.backward(features.square().sum())
    return [features, *(parameter.grad.clone() for parameter in encoder.parameters())]


@pytest.mark.parametrize(
    ("name", "options"), [("oscri", {}), ("wide_resnet", {"depth": 10, "width": 1}), ("resnet18", {})]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_more_channels_change_neither_features_nor_gradients(monkeypatch, name, options, channels):
    encoder = create_encoder(name, channels, 16, **options).double()
    for parameter in encoder.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    images = torch.randn(3, channels, 16, 16, dtype=torch.float64)
    plain, seen = results(encoder, images), []
    convolve = first_layer.conv2d
    monkeypatch.setattr(first_layer, "conv2d", lambda x, *rest: seen.append(x.shape) or convolve(x, *rest))
    monkeypatch.setattr(first_layer, "pays", lambda x: True)
    for padded, expected in zip(results(encoder, images), plain, strict=True):
        torch.testing.assert_close(padded, expected)
    assert seen == ([(3, 8, 16, 16)] if channels == 3 else [])


def test_weights_keep_their_names_and_first_values():
    torch.manual_seed(0)
    plain = nn.Conv2d(3, 4, 3, bias=False)
    torch.manual_seed(0)
    padded = PaddedConv2d(3, 4, 3, bias=False)
    assert list(padded.state_dict()) == ["weight"]
    assert torch.equal(padded.weight, plain.weight)


@pytest.mark.parametrize(("precision", "padded"), [(torch.bfloat16, True), (torch.float16, False)])
def test_it_pays_in_bfloat16_alone(monkeypatch, precision, padded):
    class OnGpu:
        is_cuda, dtype = True, torch.float32

    monkeypatch.setattr(first_layer, "PAD_CHANNELS", True)
    assert not first_layer.pays(OnGpu())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: precision)
    assert first_layer.pays(OnGpu()) == padded
    assert not first_layer.pays(torch.zeros(1))


def test_it_pays_for_a_finished_network_of_float16():
    class OnGpu:
        is_cuda, dtype = True, torch.float16

    assert first_layer.pays(OnGpu())
    assert not first_layer.pays(torch.zeros(1, dtype=torch.float16))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_it_rounds_as_the_plain_one_does(monkeypatch):
    plain = nn.Conv2d(3, 64, 3, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)
    padded = PaddedConv2d(3, 64, 3, padding=1, bias=False).cuda().to(memory_format=torch.channels_last)
    padded.load_state_dict(plain.state_dict())
    monkeypatch.setattr(first_layer, "PAD_CHANNELS", True)
    images, outputs = torch.randn(16, 3, 32, 32, device="cuda"), []
    for layer in (plain, padded):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs.append(layer(images))
        torch.autograd.backward(outputs[-1].float().square().mean())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=0.02, atol=0.02)
    torch.testing.assert_close(padded.weight.grad, plain.weight.grad, rtol=0.02, atol=1e-4)
