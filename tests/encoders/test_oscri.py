import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pmal.encoders import create_encoder
from pmal.errors import UsageError


def reference(images: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Nine times convolution, batch norm, leaky rectifier, from the weights alone."""
    kernels = [value for value in state.values() if value.ndim == 4]
    norms = {
        kind: [value for key, value in state.items() if value.ndim == 1 and key.endswith(kind)]
        for kind in ("running_mean", "running_var", "weight", "bias")
    }
    x = images
    for i, stride in enumerate((1, 1, 2) * 3):
        x = functional.conv2d(x, kernels[i], stride=stride, padding=1)
        mean, var, gain, shift = (values[i][:, None, None] for values in norms.values())
        x = (x - mean) / torch.sqrt(var + 1e-5) * gain + shift
        x = torch.where(x > 0, x, 0.2 * x)
    return x.flatten(2).mean(2)


def test_the_body_has_999104_parameters():
    assert sum(p.numel() for p in create_encoder("oscri").parameters()) == 999_104


def test_equals_its_transcription():
    encoder = create_encoder("oscri").double()
    images = torch.randn(3, 3, 20, 20, dtype=torch.float64)
    encoder(images)  # Batch statistics that differ from their start values.
    encoder.eval()
    torch.testing.assert_close(encoder(images), reference(images, encoder.state_dict()))


def test_32_px_become_a_4_by_4_map():
    encoder = create_encoder("oscri").eval()
    with torch.no_grad():
        maps = encoder.body(torch.randn(1, 3, 32, 32))
    assert maps.shape == (1, 128, 4, 4)


def test_channels_are_dropped_before_convolutions_1_4_and_7():
    encoder = create_encoder("oscri", dropout=0.2)
    layers = [m for m in encoder.modules() if isinstance(m, nn.Conv2d | nn.Dropout2d)]
    kinds = "".join("d" if isinstance(layer, nn.Dropout2d) else "c" for layer in layers)
    assert kinds == "dcccdcccdccc"
    assert {layer.p for layer in layers if isinstance(layer, nn.Dropout2d)} == {0.2}


def test_weights_of_one_dropout_fit_another():
    dropped, plain = create_encoder("oscri", dropout=0.2), create_encoder("oscri")
    plain.load_state_dict(dropped.state_dict())
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(plain.eval()(images), dropped.eval()(images))


@pytest.mark.parametrize("dropout", [-0.1, 1.0, "much"])
def test_a_dropout_that_is_no_share_is_refused(dropout):
    with pytest.raises(
        UsageError, match=rf"options.dropout = {dropout!r}: (must be 0 or more, below 1|expected float)"
    ):
        create_encoder("oscri", dropout=dropout)


def test_gray_images_are_never_blanked():
    """Dropping the only channel would train on empty images with a class label."""
    encoder = create_encoder("oscri", in_channels=1, dropout=0.2)
    seen = []
    first = next(m for m in encoder.modules() if isinstance(m, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.ones(64, 1, 8, 8)
    encoder(images)
    assert torch.equal(seen[0], images)


def test_weights_start_with_the_deviations_of_the_literature():
    torch.manual_seed(0)
    state = create_encoder("oscri").state_dict()
    kernels = torch.cat([value.flatten() for value in state.values() if value.ndim == 4])
    gains = torch.cat([v for key, v in state.items() if v.ndim == 1 and key.endswith("weight")])
    assert abs(kernels.std() - 0.05) < 0.0005
    assert abs(gains.mean() - 1) < 0.005
    assert abs(gains.std() - 0.02) < 0.003
