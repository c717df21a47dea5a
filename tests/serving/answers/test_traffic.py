"""The watch of a service: what it follows, what it keeps over a restart, and when it speaks."""

import re
from dataclasses import replace

import numpy as np
import pytest

from pmal.errors import DataError, UsageError
from pmal.rejection.open_world.traffic_watch import TrafficWatch
from pmal.serving.answers import traffic as traffic_module
from pmal.serving.answers.answer_files import read_p_values
from pmal.serving.answers.traffic import Traffic, TrafficHistory
from tests.serving.tiny_model import make_model

MODEL = make_model()
WATCHED = f"{'f' * 16}:distance"


def following(file=None, said=None, fingerprint="f" * 64, model=MODEL, alarm=0.01):
    traffic = Traffic(alarm, file, (said if said is not None else []).append)
    traffic.follow(model, fingerprint)
    return traffic


def levels(seed, count, low=1):
    """P-values of a model with 60 held-out images."""
    return (np.random.default_rng(seed).integers(low, 62, count) / 61).tolist()


def test_an_alarm_is_said_once_and_another_model_begins_anew():
    said = []
    traffic = following(said=said)
    traffic.observe(WATCHED, levels(0, 300))
    assert not said
    traffic.observe(WATCHED, [1 / 61] * 40)
    traffic.observe(WATCHED, [1 / 61] * 40)
    assert len(said) == 1
    assert re.match(r"ALARM: more images look unknown .* since answer 3\d\d .*`pmal update`", said[0])
    assert traffic.state()["words"][0] == "98 of 380 rejected (25.8 %; 4.9 % of known images are)"
    traffic.follow(MODEL, "f" * 64)
    assert traffic.watch.answered == 380, "the same model: nothing begins anew"
    traffic.follow(MODEL, "e" * 64)
    traffic.observe(WATCHED, levels(0, 5))
    assert traffic.state()["answered"] == 0, "answers of the model before are not its own"


def test_what_a_restart_finds_is_what_was_seen(tmp_path):
    file = tmp_path / "kept" / "p.csv"
    one = following(file)
    one.observe(WATCHED, levels(1, 200))
    one.observe(f"{'f' * 16}:neighbors", levels(2, 3))
    following(file, fingerprint="a" * 64).observe(f"{'a' * 16}:distance", levels(3, 4))
    with file.open("a") as stream:
        stream.write("ffffffffffffffff:dist")  # as a process leaves it that was killed
    again = following(file)
    assert again.state() == one.state()
    again.observe(WATCHED, [0.5 * 2 / 61])
    assert len(read_p_values(file, WATCHED)) == 201
    assert len(read_p_values(file)) == 205
    with_another_rate = following(file, model=replace(MODEL, rule=replace(MODEL.rule, accept=0.5)))
    assert with_another_rate.state()["rejected"] > again.state()["rejected"]


def test_a_file_that_grows_becomes_an_old_one_and_one_that_fails_is_said_once(tmp_path, monkeypatch):
    monkeypatch.setattr(traffic_module, "FILE_LIMIT", 1000)
    said, file = [], tmp_path / "p.csv"
    traffic = following(file, said)
    for i in range(20):
        traffic.observe(WATCHED, levels(i, 3))
    assert traffic.watch.answered == 60
    assert 1000 < (tmp_path / "p.csv.old").stat().st_size < 1300
    file.unlink(missing_ok=True)
    file.mkdir()
    traffic.observe(WATCHED, [1.0])
    traffic.observe(WATCHED, [1.0])
    assert said == [f"{file}: Is a directory: p-values are kept in memory alone from now on"]
    assert traffic.watch.answered == 62


def test_what_cannot_be_watched_says_why(tmp_path):
    state = following(model=make_model(calibrated=False)).state()
    assert (state["reason"][:24], state["words"]) == ("no images were held out,", [])
    per_class = following(model=replace(MODEL, rule=replace(MODEL.rule, per_class=True)))
    per_class.observe(WATCHED, [0.123])
    assert (per_class.watch.answered, per_class.reason[:27]) == (0, "it has a threshold per clas")
    with pytest.raises(UsageError, match="alarm is 0: pass a share"):
        Traffic(0, None, print)
    (tmp_path / "other").write_text("my notes\n")
    with pytest.raises(DataError, match="other: not a file that `pmal serve --p-values` wrote"):
        following(tmp_path / "other")
    assert (tmp_path / "other").read_text() == "my notes\n"
    (tmp_path / "bad").write_text(f"watched,p_value\n{WATCHED},0.5x\n")
    with pytest.raises(DataError, match="bad: no answers with p-values"):
        following(tmp_path / "bad")


def test_a_chart_has_few_points_and_they_are_those_of_the_watch(monkeypatch):
    monkeypatch.setattr(traffic_module, "MOST_POINTS", 10)
    p_values = levels(4, 999)
    history, watch = TrafficHistory(TrafficWatch(60)), TrafficWatch(60)
    history.observe(p_values[:500])
    history.observe(p_values[500:])
    points = history.points()
    assert len(points["answered"]) <= 11
    steps = np.diff(points["answered"][:-1])
    assert (steps == steps[0]).all()
    for i, at in enumerate(points["answered"]):
        watch.observe(p_values[watch.answered : at])
        assert points["rejected"][i] == watch.rejected_answers
        assert points["traffic"][i] == watch.log_capital("traffic") / np.log(10)
    assert points["answered"][-1] == 999
