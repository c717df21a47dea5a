"""`pmal report`, and the report at the end of `pmal fit`."""

import json
from dataclasses import replace

import pytest

from pmal.reporting.page import run_report as report
from pmal.run.run_folder import read_config
from tests.support.command_line import assert_one_line_error
from tests.support.report_runs import NAMES, write_photos

WORDS = ["--method", "softmax", "--encoder", "small", "--epochs", 1, "--set", "training.batch_size=16"]


@pytest.fixture
def words(tmp_path):
    known = ["--known", ",".join(NAMES)]
    return ["fit", write_photos(tmp_path / "photos"), "--out", tmp_path / "run", *known, *WORDS]


@pytest.fixture(autouse=True)
def quick_layout(monkeypatch):
    monkeypatch.setattr(report, "layout_method", lambda: "PCA")


def test_a_fit_leaves_a_report_and_the_command_writes_the_same(words, tmp_path, call):
    code, out, error = call(*words)
    assert code == 0, error
    path = tmp_path / "run" / "report.html"
    assert f"report: {path}" in out
    written = path.read_bytes()
    assert "report.html" not in json.loads((tmp_path / "run" / "manifest.json").read_text())["sha256"]
    code, out, error = call("report", tmp_path / "run", "--out", tmp_path / "other.html", "--json")
    assert code == 0, error
    assert json.loads(out) == {"report": str(tmp_path / "other.html")}
    assert (tmp_path / "other.html").read_bytes() == written


def test_a_fit_without_a_report(words, tmp_path, call):
    assert call(*words, "--no-report")[0] == 0
    assert not (tmp_path / "run" / "report.html").exists()
    (tmp_path / "run" / "report.html").write_text("of the run before")
    assert call(*words, "--no-report", "--from", "calibration", "--set", "rejection.accept=0.9")[0] == 0
    assert not (tmp_path / "run" / "report.html").exists(), "it would show what is no longer so"


@pytest.mark.slow
def test_a_stage_that_is_done_again_keeps_the_settings_of_its_run(words, tmp_path, call):
    """Without the source, the classes, the method and the seed, which were asked for again."""
    run = tmp_path / "run"
    assert call(*words, "--seed", 3, "--no-report")[0] == 0
    before = read_config(run)
    code, _, error = call("fit", "--out", run, "--no-report", "--from", "calibration")
    assert code == 0, error
    assert read_config(run) == before
    changes = ["--set", "rejection.accept=0.9"]
    assert call("fit", "--out", run, "--no-report", "--from", "calibration", *changes)[0] == 0
    assert read_config(run) == replace(before, rejection=replace(before.rejection, accept=0.9))
    assert_one_line_error(
        call("fit", "--out", run, "--seed", 4, "--from", "calibration"), 2, "seed = 3, not 4"
    )


@pytest.mark.slow
@pytest.mark.parametrize("problem", [ImportError("no module"), ValueError("two\nlines"), KeyError()])
def test_a_report_that_cannot_be_drawn_does_not_spoil_the_fit(words, tmp_path, call, monkeypatch, problem):
    def fail(*_):
        raise problem

    monkeypatch.setattr(report, "make_page", fail)
    code, out, error = call(*words, "--json")
    assert code == 0
    assert json.loads(out)["known_images"] == 24
    [line] = [line for line in error.splitlines() if line.startswith("no report: ")]
    assert line.endswith(f"`pmal report {tmp_path / 'run'}` tries again")
    assert not (tmp_path / "run" / "report.html").exists()


def test_stages_before_the_last_have_no_report(words, tmp_path, call):
    assert call(*words, "--only", "classifiers")[0] == 0
    assert not (tmp_path / "run" / "report.html").exists()


def test_what_is_no_run_is_told_in_one_line(tmp_path, call):
    assert_one_line_error(call("report", tmp_path), 3, str(tmp_path), "not a run folder")


def test_a_place_that_cannot_be_written_to_is_told_before_any_work(tmp_path, call, monkeypatch):
    monkeypatch.setattr(report, "make_page", lambda *_: pytest.fail("work before the check"))
    (tmp_path / "file").touch()
    for out, place in ((tmp_path, tmp_path), (tmp_path / "file" / "page.html", tmp_path / "file")):
        assert_one_line_error(call("report", tmp_path, "--out", out), 2, str(place))
    (tmp_path / "report.html").mkdir()
    assert_one_line_error(call("report", tmp_path), 2, "report.html")
