import shutil

import pytest

from pmal.config import RunConfig
from pmal.errors import UsageError
from pmal.methods import METHODS
from pmal.run.stages import STAGE_NAMES, STAGES, check_stages, discard

LEFT = {
    "classifiers": ["classifiers/0/weights.json", "classifiers/1/weights.json"],
    "embeddings": ["embeddings/0.json", "embeddings/1.json"],
    "mining": [
        "prototypes.json",
        "prototypes.next.safetensors",
        "quality.json",
        "quality.safetensors",
        "audit/audit.csv",
    ],
    "optimization": ["optimization/weights.json"],
    "calibration": ["model/model.json", "model.onnx", "model.md"],
    "evaluation": ["metrics.json", "manifest.json"],
}


@pytest.fixture
def run(tmp_path):
    for files in LEFT.values():
        for name in files:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("{}")
    (tmp_path / "config.toml").write_text("")
    return tmp_path


@pytest.mark.parametrize("start", STAGE_NAMES)
def test_discards_a_stage_and_all_after_it(run, start):
    discard(run, start)
    first = STAGE_NAMES.index(start)
    for index, stage in enumerate(STAGE_NAMES):
        assert all((run / name).exists() == (index < first) for name in LEFT[stage])
    assert (run / "config.toml").exists()


def test_what_comes_last_is_discarded_first(run, monkeypatch):
    def die(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(KeyboardInterrupt):
        discard(run, "mining")
    assert not (run / "metrics.json").exists()
    assert (run / "model").exists()
    assert (run / "prototypes.json").exists()


@pytest.mark.parametrize("missing", STAGE_NAMES[:-1])
def test_a_stage_alone_needs_those_before_it(run, missing):
    later = STAGE_NAMES[STAGE_NAMES.index(missing) + 1 :]
    for only in later:
        check_stages(RunConfig(), run, None, only)
    (run / LEFT[missing][0]).unlink()
    for only in later:
        with pytest.raises(
            UsageError, match=f"stage {only} needs {missing} done: run --only {missing} first"
        ):
            check_stages(RunConfig(), run, None, only)


def test_stages_that_do_not_exist_or_contradict_are_named(run):
    with pytest.raises(UsageError, match="unknown stage of method pmal 'minning': did you mean 'mining'"):
        check_stages(RunConfig(), run, "minning", None)
    with pytest.raises(UsageError, match="unknown stage of method softmax 'mining'"):
        check_stages(RunConfig(method="softmax"), run, None, "mining")
    for only in ("classifiers", "calibration"):
        with pytest.raises(UsageError, match="both must name the same stage"):
            check_stages(RunConfig(), run, "mining", only)
    check_stages(RunConfig(), run, "mining", "mining")


def test_every_stage_says_what_it_leaves_and_writes_that_last():
    for stage in STAGES:
        root = stage.last.partition("/")[0]
        assert root in stage.files, f"{stage.name}: {stage.last} would stay when the stage is redone"
    assert [stage.name for stage in STAGES if stage.belongs_to(METHODS["softmax"])] == [
        "classifiers",
        "calibration",
        "evaluation",
    ]
    assert [stage.name for stage in STAGES if not stage.belongs_to(METHODS["openmax"])] == [
        "embeddings",
        "mining",
    ]
