"""What every shipped encoder promises, whatever its structure."""

import pytest
import torch
from torch import nn

from pmal.encoders import create_encoder, list_encoders, lower_half, upper_half

FEATURES = {"oscri": 128, "resnet18": 512, "resnet50": 2048, "small": 128, "wide_resnet": 256}
ENCODERS = sorted(FEATURES)


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_shipped_encoder_is_listed():
    assert set(ENCODERS) <= set(list_encoders())


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("channels", [1, 3])
def test_embeds_images_of_any_size_from_8_px(name: str, channels: int):
    encoder = create_encoder(name, in_channels=channels).eval()
    assert encoder.num_features == FEATURES[name]
    with torch.no_grad():
        for height, width in [(8, 8), (9, 13), (28, 28)]:
            z_BD = encoder(images(2, channels, height, width))
            assert z_BD.shape == (2, FEATURES[name])
            assert torch.isfinite(z_BD).all()
            assert not torch.equal(z_BD[0], z_BD[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_gradient_reaches_every_parameter_and_8_px_can_be_trained(name: str):
    torch.manual_seed(0)
    encoder = create_encoder(name, image_size=8)
    z_BD = encoder(images(4, 3, 8, 8))
    (z_BD * images(*z_BD.shape, seed=1)).sum().backward()
    untouched = [key for key, p in encoder.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_evaluation_is_deterministic_and_an_image_is_embedded_alone(name: str):
    torch.manual_seed(0)
    encoder = create_encoder(name)
    batch = images(4, 3, 16, 16)
    encoder(batch)
    encoder.eval()
    with torch.no_grad():
        first, again, alone = encoder(batch), encoder(batch), encoder(batch[2:3])
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    torch.testing.assert_close(first[2:3], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"), [("oscri", {"dropout": 0.2}), ("wide_resnet", {"depth": 10, "dropout": 0.3})]
)
def test_dropout_acts_in_training_alone(name: str, options: dict[str, float]):
    encoder = create_encoder(name, **options)
    # Batch statistics are the same for equal batches, so any difference comes from dropout.
    batch = images(4, 3, 12, 12)
    assert not torch.equal(encoder(batch), encoder(batch))
    encoder.eval()
    assert torch.equal(encoder(batch), encoder(batch))


@pytest.mark.parametrize("name", ["oscri", "small", "resnet18", "wide_resnet"])
def test_without_dropout_training_is_deterministic(name: str):
    encoder = create_encoder(name)
    batch = images(4, 3, 12, 12)
    before = torch.get_rng_state()
    assert torch.equal(encoder(batch), encoder(batch))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_the_torch_seed_alone_decides_the_weights(name: str):
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(create_encoder(name).state_dict().values())

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_convolutions_before_a_norm_carry_no_bias_and_gray_input_costs_less(name: str):
    color, gray = (create_encoder(name, in_channels=c) for c in (3, 1))
    convolutions = [m for m in color.modules() if isinstance(m, nn.Conv2d)]
    assert all(convolution.bias is None for convolution in convolutions)
    saved = sum(p.numel() for p in color.parameters()) - sum(p.numel() for p in gray.parameters())
    assert saved == convolutions[0].weight.numel() * 2 // 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("projection", ["none", "linear"])
def test_two_halves_make_the_whole(name: str, projection: str):
    torch.manual_seed(0)
    encoder = create_encoder(name, image_size=16, projection=projection).eval()
    with torch.no_grad():
        hidden = lower_half(encoder, images(2, 3, 16, 16))
        before = hidden.clone()
        torch.testing.assert_close(upper_half(encoder, hidden), encoder(images(2, 3, 16, 16)))
    assert hidden.shape[1] > 3
    assert hidden.shape[2] > 1
    assert torch.equal(hidden, before), "the upper half works in place on what the lower one made"
