"""Vision models of transformers, frozen, from a folder or the hub's cache, and again from a description."""

import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file

from pmal.encoders.pretrained import names as names_module
from pmal.encoders.pretrained.backbone import backbone_digest
from pmal.encoders.pretrained.creating import create_backbone, rebuild_backbone
from pmal.errors import DataError, UsageError
from tests.encoders.pretrained.tiny_models import SIDES, change_json, features_by_hand, save_tiny

FAMILIES = tuple(SIDES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: (folder / family, save_tiny(family, folder / family)) for family in FAMILIES}


@pytest.fixture
def vit(saved, tmp_path):
    """A folder to be damaged."""
    return shutil.copytree(saved["vit"][0], tmp_path / "vit")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def some_pixels(side, count=3):
    shape = (count, 3, side, side)
    return torch.randint(0, 256, shape, generator=torch.manual_seed(1)).to(torch.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_the_library_and_a_description_is_enough(family, saved, no_network):
    folder, model = saved[family]
    backbone = create_backbone(f"hf/{folder}")
    side, crop = SIDES[family]
    assert (backbone.image_size, backbone.body.crop) == (side, crop)
    pixels = some_pixels(side)
    found = backbone(pixels)
    assert found.dtype == torch.float32
    assert found.std(dim=0).max() > 0
    torch.testing.assert_close(found, features_by_hand(family, model, pixels), rtol=1e-4, atol=1e-5)
    assert not any(weight.requires_grad for weight in backbone.parameters())
    again = rebuild_backbone(backbone.description())
    assert not torch.equal(again(pixels), found)
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(pixels), found)
    assert backbone_digest(again) == backbone_digest(backbone)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_weights_takes_the_place_of_those_in_the_folder(family, saved, tmp_path):
    folder, _ = saved[family]
    backbone = create_backbone(f"hf/{folder}")
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    save_file(backbone.state_dict(), tmp_path / "ours.safetensors")
    pixels = some_pixels(backbone.image_size)
    for file in (folder / "model.safetensors", tmp_path / "ours.safetensors"):
        assert torch.equal(create_backbone(f"hf/{bare}", weights=str(file))(pixels), backbone(pixels))


@pytest.mark.slow
def test_a_relative_folder_is_one_and_the_cache_of_the_hub_is_another(
    saved, tmp_path, monkeypatch, no_network
):
    folder, _ = saved["vit"]
    shutil.copytree(folder, tmp_path / "mine")
    shutil.copytree(folder, tmp_path / "hub" / "models--some--vit" / "snapshots" / "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    expected = create_backbone(f"hf/{folder}").state_dict()
    for name in ("hf/./mine", "hf/some/vit"):
        found = create_backbone(name)
        assert found.description()["name"] == name
        assert all(torch.equal(tensor, expected[key]) for key, tensor in found.state_dict().items())


def test_weights_in_several_files_are_put_together(vit):
    whole = load_file(vit / "model.safetensors")
    expected = create_backbone(f"hf/{vit}").state_dict()
    (vit / "model.safetensors").unlink()
    for i, part in enumerate([sorted(whole)[::2], sorted(whole)[1::2]]):
        save_file({name: whole[name] for name in part}, vit / f"model-{i}.safetensors")
    with pytest.raises(DataError, match=r"holds 2 \.safetensors files but no model\.safetensors"):
        create_backbone(f"hf/{vit}")
    index = vit / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-0.safetensors", "b": "model-1.safetensors"}}')
    found = create_backbone(f"hf/{vit}").state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in found.items())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"auto_map": {"AutoModel": "evil.Model"}}, "names code of its own"),
        ({"model_type": "evil"}, "models of type 'evil' are not built: valid are dinov2, vit, clip"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000: expected a whole number"),
        ({"hidden_act": "kernels/evil"}, "hidden_act is kernels/evil: expected gelu or"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"image_size": 64}, "makes no model of images of 32 px"),
    ],
)
def test_a_configuration_that_is_not_built_is_refused_in_one_line(vit, fields, message):
    change_json(vit / "config.json", **fields)
    with pytest.raises(DataError, match=message) as caught:
        create_backbone(f"hf/{vit}")
    assert str(vit / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: shutil.rmtree(f), "no such folder"),
        (lambda f: (f / "config.json").unlink(), "holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not readable as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "not the configuration of a model"),
        (lambda f: (f / "model.safetensors").unlink(), r"holds no \.safetensors file"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x02pickle"), "not a safetensors file"),
        (lambda f: (f / "preprocessor_config.json").unlink(), "holds no preprocessor_config.json"),
    ],
)
def test_a_broken_folder_is_told_of_in_one_line(vit, damage, message):
    damage(vit)
    with pytest.raises(DataError, match=message) as caught:
        create_backbone(f"hf/{vit}")
    assert "\n" not in str(caught.value)


def test_weights_of_another_network_are_refused_by_the_name_of_a_tensor(vit, saved):
    other = str(saved["resnet"][0] / "model.safetensors")
    with pytest.raises(DataError, match=r"lacks the tensor embeddings.cls_token"):
        create_backbone(f"hf/{vit}", weights=other)
    whole = load_file(vit / "model.safetensors")
    save_file({**whole, "vit.layernorm.bias": torch.zeros(7)}, vit / "model.safetensors")
    with pytest.raises(DataError, match=r"layernorm.bias has shape \(7,\) instead of \(32,\)"):
        create_backbone(f"hf/{vit}")


def test_without_the_package_one_line_says_what_to_install(vit, monkeypatch):
    monkeypatch.setattr(names_module, "_is_installed", lambda package: False)
    with pytest.raises(UsageError, match=r"transformers, which is not installed: pip install 'pmal\[pretr"):
        create_backbone(f"hf/{vit}")
