import json

import pytest

from pmal._runtime.files import sha256
from pmal._runtime.runs import open_run, read_settings
from pmal.errors import DataError, UsageError

SETTINGS = {"seed": 0, "training": {"epochs": 3}}


def test_settings_are_kept_and_must_stay(tmp_path):
    with open_run(tmp_path / "run", SETTINGS):
        pass
    assert read_settings(tmp_path / "run") == SETTINGS
    with open_run(tmp_path / "run", SETTINGS):
        pass
    with (
        pytest.raises(UsageError, match=r"was started with training.epochs = 3, not 5: choose another --out"),
        open_run(tmp_path / "run", {"seed": 0, "training": {"epochs": 5}}),
    ):
        pass


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty and holds no run"), open_run(tmp_path, SETTINGS):
        pass
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_processes_cannot_write_to_one_run(tmp_path):
    with (
        open_run(tmp_path, SETTINGS),
        pytest.raises(UsageError, match="another process is working"),
        open_run(tmp_path, SETTINGS),
    ):
        pass


def test_the_manifest_holds_checksums(tmp_path):
    with open_run(tmp_path, SETTINGS) as run:
        run.log(stage="x", epoch=1)
        run.seal({"seed": 0})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["sha256"] == {"config.toml": sha256(tmp_path / "config.toml")}


def test_not_a_run(tmp_path):
    with pytest.raises(DataError, match="not a run folder"):
        read_settings(tmp_path)
