import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from pmal.encoders import FeatureAdapter, create_encoder, lower_half, upper_half
from pmal.errors import Interrupted, UsageError
from tests.support.command_line import assert_one_line_error


class Returns(nn.Module):
    """Gives back what it was made with, whatever the image."""

    def __init__(self, output: object) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> object:
        return self.output


@settings(deadline=None)  # The first example pays for loading torch's kernels.
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
def test_maps_are_averaged_over_their_pixels(batch: int, channels: int, height: int, width: int):
    maps = torch.rand(batch, channels, height, width, dtype=torch.float64)
    adapter = FeatureAdapter(Returns(maps))
    assert adapter.num_features == channels
    expected = [[sum(m.flatten().tolist()) / (height * width) for m in sample] for sample in maps]
    torch.testing.assert_close(adapter(maps), torch.tensor(expected, dtype=torch.float64))


def test_features_pass_unchanged():
    features = torch.randn(2, 5)
    assert FeatureAdapter(Returns(features))(torch.zeros(2, 3, 8, 8)) is features


def test_a_dry_run_leaves_the_module_as_it_was():
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5))
    body[1].eval()
    before = {key: value.clone() for key, value in body.state_dict().items()}
    random_state = torch.get_rng_state()
    assert FeatureAdapter(body, in_channels=1, image_size=8).num_features == 4
    assert [module.training for module in body] == [True, False, True]
    assert all(torch.equal(before[key], value) for key, value in body.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_the_dry_run_uses_the_dtype_of_the_module():
    assert FeatureAdapter(nn.Conv2d(3, 6, 1).double()).num_features == 6


def test_a_given_number_of_features_needs_no_dry_run():
    body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 10 * 10, 4))
    assert FeatureAdapter(body, num_features=4)(torch.zeros(2, 3, 10, 10)).shape == (2, 4)


def test_a_failing_dry_run_names_the_module_and_the_size():
    body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 10 * 10, 4))
    with pytest.raises(
        UsageError, match=r"^the wrapped Sequential fails on an image of 3 x 32 x 32 \(.+\): set"
    ):
        FeatureAdapter(body)
    assert FeatureAdapter(body, image_size=10).num_features == 4


class Slow(nn.Module):
    """So slow that its user gives up."""

    def forward(self, images: Tensor) -> Tensor:
        signal.raise_signal(signal.SIGINT)
        return images


def test_ctrl_c_within_a_foreign_module_is_no_fault_of_it(raising: None):
    with pytest.raises(Interrupted, match=r"^interrupted: go on$"):
        FeatureAdapter(Slow())


@pytest.mark.parametrize(
    ("output", "got"),
    [(torch.zeros(2, 3, 4), r"shape \(2, 3, 4\)"), ((1, 2), "a tuple"), ({"out": 1}, "a dict")],
)
def test_other_outputs_are_refused(output: object, got: str):
    with pytest.raises(UsageError, match=rf"maps \(B, D, H, W\), not {got}"):
        FeatureAdapter(Returns(output))


def test_a_broken_promise_is_told():
    adapter = FeatureAdapter(nn.Conv2d(3, 6, 1), num_features=7)
    with pytest.raises(UsageError, match="the wrapped Conv2d returned 6 features, but 7 were promised"):
        adapter(torch.zeros(1, 3, 8, 8))


def fake_timm(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    calls = []

    def create_model(name: str, pretrained: bool, num_classes: int, in_chans: int) -> nn.Module:
        assert not pretrained
        calls.append((name, num_classes, in_chans))
        if name == "missing":
            raise RuntimeError("Unknown model (missing)\nsecond line")
        if name == "of_12_px":
            return nn.Sequential(nn.Flatten(), nn.Linear(in_chans * 12 * 12, 6))
        return nn.Conv2d(in_chans, 6, 3)

    module = ModuleType("timm")
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


class FakeVision(nn.Module):
    """A body of 5 features and a head under the name that torchvision's families use."""

    def __init__(self, head: str | None) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 5, 1), nn.Flatten())
        self.head_name = head
        if head:
            setattr(self, head, nn.Linear(5, 1000))

    def forward(self, images: Tensor) -> Tensor:
        features = self.features(images)
        return getattr(self, self.head_name)(features) if self.head_name else features


