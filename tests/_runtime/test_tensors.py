import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pmal._runtime import tensors as module
from pmal._runtime.files import sha256
from pmal._runtime.tensors import (
    delete_tensors,
    has_tensors,
    load_tensors,
    read_about,
    save_tensors,
    write_safetensors,
)
from pmal.errors import DataError


@pytest.fixture
def saved(tmp_path):
    save_tensors(tmp_path / "weights", {"w": torch.arange(1000.0)}, {"step": 3})
    return tmp_path


def test_round_trip(saved):
    tensors, about = load_tensors(saved / "weights")
    assert torch.equal(tensors["w"], torch.arange(1000.0))
    assert about == {"step": 3}


def test_what_is_said_of_tensors_needs_no_tensors(saved):
    for file in saved.glob("*.safetensors"):
        file.unlink()
    assert read_about(saved / "weights") == {"step": 3}
    assert read_about(saved / "others") == {}
    for foreign in ("[]", '{"tensors": "w", "sha256": "", "about": [1]}'):
        (saved / "weights.json").write_text(foreign)
        with pytest.raises(DataError, match="not written by pmal"):
            read_about(saved / "weights")


def test_saving_again_replaces_and_leaves_two_files(saved):
    for step in range(4, 9):
        save_tensors(saved / "weights", {"w": torch.full((5,), float(step))}, {"step": step})
        assert load_tensors(saved / "weights")[0]["w"][0] == step
        assert len(list(saved.iterdir())) == 2


def test_a_process_killed_before_the_pointer_is_written_keeps_the_old(saved, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("pmal._runtime.tensors.write_json", die)
    with pytest.raises(KeyboardInterrupt):
        save_tensors(saved / "weights", {"w": torch.zeros(5)}, {"step": 9})
    assert load_tensors(saved / "weights")[1] == {"step": 3}


def test_one_flipped_byte_is_found(saved):
    file = saved / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"weights.safetensors: damaged"):
        load_tensors(saved / "weights")


def test_truncated_missing_and_foreign_files_are_named(saved):
    file = saved / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"weights.safetensors: damaged"):
        load_tensors(saved / "weights")
    file.unlink()
    with pytest.raises(DataError, match=r"weights.safetensors: missing"):
        load_tensors(saved / "weights")
    (saved / "weights.json").write_text("[]")
    with pytest.raises(DataError, match=r"weights.json: not written by pmal"):
        load_tensors(saved / "weights")


def test_the_pointer_cannot_lead_out_of_its_folder(saved, tmp_path):
    inside = saved / "run"
    inside.mkdir()
    text = (saved / "weights.json").read_text().replace("weights.safetensors", "../weights.safetensors")
    (inside / "weights.json").write_text(text)
    with pytest.raises(DataError, match="missing"):
        load_tensors(inside / "weights")


@pytest.mark.parametrize(
    "change", [delete_tensors, lambda path: save_tensors(path, {"w": torch.zeros(1)}, {})]
)
def test_a_pointer_that_leads_out_of_its_folder_deletes_nothing_there(saved, change):
    inside = saved / "run"
    inside.mkdir()
    text = (saved / "weights.json").read_text().replace("weights.safetensors", "../weights.safetensors")
    (inside / "weights.json").write_text(text)
    change(inside / "weights")
    assert torch.equal(load_tensors(saved / "weights")[0]["w"], torch.arange(1000.0))


def test_a_file_of_another_kind_is_refused_even_with_its_checksum(saved):
    file = saved / "weights.safetensors"
    file.write_bytes(b"no tensors")
    entry = json.loads((saved / "weights.json").read_text()) | {"sha256": sha256(file)}
    (saved / "weights.json").write_text(json.dumps(entry))
    with pytest.raises(DataError, match=r"weights\.safetensors: not a safetensors file"):
        load_tensors(saved / "weights")


def test_tensors_that_cannot_be_written_are_told_by_file(saved, monkeypatch):
    def fail(*_):
        raise OSError(28, "no room")

    monkeypatch.setattr("pmal._runtime.tensors._write_all", fail)
    with pytest.raises(OSError, match="no room") as caught:
        save_tensors(saved / "weights", {"w": torch.zeros(1)}, {})
    assert caught.value.filename == str(saved / "weights.next.safetensors")
    assert load_tensors(saved / "weights")[1] == {"step": 3}
    assert sorted(file.name for file in saved.iterdir()) == ["weights.json", "weights.safetensors"]


def test_a_file_has_the_bytes_that_safetensors_writes(tmp_path):
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (0,), (3,), (2, 5), (1, 0, 4), (7, 1, 2)]
    kinds = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.int32]
    tensors = {
        f'{name} "{i}"\n': (100 * torch.rand(shape, generator=generator)).to(kind)
        for name in ("z", "\u00e9")
        for i, kind in enumerate([*kinds, torch.float32, torch.float64, torch.int64])
        for shape in [shapes[(i + len(name)) % len(shapes)]]
    }
    for metadata in (None, {"model.json": "\u00e9\t"}):
        save_file(tensors, tmp_path / "theirs", metadata)
        write_safetensors(tmp_path / "ours", tensors, metadata)
        assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_view_is_saved_as_what_it_shows(tmp_path):
    w = torch.arange(6.0).reshape(2, 3)
    save_tensors(tmp_path / "weights", {"w": w.T}, {})
    assert torch.equal(load_tensors(tmp_path / "weights")[0]["w"], w.T)


def test_delete(saved):
    delete_tensors(saved / "weights")
    assert not has_tensors(saved / "weights")
    assert not list(saved.iterdir())
    delete_tensors(saved / "weights")


@pytest.mark.parametrize("foreign", ['{"mine": 1}', '["tensors"]', "3"])
def test_a_foreign_file_is_not_overwritten(tmp_path, foreign):
    (tmp_path / "weights.json").write_text(foreign)
    with pytest.raises(DataError, match=r"weights\.json: not written by pmal"):
        save_tensors(tmp_path / "weights", {"w": torch.zeros(1)}, {})
    assert (tmp_path / "weights.json").read_text() == foreign


def test_a_file_that_the_system_does_not_open_is_an_error_of_the_system(tmp_path, monkeypatch):
    """safetensors has a RuntimeError for it, which would be a traceback."""
    save_tensors(tmp_path / "t", {"x": torch.zeros(2)}, {})

    def refuse(file):
        raise RuntimeError(f"unable to open file <{file}> in read-only mode: Too many open files (24)")

    monkeypatch.setattr(module, "load_file", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        load_tensors(tmp_path / "t")


def test_files_that_could_not_be_deleted_are_deleted_the_next_time(saved, monkeypatch):
    """They have no pointer then, and stayed in the run for good."""
    path, unlink = saved / "weights", Path.unlink

    def refuse(self, missing_ok=False):
        if self.suffix == ".safetensors":
            raise PermissionError(f"{self}: not now")
        unlink(self, missing_ok=missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(PermissionError):
            save_tensors(path, {"w": torch.zeros(1)}, {})  # the new is there, and the old one, too
        with pytest.raises(PermissionError):
            delete_tensors(path)
    assert len(list(saved.glob("weights*.safetensors"))) == 2
    delete_tensors(path)
    assert list(saved.iterdir()) == []
