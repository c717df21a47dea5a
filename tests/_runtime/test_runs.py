import json

import pytest

from pmal._runtime.files import sha256
from pmal._runtime.runs import open_run, read_config
from pmal.config import RunConfig, TrainingConfig
from pmal.errors import DataError, UsageError

SETTINGS = RunConfig(training=TrainingConfig(epochs=3))


def test_settings_are_kept_and_must_stay(tmp_path):
    with open_run(tmp_path / "run", SETTINGS):
        pass
    assert read_config(tmp_path / "run") == SETTINGS
    with open_run(tmp_path / "run", SETTINGS):
        pass
    with (
        pytest.raises(UsageError, match=r"was started with training.epochs = 3, not 5: choose another --out"),
        open_run(tmp_path / "run", RunConfig(training=TrainingConfig(epochs=5))),
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
        read_config(tmp_path)


def test_a_run_of_an_older_version_is_taken_up_when_a_setting_is_new(tmp_path):
    with open_run(tmp_path, SETTINGS):
        pass
    text = (tmp_path / "config.toml").read_text()
    assert "ema = 0.0\n" in text
    (tmp_path / "config.toml").write_text(text.replace("ema = 0.0\n", ""))
    with open_run(tmp_path, SETTINGS):
        pass


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    with open_run(tmp_path, SETTINGS):
        pass
    (tmp_path / "classifiers").mkdir()
    (tmp_path / "classifiers" / ".weights.safetensors.0a1b2c3d.tmp").touch()
    with open_run(tmp_path, SETTINGS):
        assert not list((tmp_path / "classifiers").iterdir())


def test_settings_that_are_not_text_are_not_a_run(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a run folder"):
        read_config(tmp_path)
