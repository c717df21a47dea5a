"""Versions of a model that is changed in place: whole or not there, with their history."""

import json
import os
from dataclasses import replace

import pytest
import torch

from pmal._runtime.files import sha256
from pmal.errors import DataError, UsageError
from pmal.rejection.bundle import versions
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.bundle.versions import (
    current_version,
    digest_of,
    find_version,
    list_versions,
    restore_version,
    save_version,
)
from pmal.rejection.model import Rule
from tests.serving.tiny_model import make_model

CPU = torch.device("cpu")


@pytest.fixture(params=["model", "shipped"])
def folder(request, tmp_path):
    save_model(tmp_path / "run" / request.param, make_model(Rule("distance", 0.9)))
    return tmp_path / "run" / request.param


def change(folder, accept):
    model = replace(load_model(folder, CPU), rule=Rule("distance", accept))
    return save_version(folder, model, f"accept {accept}", digest_of(folder))


def accepts(folder):
    return load_model(folder, CPU).rule.accept


def test_both_the_model_before_and_after_are_kept(folder):
    made = change(folder, 0.8)
    first, second = list_versions(folder)
    assert (first.version, first.source, second) == (1, None, made)
    assert (second.version, second.source, second.change) == (2, 1, "accept 0.8")
    assert [accepts(find_version(folder, number)) for number in (1, 2)] == [0.9, 0.8]
    assert (accepts(folder), current_version(folder)) == (0.8, made)
    assert change(folder, 0.7).source == 2
    assert len(list_versions(folder)) == 3


def test_a_version_is_restored_as_the_newest_one(folder):
    change(folder, 0.8)
    back = restore_version(folder, 1)
    assert (back.version, back.source, back.change) == (3, 2, "version 1 restored")
    assert accepts(folder) == 0.9
    assert current_version(folder) == back
    assert digest_of(folder) == list_versions(folder)[0].digest


def test_a_model_from_elsewhere_is_kept_as_a_version_too(folder):
    change(folder, 0.8)
    save_model(folder, make_model(Rule("distance", 0.6)))  # as `pmal fit --from calibration` does
    assert current_version(folder) is None
    change(folder, 0.5)
    assert [accepts(find_version(folder, n)) for n in (1, 2, 3, 4)] == [0.9, 0.8, 0.6, 0.5]


@pytest.mark.parametrize("killed_at", range(6))
def test_killed_at_any_rename_the_model_is_the_old_or_the_new_one(folder, monkeypatch, killed_at):
    """Version 1, version 2, then two renames of the model in use."""
    change(folder, 0.8)
    rename, calls = os.rename, []

    def dying(old, new):
        calls.append(new)
        if len(calls) > killed_at:
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "rename", dying)
    try:
        change(folder, 0.7)
    except KeyboardInterrupt:
        monkeypatch.undo()
    monkeypatch.undo()
    if not folder.exists():  # between the two renames: the next save puts it back
        os.rename(folder.with_name(f".{folder.name}.old"), folder)
    assert accepts(folder) in (0.8, 0.7)
    assert current_version(folder) is not None
    assert all(accepts(find_version(folder, one.version)) for one in list_versions(folder))
    assert change(folder, 0.6).version == len(list_versions(folder))
    assert accepts(folder) == 0.6
    assert not [entry for entry in versions.versions_folder(folder).iterdir() if entry.name.startswith(".")]


def test_a_change_by_another_process_is_not_lost(folder):
    before = digest_of(folder)
    change(folder, 0.8)
    with pytest.raises(UsageError, match="changed by another process in the meantime"):
        save_version(folder, make_model(), "late", before)
    assert accepts(folder) == 0.8


def test_files_are_shared_and_none_is_changed_by_the_next_change(folder):
    change(folder, 0.8)
    kept = find_version(folder, 2)
    assert (kept / "weights.safetensors").samefile(folder / "weights.safetensors")
    sums = {file.name: sha256(file) for file in kept.iterdir()}
    change(folder, 0.7)
    assert {file.name: sha256(file) for file in kept.iterdir()} == sums


def test_without_hard_links_files_are_copied(folder, monkeypatch):
    def refused(*_):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    change(folder, 0.8)
    assert restore_version(folder, 1).version == 3
    assert accepts(folder) == 0.9


def test_what_is_damaged_or_missing_is_named(folder):
    with pytest.raises(UsageError, match=r"no version 2 of this model: it was never changed"):
        find_version(folder, 2)
    change(folder, 0.8)
    with pytest.raises(UsageError, match=r"no version 5 of this model: there are 1, 2"):
        restore_version(folder, 5)
    place = versions.versions_folder(folder)
    with pytest.raises(UsageError, match="is a version on record"):
        change(place / "1" / "model", 0.5)
    about = place / "1" / "version.json"
    good = json.loads(about.read_text())
    for bad in ({"version": 1}, {**good, "when": 3}, {**good, "version": 2}):
        about.write_text(json.dumps(bad))
        with pytest.raises(DataError, match=r"1/version\.json"):
            list_versions(folder)
    about.write_text(json.dumps({**good, "digest": "0"}))
    with pytest.raises(DataError, match=r"not the files that version\.json next to it names"):
        find_version(folder, 1)
