import pytest
import torch
from torch import Tensor, nn

from pmal.encoders import FeatureAdapter, create_encoder, list_encoders, register_encoder, registry
from pmal.errors import UsageError


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry.ENCODERS, "_things", dict(registry.ENCODERS._things))


class Flat(nn.Module):
    """An encoder that shares no base class with the shipped ones."""

    def __init__(self, in_channels: int, image_size: int) -> None:
        super().__init__()
        self.num_features = in_channels * image_size**2

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_a_registered_factory_gets_input_and_options():
    calls = []

    @register_encoder("mine")
    def mine(in_channels, image_size, gain=1.0):
        calls.append((in_channels, image_size, gain))
        return Flat(in_channels, image_size)

    encoder = create_encoder("mine", in_channels=1, image_size=9, gain=2.5)
    assert calls == [(1, 9, 2.5)]
    assert encoder(torch.ones(2, 1, 9, 9)).shape == (2, encoder.num_features)
    assert mine(1, 9).num_features == 81


def test_names_are_listed_in_order():
    for name in ("zz", "aa", "mm"):
        register_encoder(name)(Flat)
    names = list_encoders()
    assert {"zz", "aa", "mm"} < set(names)
    assert names == sorted(names)


def test_a_factory_may_take_any_option():
    @register_encoder("open")
    def open_options(in_channels, image_size, **options):
        return FeatureAdapter(nn.Conv2d(in_channels, options["width"], 1), options["width"])

    assert create_encoder("open", width=5).num_features == 5


def test_a_name_is_registered_once():
    with pytest.raises(UsageError, match="'oscri' is registered already: choose another name"):
        register_encoder("oscri")(Flat)
    assert create_encoder("oscri").num_features == 128


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(
        UsageError,
        match=r"unknown encoder 'oscrl': did you mean 'oscri'\? Valid: mlp, oscri, precomputed, resnet18",
    ):
        create_encoder("oscrl")
    with pytest.raises(UsageError, match=r"unknown encoder 'tim/vit': did you mean 'timm/<model>'\?"):
        create_encoder("tim/vit")
    with pytest.raises(UsageError, match="unknown encoder 'timm/'"):
        create_encoder("timm/")


def test_an_unknown_option_is_answered_with_the_valid_ones():
    with pytest.raises(
        UsageError, match=r"'dropuot': did you mean 'dropout'\? Valid: depth, width, dropout$"
    ):
        create_encoder("wide_resnet", dropuot=0.1)
    with pytest.raises(UsageError, match="encoder 'small' has no option 'width': it takes no options"):
        create_encoder("small", width=2)


@pytest.mark.parametrize("channels", [0, 2, 4, -1])
def test_channels_are_one_or_three(channels: int):
    with pytest.raises(UsageError, match=f"in_channels is {channels}: set it to 1"):
        create_encoder("small", in_channels=channels)


@pytest.mark.parametrize("size", [7, 0, -8])
def test_images_have_at_least_8_px(size: int):
    with pytest.raises(UsageError, match=f"image_size is {size}: images must have at least 8 px"):
        create_encoder("small", image_size=size)


def test_a_factory_without_num_features_is_pointed_to_the_adapter():
    register_encoder("bare")(lambda in_channels, image_size: nn.Conv2d(in_channels, 4, 1))
    with pytest.raises(UsageError, match=r"'bare' has no integer num_features: wrap it in .*FeatureAdapter"):
        create_encoder("bare")


def test_a_projection_lets_embeddings_take_either_sign():
    plain, projected = (create_encoder("small", 1, projection=name) for name in ("none", "linear"))
    images = torch.randn(4, 1, 12, 12)
    assert plain(images).min() >= 0
    z_BD = projected(images)
    assert z_BD.min() < 0
    assert z_BD.shape == (4, projected.num_features) == (4, plain.num_features)
    features = projected.encoder(images)
    torch.testing.assert_close(projected.projection(features), z_BD, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="unknown projection 'linar': did you mean 'linear'"):
        create_encoder("small", projection="linar")
