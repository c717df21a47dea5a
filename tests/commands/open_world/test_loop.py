"""The loop of the open world by its commands: groups, names, classes, corrections, versions, a watch."""

import json
import signal

import pytest
import torch

from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.model import Rule
from pmal.reporting.page.discovery import groups_page
from tests.serving.tiny_model import CLASSES, pictures_of
from tests.support.changing_models import listing, model_with_held_out, write_images
from tests.support.command_line import assert_one_line_error

CPU = torch.device("cpu")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "run" / "model", model_with_held_out(Rule("distance", 0.8)))
    (tmp_path / "run" / "config.toml").touch()
    write_images(tmp_path / "pile", torch.cat([pictures_of(3, 12, seed=5), pictures_of(0, 6, seed=6)]))
    return "run"


def named(path, name, count=12):
    """The table of groups with a name for those images that are of no known class."""
    lines = [f"pile/{i}.png,1,{name}" for i in range(count)]
    path.write_text("\n".join(["file,group,name", *lines]) + "\n")
    return path


def test_from_the_pile_to_a_class_and_back(run, tmp_path, call):
    code, out, error = call("discover", run, "pile", "--smallest", 4)
    assert code == 0, error
    assert "rejected images of 18" in out
    for name in ("groups.csv", "groups.png", "groups.html"):
        assert (tmp_path / "run" / "discovery" / name).stat().st_size > 0
    before = listing(tmp_path / "run" / "discovery")
    assert_one_line_error(call("discover", run, "pile"), 2, "exists, with names perhaps")
    assert listing(tmp_path / "run" / "discovery") == before
    code, out, error = call("add-class", run, named(tmp_path / "names.csv", "noise"))
    assert code == 0, error
    assert "class noise: 4 prototypes" in out
    assert "(version 2)" in out
    names = [a["nearest"] for a in json.loads(call("predict", run, "pile", "--json")[1])["answers"]]
    assert names.count("noise") >= 10
    older = json.loads(call("predict", run, "pile", "--json", "--version", 1)[1])
    assert "noise" not in {answer["nearest"] for answer in older["answers"]}
    code, out, _ = call("remove-class", run, "noise")
    assert (code, out.splitlines()[-1].endswith("(version 3)")) == (0, True)
    assert load_model(tmp_path / "run" / "model", CPU).class_names == CLASSES
    found = json.loads(call("history", run, "--json", "--restore", 2)[1])
    assert [one["source"] for one in found["versions"]] == [None, 1, 2, 3]
    assert found["current"] == 4
    assert [one["change"] for one in found["versions"][1:]] == [
        "added noise (12)",
        "removed noise",
        "version 2 restored",
    ]
    shown = call("history", run)[1].splitlines()
    assert shown[-1].startswith("*")
    assert "noise" in load_model(tmp_path / "run" / "model", CPU).class_names


def test_corrected_answers_are_taken_in(run, tmp_path, call):
    table = tmp_path / "corrections.csv"
    table.write_text("file,name\npile/12.png,cat\npile/13.png,cat\npile/14.png,cat\npile/0.png,unknown\n")
    code, out, error = call("update", run, table, "--json")
    assert (code, error) == (0, "")
    found = json.loads(out)
    assert (found["known"], found["unknown"], found["learned"], found["held_out"]) == (3, 1, 2, 1)
    assert found["version"] == 2
    assert len(load_model(tmp_path / "run" / "model", CPU).calibration.predictions) == 61
    table.write_text("file,name\npile/0.png,fox\n")
    assert_one_line_error(call("update", run, table), 2, "no class 'fox' in this model")


def test_the_watch_reads_what_predict_prints(run, tmp_path, call):
    known = write_images(tmp_path / "known", pictures_of(1, 40, seed=9))
    (tmp_path / "a.json").write_text(call("predict", run, known, "--json")[1])
    (tmp_path / "b.csv").write_text(call("predict", run, "pile", "--csv")[1])
    code, out, error = call("watch", run, "a.json", "b.csv", "--json")
    assert (code, error) == (0, "")
    assert json.loads(out)["answered"] == 58
    assert "rejected (" in call("watch", run, "a.json")[1]
    (tmp_path / "bad.json").write_text('{"answers": [{"image": "a"}]}')
    assert_one_line_error(call("watch", run, "bad.json"), 3, "bad.json: no answers with p-values")
    assert_one_line_error(call("watch", run, "gone.json"), 3, "gone.json: No such file")
    (tmp_path / "other.csv").write_text("p_value\n0.1234\n")
    assert_one_line_error(call("watch", run, "other.csv"), 3, "no p-value of 60 held-out images")


def test_mistakes_are_told_and_nothing_is_written(run, tmp_path, call):
    before = listing(tmp_path)
    code, _, error = call("discover", run, "pile", "gone.png", "--out", "found")
    assert code == 3
    assert "gone.png: No such file" in error
    assert (tmp_path / "found" / "groups.csv").is_file()
    for file in (tmp_path / "found").iterdir():
        file.unlink()
    table = named(tmp_path / "names.csv", "cat")
    assert_one_line_error(call("add-class", run, table), 2, "class 'cat' exists already")
    named(table, "noise", count=19)  # one file too many
    assert_one_line_error(call("add-class", run, table), 3, "18.png")
    assert_one_line_error(call("add-class", run, "empty.csv"), 3, "empty.csv: No such file")
    table.unlink()
    assert_one_line_error(call("remove-class", run, "fox"), 2, "unknown class 'fox'")
    assert_one_line_error(call("predict", run, "pile", "--version", 7), 2, "no version 7 of this model")
    assert_one_line_error(call("history", run, "--restore", 7), 2, "no version 7 of this model")
    assert call("history", run)[1].endswith("was never changed: there is one version\n")
    after = listing(tmp_path)
    assert after == before


def test_where_nothing_is_rejected_there_are_no_groups(run, tmp_path, call):
    write_images(tmp_path / "known", pictures_of(1, 3, seed=9))
    code, out, error = call("discover", run, "known", "--json")
    assert code == 0, error
    assert (json.loads(out)["looked_at"], json.loads(out)["groups"]) == (3, [])


def test_interrupted_no_table_is_left(run, tmp_path, call, monkeypatch):
    monkeypatch.setattr(groups_page, "groups_sheet", lambda _: signal.raise_signal(signal.SIGINT))
    code, _, error = call("discover", run, "pile")
    assert (code, error.splitlines()[-1]) == (130, "error: interrupted: nothing was written")
    assert not list((tmp_path / "run" / "discovery").iterdir())