def fake_torchvision(monkeypatch: pytest.MonkeyPatch, head: str | None) -> list[tuple[str, object]]:
    calls = []

    def get_model(name: str, weights: object) -> nn.Module:
        calls.append((name, weights))
        if name == "missing":
            raise ValueError("Unknown model missing")
        return FakeVision(head)

    module = ModuleType("torchvision")
    module.models = SimpleNamespace(get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", module)
    return calls


@pytest.mark.parametrize("channels", [1, 3])
def test_timm_models_come_without_head(monkeypatch: pytest.MonkeyPatch, channels: int):
    calls = fake_timm(monkeypatch)
    encoder = create_encoder("timm/vit_tiny", in_channels=channels, image_size=16)
    assert calls == [("vit_tiny", 0, channels)]
    assert encoder.num_features == 6
    assert encoder(torch.zeros(2, channels, 16, 16)).shape == (2, 6)


def test_ctrl_c_while_a_library_builds_a_model_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    fake_timm(monkeypatch)
    monkeypatch.setattr(sys.modules["timm"], "create_model", lambda *_, **__: Slow())
    ended = call("fit", "--encoder", "timm/slow", "--out", tmp_path / "run", "--json")
    assert_one_line_error(ended, 130, "interrupted: run the same command again")


def test_the_image_size_reaches_the_dry_run(monkeypatch: pytest.MonkeyPatch):
    fake_timm(monkeypatch)
    assert create_encoder("timm/of_12_px", image_size=12).num_features == 6
    with pytest.raises(UsageError, match="fails on an image of 3 x 224 x 224"):
        create_encoder("timm/of_12_px")


@pytest.mark.parametrize("head", ["fc", "classifier", "head", "heads"])
def test_torchvision_models_lose_their_head(monkeypatch: pytest.MonkeyPatch, head: str):
    calls = fake_torchvision(monkeypatch, head)
    encoder = create_encoder("torchvision/resnet34")
    assert calls == [("resnet34", None)]
    assert encoder.num_features == 5
    assert encoder(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
    assert sum(p.numel() for p in encoder.parameters()) == 3 * 5 + 5


def test_torchvision_models_without_a_known_head_are_refused(monkeypatch: pytest.MonkeyPatch):
    fake_torchvision(monkeypatch, None)
    with pytest.raises(UsageError, match="'torchvision/raft' has no fc, classifier, head or heads"):
        create_encoder("torchvision/raft")


def test_torchvision_models_take_color_alone(monkeypatch: pytest.MonkeyPatch):
    fake_torchvision(monkeypatch, "fc")
    with pytest.raises(UsageError, match="'torchvision/resnet34' takes images of 3 channels, not 1"):
        create_encoder("torchvision/resnet34", in_channels=1)


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_missing_library_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch, library: str):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        UsageError, match=rf"^encoder '{library}/x' needs {library}, .*: pip install {library}$"
    ):
        create_encoder(f"{library}/x")


def test_a_model_the_library_does_not_have_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch):
    fake_timm(monkeypatch)
    fake_torchvision(monkeypatch, "fc")
    for library in ("timm", "torchvision"):
        with pytest.raises(
            UsageError, match=rf"^{library} cannot build 'missing' \(Unknown model.+$"
        ) as caught:
            create_encoder(f"{library}/missing")
        assert "\n" not in str(caught.value)


def test_library_models_take_no_options(monkeypatch: pytest.MonkeyPatch):
    fake_timm(monkeypatch)
    with pytest.raises(UsageError, match="'timm/vit_tiny' has no option 'pretrained': it takes no options"):
        create_encoder("timm/vit_tiny", pretrained=True)


def test_a_name_that_would_fetch_from_a_hub_is_refused(monkeypatch: pytest.MonkeyPatch):
    fake_timm(monkeypatch)
    with pytest.raises(UsageError, match="without ':'"):
        create_encoder("timm/hf-hub:someone/something")


class Branching(nn.Module):
    """Its layers are not simply one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.one(images) * self.two(images)


@pytest.mark.parametrize("encoder", [FeatureAdapter(Branching()), Branching(), nn.Flatten()])
def test_what_cannot_be_cut_begins_with_the_images(encoder: nn.Module):
    images = torch.rand(2, 3, 4, 4)
    assert lower_half(encoder, images) is images
    assert torch.equal(upper_half(encoder, images), encoder(images))


def test_a_layer_that_is_used_twice_is_used_twice_in_halves():
    relu = nn.ReLU()
    body = nn.Sequential(nn.Conv2d(3, 4, 1), relu, nn.Conv2d(4, 4, 1), relu)
    encoder, images = FeatureAdapter(body), torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(upper_half(encoder, lower_half(encoder, images)), encoder(images))
    assert lower_half(encoder, images).min() == 0
