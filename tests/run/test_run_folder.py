import json
from dataclasses import replace

import pytest

from pmal._runtime.files import sha256
from pmal.config import MiningConfig, RejectionConfig, RunConfig, TrainingConfig
from pmal.errors import DataError, UsageError
from pmal.run.run_folder import REDOING, changed_settings, open_run, read_config

SETTINGS = RunConfig(training=TrainingConfig(epochs=3))


def test_settings_are_kept_and_must_stay(tmp_path):
    with open_run(tmp_path / "run", SETTINGS):
        pass
    assert read_config(tmp_path / "run") == SETTINGS
    with open_run(tmp_path / "run", SETTINGS):
        pass
    with (
        pytest.raises(
            UsageError, match=r"was started with training.epochs = 3, not 5: choose another folder \(out\)"
        ),
        open_run(tmp_path / "run", RunConfig(training=TrainingConfig(epochs=5))),
    ):
        pass


@pytest.mark.parametrize(
    ("start", "other"),
    [
        ("mining", replace(SETTINGS, training=TrainingConfig(epochs=5))),
        ("optimization", replace(SETTINGS, mining=MiningConfig(per_class=2))),
        ("calibration", replace(SETTINGS, method_options={"a": 1})),
        ("evaluation", replace(SETTINGS, rejection=RejectionConfig(accept=0.5))),
    ],
)
def test_settings_of_what_is_not_done_anew_must_stay(tmp_path, start, other):
    with open_run(tmp_path, SETTINGS):
        pass
    with pytest.raises(UsageError, match="was started with"), open_run(tmp_path, other, start):
        pass


def test_a_setting_that_one_side_alone_has_is_a_difference(tmp_path):
    with open_run(tmp_path, replace(SETTINGS, method_options={"a": 1})):
        pass
    found = set(changed_settings(tmp_path, replace(SETTINGS, method_options={"b": 2})))
    assert found == {("method_options.a", 1, None), ("method_options.b", None, 2)}


NEW = replace(SETTINGS, rejection=RejectionConfig(accept=0.5))


@pytest.fixture
def finished(tmp_path):
    """A run with results of a stage that stays and of one that is done anew."""
    with open_run(tmp_path, SETTINGS):
        (tmp_path / "optimization").mkdir()
        (tmp_path / "model").mkdir()
    return tmp_path


def test_a_run_is_done_anew_from_the_stage_that_was_named(finished):
    with open_run(finished, NEW, "calibration") as run:
        assert read_config(finished) == SETTINGS  # as long as their results are there
        run.begin("optimization")
        assert (finished / "optimization").exists()
        assert (finished / "model").exists()
        run.begin("calibration")
        assert (finished / "optimization").exists()
        assert not (finished / "model").exists()
        assert read_config(finished) == NEW
    assert not (finished / REDOING).exists()


def interrupt_after_calibration(path, config):
    with open_run(path, config, "calibration") as run:
        run.begin("calibration")
        (path / "model").mkdir()
        raise KeyboardInterrupt


def test_the_same_command_after_an_interruption_goes_on(finished):
    with pytest.raises(KeyboardInterrupt):
        interrupt_after_calibration(finished, NEW)
    with open_run(finished, NEW, "calibration") as run:
        run.begin("calibration")
        assert (finished / "model").exists()
    with open_run(finished, NEW, "calibration") as run:  # it was finished: now from the start
        run.begin("calibration")
        assert not (finished / "model").exists()


def test_another_command_after_an_interruption_does_not_go_on(finished, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        interrupt_after_calibration(finished, NEW)

    def die(*_):
        raise KeyboardInterrupt

    with open_run(finished, SETTINGS, "calibration") as run:
        with monkeypatch.context() as patched:
            patched.setattr("pmal.run.run_folder.discard", die)
            with pytest.raises(KeyboardInterrupt):
                run.begin("calibration")
        assert not (finished / REDOING).exists()  # which would say of what is left that it is whole
        run.begin("calibration")
        assert not (finished / "model").exists()


def test_hidden_files_do_not_fill_a_folder(tmp_path):
    (tmp_path / ".DS_Store").touch()
    with open_run(tmp_path, SETTINGS):
        assert read_config(tmp_path) == SETTINGS


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
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "x.json").write_text(folder)
        run.seal({"seed": 0})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["seed"] == 0
    assert manifest["sha256"] == {
        name: sha256(tmp_path / name) for name in ("a/x.json", "b/x.json", "config.toml")
    }


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
