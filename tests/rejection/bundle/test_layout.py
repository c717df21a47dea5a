"""An older bundle is replaced when the new one is whole, and nothing else is ever replaced."""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from pmal.errors import DataError, PmalError, UsageError
from pmal.rejection.bundle.layout import parse_json, read_sums, read_verified
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from tests.serving.bundles import NAMES, answers, listing, load, make_model, make_network, softmax


def test_saving_again_replaces(folder):
    before = answers(folder)
    save_model(folder, make_model(make_network(1)))
    assert not torch.equal(answers(folder), before)
    save_model(folder, softmax(Rule("logit"), calibrated=True))
    assert "reference.safetensors" not in listing(folder)
    assert listing(folder.parent) == ["model"]


def test_a_save_through_a_link_replaces_what_it_leads_to(folder, tmp_path):
    (tmp_path / "latest").symlink_to(folder)
    save_model(tmp_path / "latest", make_model(make_network(1)))
    assert (tmp_path / "latest").is_symlink()
    assert torch.equal(answers(folder), answers(tmp_path / "latest"))
    assert listing(tmp_path) == ["latest", "model"]


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "model").mkdir()
    save_model(tmp_path / "model", softmax(Rule("logit"), calibrated=True))
    assert load(tmp_path / "model").class_names == NAMES


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("notes.txt", "mine"),
        ("model.json", "{}"),
        ("model.json", "["),
        ("model.json", '{"format": "other"}'),
    ],
)
def test_a_folder_that_is_no_bundle_is_left_alone(tmp_path, name, content):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(UsageError, match="photos is not empty and holds no model: choose another"):
        save_model(folder, make_model(make_network()))
    assert listing(folder) == [name]
    assert (folder / name).read_text() == content
    assert listing(tmp_path) == ["photos"]


def test_a_file_in_place_of_the_folder_is_left_alone(tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        save_model(tmp_path / "model", make_model(make_network()))
    with pytest.raises(UsageError, match="cannot write to"):
        save_model(tmp_path / "model" / "model", make_model(make_network()))
    assert (tmp_path / "model").read_text() == "mine"


def test_a_bundle_with_somebody_elses_file_is_left_alone(folder):
    (folder / "README.md").write_text("mine")
    with pytest.raises(UsageError, match=r"README\.md is no part of a model"):
        save_model(folder, make_model(make_network(1)))
    assert (folder / "README.md").read_text() == "mine"
    load(folder)


def fail(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_keeps_the_old(folder, monkeypatch):
    before = answers(folder)
    monkeypatch.setattr("pmal.rejection.bundle.saving.write_safetensors", fail)
    with pytest.raises(PmalError, match=r"model: cannot be written .No space left on device"):
        save_model(folder, make_model(make_network(1)))
    assert torch.equal(answers(folder), before)
    assert listing(folder.parent) == ["model"]


def test_an_old_model_that_cannot_be_deleted_is_deleted_by_the_next_save(folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pmal.rejection.bundle.layout.shutil.rmtree", fail)
        save_model(folder, make_model(make_network(1)))
    assert listing(folder.parent) == [".model.old", "model"]
    after = answers(folder)
    save_model(folder, make_model(make_network(1)))
    assert torch.equal(answers(folder), after)
    assert listing(folder.parent) == ["model"]


class Killed(BaseException):
    """Nothing catches it, and nothing that is called afterwards does anything."""


def kill_after(monkeypatch, calls):
    """The process dies at a call that changes the folder, and takes part in nothing after it."""
    done = []

    def counted(function):
        def call(*arguments):
            done.append(function)
            if len(done) > calls:
                raise Killed
            return function(*arguments)

        return call

    for module, name in ((os, "rename"), (shutil, "rmtree"), (os, "replace")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))


# Five files are moved into place inside the new folder; then old aside, new into place, old deleted.
@pytest.mark.slow
@pytest.mark.parametrize("calls", range(9))
def test_a_killed_process_leaves_the_old_or_the_new_or_both(folder, tmp_path, monkeypatch, calls):
    save_model(tmp_path / "expected", make_model(make_network(1)))
    old, new = answers(folder), answers(tmp_path / "expected")
    shutil.rmtree(tmp_path / "expected")
    with monkeypatch.context() as patch:
        kill_after(patch, calls)
        if calls < 8:
            with pytest.raises(Killed):
                save_model(folder, make_model(make_network(1)))
        else:
            save_model(folder, make_model(make_network(1)))
    if calls == 6:
        with pytest.raises(DataError, match=r"interrupted: rename .*/\.model\.old to model"):
            load(folder)
        assert torch.equal(answers(tmp_path / ".model.old"), old)
    else:
        assert torch.equal(answers(folder), old if calls < 6 else new)
    # What was left does not stand in the way of the next save, which fails here: the best of both stays.
    monkeypatch.setattr("pmal.rejection.bundle.saving.write_safetensors", fail)
    with pytest.raises(PmalError, match="No space left"):
        save_model(folder, make_model(make_network(2)))
    assert torch.equal(answers(folder), old if calls < 7 else new)
    assert listing(tmp_path) == ["model"]


def test_a_foreign_folder_beside_is_not_deleted(folder, tmp_path):
    (tmp_path / ".model.new").mkdir()
    (tmp_path / ".model.new" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"mine\.txt is no part of a model: move it away"):
        save_model(folder, make_model(make_network(1)))
    assert (tmp_path / ".model.new" / "mine.txt").read_text() == "mine"


def test_a_foreign_folder_is_not_taken_for_an_older_bundle(tmp_path):
    (tmp_path / ".model.old").mkdir()
    (tmp_path / ".model.old" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"\.model\.old/mine\.txt is no part of a model: move it away"):
        save_model(tmp_path / "model", make_model(make_network()))
    assert listing(tmp_path) == [".model.old"]


@pytest.mark.parametrize("name", [".notes", "weights.safetensors", ".mine.tmp"])
def test_what_only_looks_like_a_part_of_a_bundle_is_left_alone(folder, name):
    path = folder / name
    path.unlink(missing_ok=True)
    if name == ".notes":
        path.write_text("mine")
    else:
        path.mkdir()
    with pytest.raises(UsageError, match=rf"{name} is no part of a model"):
        save_model(folder, make_model(make_network(1)))
    assert path.exists()


def test_one_save_at_a_time(folder, monkeypatch):
    locked = []
    monkeypatch.setattr(fcntl, "flock", lambda _, how: locked.append(how))
    save_model(folder, make_model(make_network(1)))
    assert locked == [fcntl.LOCK_EX]


def test_files_are_read_up_to_the_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    sums = {"a": hashlib.sha256(b"12345").hexdigest()}
    assert read_verified(tmp_path, "a", sums, 5) == b"12345"
    with pytest.raises(DataError, match="a: larger than 0 MiB: not written by pmal"):
        read_verified(tmp_path, "a", sums, 4)


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a").touch()
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=r"a: not readable .Permission denied"):
        read_verified(tmp_path, "a", {"a": ""})


@pytest.mark.parametrize("digest", [3, None, "", "0" * 63, "0" * 65, "G" * 64, ["0" * 64]])
def test_what_is_no_checksum_is_refused(tmp_path, digest):
    (tmp_path / "sha256.json").write_text(json.dumps({"model.json": digest}))
    with pytest.raises(DataError, match=r"sha256\.json: not a list of checksums"):
        read_sums(tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(number):
    with pytest.raises(DataError, match=f"a: not readable as JSON .{number} is no JSON"):
        parse_json(Path("a"), b'{"b": %s}' % number.encode())
