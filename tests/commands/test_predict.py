"""`pmal predict` as a user meets it."""

import csv
import io
import json
import os
import signal

import pytest
from rich.console import Console

from pmal._runtime import progress
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import Rule
from pmal.serving.answers import image_files
from tests.serving.tiny_model import CLASSES, make_model
from tests.support.bad_images import spoil
from tests.support.command_line import assert_one_line_error


def test_half_precision_is_refused_where_it_is_no_faster(call, run, photos):
    assert_one_line_error(call("predict", run, photos, "--half", "--device", "cpu"), 2, "slower on a CPU")


def test_the_table_says_class_or_unknown_and_by_which_prototypes(run, photos, call):
    code, out, error = call("predict", run, photos / "kind0" / "0.png", photos / "kind3", "--top", 2)
    assert code == 0, error
    lines = out.splitlines()
    heads = ["image", "class", "nearest", "score", "threshold", "p", "because", "weight", "prototype"]
    assert lines[0].split() == heads
    image, name, nearest, score, threshold, p_value, weight, prototype = lines[1].split()
    assert 0 < float(p_value) <= 1
    assert (image, name, nearest) == (str(photos / "kind0" / "0.png"), "cat", "cat")
    assert float(score) <= float(threshold)
    assert 0 < float(weight) <= 1
    assert prototype.startswith("cat/")
    assert [line.split()[1] for line in lines[3:7:2]] == ["unknown"] * 2
    assert lines[-1] == (
        "score distance: accepts at least 95 % of known images on average; with 60 held-out images, "
        "this threshold accepts 89.9 to 98.6 % (90 % range)"
    )
    assert len(lines) == 1 + 3 * 2 + 1


def test_json_and_csv_agree_and_a_bundle_folder_will_do(run, photos, call):
    code, out, error = call("predict", run, photos, "--json")
    assert (code, error) == (0, "")
    found = json.loads(out)
    assert found["model"]["score"] == "distance"
    assert found["errors"] == []
    assert [answer["image"] for answer in found["answers"]] == [
        str(photos / f"kind{kind}" / f"{i}.png") for kind in range(4) for i in range(2)
    ]
    assert [answer["nearest"] for answer in found["answers"][:6]] == [CLASSES[k] for k in (0, 0, 1, 1, 2, 2)]
    assert not any(answer["known"] for answer in found["answers"][6:])
    rows = list(csv.DictReader(io.StringIO(call("predict", run / "model", photos, "--csv")[1], newline="")))
    for row, answer in zip(rows, found["answers"], strict=True):
        assert (row["image"], row["class"], row["nearest"]) == tuple(
            answer[name] for name in ("image", "class", "nearest")
        )
        assert float(row["score"]) == answer["score"]
        assert int(row["known"]) == answer["known"]
        assert row["prototype_1"] == answer["prototypes"][0]["file"]


def test_files_that_cannot_be_read_are_listed_and_the_others_answered(run, photos, call):
    bad = spoil(photos)
    words = ["predict", run, photos.parent / "gone.png", photos, photos.parent / "empty"]
    for form in ([], ["--csv"]):
        code, out, error = call(*words, *form)
        lines = error.splitlines()
        assert code == 3
        for (path, reason), line in zip(bad.items(), lines[-5:-1], strict=True):
            assert line.startswith(f"{path}: ")
            assert reason in line
        assert lines[-1] == "error: 4 of 12 could not be answered"
        assert out.count(".png") > 8
        assert not any(str(path) in out for path in bad)
    code, out, error = call(*words, "--json")
    found = json.loads(out)
    assert code == 3
    assert len(found["answers"]) == 8
    assert [entry["image"] for entry in found["errors"]] == list(map(str, bad))
    assert all(reason in e["reason"] for reason, e in zip(bad.values(), found["errors"], strict=True))
    assert error == "error: 4 of 12 could not be answered\n"


def test_nothing_to_answer_is_no_table(run, tmp_path, call):
    code, out, error = call("predict", run, tmp_path / "gone.png")
    assert (code, out) == (3, "")
    assert error.splitlines()[-1] == "error: 1 of 1 could not be answered"
    assert json.loads(call("predict", run, tmp_path / "gone.png", "--json")[1])["answers"] == []


def test_the_rule_can_be_changed(run, photos, call):
    def ask(*words):
        code, out, error = call("predict", run, photos, "--json", *words)
        assert code == 0, error
        found = json.loads(out)
        return found["model"], found["answers"]

    about, answers = ask("--threshold", "inf", "--top", 0)
    assert all(answer["known"] and answer["threshold"] == "inf" for answer in answers)
    assert not any(answer["prototypes"] for answer in answers)
    assert "was set" in about["note"]
    assert not any(answer["known"] for answer in ask("--threshold", -1)[1])
    about, answers = ask("--score", "neighbors", "--accept", 0.5)
    assert (about["score"], about["accept"], about["per_class"]) == ("neighbors", 0.5, False)
    about, per_class = ask("--per-class")
    assert about["per_class"]
    assert len({answer["threshold"] for answer in per_class}) == 3
    assert len({answer["threshold"] for answer in ask("--global")[1]}) == 1


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--score", "distanse"], "did you mean 'distance'?"),
        (["--accept", 1], "below 1"),
        (["--threshold", 1, "--accept", 0.9], "leave out accept"),
        (["--threshold", "nan"], "pass a number"),
        (["--json", "--csv"], "choose one"),
        (["--device", "cuda:77"], "device cpu"),
    ],
)
def test_wrong_use_is_told_in_one_line(run, photos, call, words, part):
    result = call("predict", run, photos, *words)
    assert_one_line_error(result, 2, part)
    assert result[1] == ""


def test_what_is_no_model_is_told_in_one_line(run, photos, tmp_path, call):
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "config.toml").touch()
    assert_one_line_error(call("predict", tmp_path / "unfinished", photos), 3, "run `pmal fit` again")
    assert_one_line_error(call("predict", tmp_path / "gone", photos), 3, "gone")
    assert_one_line_error(call("predict", run / "config.toml", photos), 3, "config.toml")
    assert_one_line_error(call("predict", photos, photos), 3, str(photos))


def test_a_model_without_a_threshold_asks_for_one(tmp_path, photos, call):
    save_model(tmp_path / "m", make_model(Rule("logit"), prototypes=False, calibrated=False))
    assert_one_line_error(call("predict", tmp_path / "m", photos), 2, "no threshold")
    code, out, _ = call("predict", tmp_path / "m", photos, "--threshold", 0, "--score", "energy")
    assert code == 0
    assert out.splitlines()[0].split() == ["image", "class", "nearest", "score", "threshold", "p", "because"]


def test_odd_names_keep_the_lines_whole(run, photos, call):
    odd = photos.parent / 'a "b", c\nd.png'
    os.replace(photos / "kind0" / "0.png", odd)
    rows = list(csv.reader(io.StringIO(call("predict", run, odd, "--csv")[1], newline="")))
    assert [row[0] for row in rows] == ["image", str(odd)]
    assert json.loads(call("predict", run, odd, "--json")[1])["answers"][0]["image"] == str(odd)
    assert len(call("predict", run, odd, "--top", 1)[1].splitlines()) == 3


def test_nothing_is_written_to_the_disk(run, photos, call):
    def listing():
        files = [*run.rglob("*"), *photos.parent.rglob("*")]
        return sorted((str(file), file.stat().st_mtime_ns) for file in files)

    before = listing()
    for form in ([], ["--csv"], ["--json"]):
        assert call("predict", run, photos, *form)[0] == 0
    assert listing() == before


def test_a_progress_bar_takes_no_row_away(run, photos, call, monkeypatch):
    monkeypatch.setattr(image_files, "BLOCK_IMAGES", 3)
    screen = io.StringIO()
    bars = progress.Bars()
    bars.console = Console(file=screen, force_terminal=True)
    plain = {form: call("predict", run, photos, *form)[1] for form in ((), ("--csv",))}
    monkeypatch.setattr(progress, "choose_display", lambda quiet: bars)
    for form, expected in plain.items():
        assert call("predict", run, photos, *form)[1] == expected
    assert "predicting" in screen.getvalue()
    assert "kind0" not in screen.getvalue()


def test_interrupted_it_ends_in_one_line(run, photos, call, monkeypatch):
    monkeypatch.setattr(image_files, "read_fitted", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert_one_line_error(call("predict", run, photos), 130, "interrupted: not every image was answered")


def test_a_share_of_wrong_unknowns_decides_all_images_together(run, photos, call):
    code, out, error = call("predict", run, photos, "--fdr", 0.5, "--json")
    assert code in (0, 3), error
    found = json.loads(out)
    assert found["model"]["note"].startswith("of the images called unknown, at most 0.5 are known ones")
    for answer in found["answers"]:
        assert answer["known"] == (answer["class"] != "unknown") == (answer["because"] is None)
    rejected = [answer["p_value"] for answer in found["answers"] if not answer["known"]]
    accepted = [answer["p_value"] for answer in found["answers"] if answer["known"]]
    assert max(rejected, default=0) < min(accepted, default=2)
    assert_one_line_error(call("predict", run, photos, "--fdr", 1), 2, "fdr is 1")
    assert_one_line_error(call("predict", run, photos, "--fdr", 1e-4), 2, "fdr is 0.0001", "or more")
