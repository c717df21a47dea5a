"""The report of whole runs, small ones: which chapters it has, whatever the run has."""

import dataclasses
import html
import json
import re
import shutil

import numpy as np
import pytest
import torch

from pmal import pipeline
from pmal._runtime.session import open_session
from pmal.config import RunConfig, build
from pmal.data.samples import Samples, VectorStore
from pmal.data.splits.task import learning_task, open_task
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS
from pmal.mining import run_mining
from pmal.rejection.bundle.saving import load_model, save_model
from pmal.rejection.new_class import add_class
from pmal.rejection.scores import LOGIT_SCORES
from pmal.reporting.page import run_report as report
from pmal.reporting.page.sections.score_sections import SCORES
from pmal.reporting.ranking import audit_run
from pmal.reporting.verdict import judge
from pmal.run.run_folder import seal_again
from tests.support.report_runs import NAMES, UNKNOWN_NAME, fit_photos, photo_config, write_photos

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit_photos(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def erring_run(tmp_path_factory):
    return fit_photos(tmp_path_factory.mktemp("erring"), 20, rejection={"accept": 0.8})


@pytest.fixture(autouse=True)
def quick_layout(monkeypatch):
    monkeypatch.setattr(report, "layout_method", lambda: "PCA")


def chapters(run, **options):
    text = report.write_report(run, **options).read_text()
    return re.findall(r'<section id="(\w+)"', text), text


def figure(text, name):
    [data] = re.findall(rf'<figure id="{name}".*?application/json">(.*?)</script>', text, re.S)
    return json.loads(data)


def test_a_whole_run(run):
    found, text = chapters(run)
    assert found == [
        "results",
        "embedding",
        "scores",
        "mistakes",
        "classes",
        "prototypes",
        "robustness",
        "training",
        "making",
    ]
    assert len(text) < 10_000_000
    metrics = json.loads((run / "metrics.json").read_text())
    for method in (metrics, metrics["softmax"]):
        for score in method["scores"].values():
            assert f"{100 * score['auroc']['value']:.1f}" in text
    scores = figure(text, "score-plots")
    shown = [name for name in metrics["scores"] if name not in ("mahalanobis", "vim", "react")]
    assert [score["name"] for score in scores["scores"]] == shown  # what the model can decide by
    assert scores["scores"][scores["chosen"]]["name"] == "decision"
    assert "named" in text, "the split family"
    assert str(run) not in text
    assert str(run.parent) not in text, "it does not tell where the images lie"


def test_what_is_drawn_is_what_the_run_says(run):
    _, text = chapters(run)
    points, mined = figure(text, "embedding-plot"), figure(text, "robustness-plot")
    assert points["classes"] == NAMES
    assert [points["kind"].count(kind) for kind in (0, 1, 2)] == [24, 40, 9]
    assert all(len(panel["x"]) == 73 for panel in points["panels"])
    assert {label for kind, label in zip(points["kind"], points["label"], strict=True) if kind == 1} == {-1}
    assert sum(UNKNOWN_NAME in title for title, _, _ in points["text"]) == 40
    audit = audit_run(run, run.parent / "audit", open_session())
    r = np.exp(audit.log_r_N.numpy())
    counts = np.histogram(r, mined["edges"])[0].tolist()
    assert mined["groups"][0]["count"] == counts


def gallery(text, title):
    """What stands under each picture of a gallery, and the words about it."""
    [part] = re.findall(rf"<h3>{title}.*?</ol>", text, re.S)
    lines = [re.findall(r'class="line">(.*?)</span>', one) for one in part.split("<li")[1:]]
    return [list(map(html.unescape, one)) for one in lines], re.findall('aria-label="(.*?)"', part)


def test_wrong_answers_are_shown_with_score_and_p_value(erring_run):
    _, text = chapters(erring_run)
    decision = json.loads((erring_run / "metrics.json").read_text())["decision"]
    accepted, words = gallery(text, "Unknown images accepted")
    assert len(accepted) == min(24, round(40 * (1 - decision["unknown_rejected"]))) > 1
    assert len(words) == len(accepted)
    p_values = [float(p.removeprefix("p ")) for _, _, p, _ in accepted]
    assert p_values == sorted(p_values, reverse=True)
    assert min(p_values) > 1 - decision["accept"]
    for truth, score, _, answer in accepted:
        assert truth == f"unknown: {UNKNOWN_NAME}"
        assert score.startswith("decision "), "the typicality is named where it is the reason"
        assert answer.removeprefix("→ ") in NAMES
    rejected, _ = gallery(text, "Known images rejected")
    assert len(rejected) == round(24 * (1 - decision["known_accepted"])) > 1
    p_values = [float(p.removeprefix("p ")) for _, _, p, _ in rejected]
    assert p_values == sorted(p_values)
    for truth, _, p, answer in rejected:
        assert truth in NAMES
        assert float(p.removeprefix("p ")) <= 1 - decision["accept"] + 1e-9
        assert answer == "→ unknown"


def test_a_run_without_mistakes_says_so(run):
    _, text = chapters(run)
    assert "No test image has a wrong answer." in text
    assert "accepted as known <small>" not in text


def test_the_slider_begins_with_what_the_stored_thresholds_do(erring_run):
    _, text = chapters(erring_run)
    decision = json.loads((erring_run / "metrics.json").read_text())["decision"]
    scores = {score["name"]: score for score in figure(text, "score-plots")["scores"]}
    found, start = scores["decision"]["accepted"], scores["decision"]["accepted"]["start"]
    assert found["at"][start] == pytest.approx(scores["decision"]["histogram"]["threshold"], rel=1e-4)
    assert found["known"][start] == pytest.approx(decision["known_accepted"], abs=1e-4)
    assert found["unknown"][start] == pytest.approx(1 - decision["unknown_rejected"], abs=1e-4)


def test_the_verdict_stands_at_the_top_and_the_still_picture_has_the_shares(erring_run):
    _, text = chapters(erring_run)
    metrics = json.loads((erring_run / "metrics.json").read_text())
    share, verdict = f"{100 * metrics['decision']['unknown_rejected']:.1f}", judge(metrics)
    assert f"{verdict.finding}</strong> {html.escape(verdict.advice)}" in text.partition("<nav")[0]
    [still] = re.findall(r"<noscript>\s*<h3>.*?</noscript>", text, re.S)
    assert f"Of unknown test images {100 - float(share):.1f} % are accepted, {share} % rejected." in still
    assert still.count('class="threshold"') == 1


def test_r_is_that_of_the_mining_and_measured_again_where_there_is_none(run, tmp_path, monkeypatch):
    first = chapters(run, out=tmp_path / "first.html")[1]
    measured = []
    measure = run_mining.rate_images
    monkeypatch.setattr(run_mining, "rate_images", lambda *words: measured.append(1) or measure(*words))
    shutil.copytree(run, tmp_path / "run")
    assert chapters(tmp_path / "run")[1] == first
    assert not measured
    (tmp_path / "run" / "quality.json").unlink()
    assert chapters(tmp_path / "run")[1] == first
    assert measured


def test_test_images_are_embedded_again_only_where_that_was_not_kept(run, tmp_path, monkeypatch):
    first = chapters(run, out=tmp_path / "first.html")[1]
    embedded = []
    embed = report.embed_images
    monkeypatch.setattr(
        report, "embed_images", lambda *args, **words: embedded.append(1) or embed(*args, **words)
    )
    shutil.copytree(run, tmp_path / "run")
    assert chapters(tmp_path / "run")[1] == first
    assert not embedded
    (tmp_path / "run" / "answers.json").unlink()
    assert chapters(tmp_path / "run")[1] == first
    assert len(embedded) == 4, "known and unknown images, by the model and by the softmax before it"


def test_the_same_report_again(run):
    first = chapters(run)[1]
    assert chapters(run, out=run.parent / "other.html")[1] == first
    assert (run.parent / "other.html").exists()


def test_softmax_has_no_prototypes(tmp_path):
    found, text = chapters(fit_photos(tmp_path, method="softmax"))
    assert found == ["results", "embedding", "scores", "mistakes", "classes", "training", "making"]
    assert len(figure(text, "embedding-plot")["panels"]) == 1
    assert "beside" not in figure(text, "score-plots")["scores"][0]


@pytest.mark.parametrize("method", ["proser", "openmax"])
def test_other_methods_are_described_as_what_they_are(tmp_path, method):
    found, text = chapters(fit_photos(tmp_path, method=method))
    assert found == ["results", "embedding", "scores", "mistakes", "classes", "training", "making"]
    titles = [panel["title"] for panel in figure(text, "embedding-plot")["panels"]]
    assert titles == (["Before: softmax", "After: PROSER"] if method == "proser" else ["openmax"])
    assert ("epochs per phase" in text) == (method == "proser")
    assert "mining" not in re.search(r'<section id="training".*?</p>', text, re.S)[0]
    scores = figure(text, "score-plots")
    assert scores["scores"][scores["chosen"]]["about"].split(" This score decides")[0]


def test_no_unknown_classes_and_no_threshold(tmp_path):
    config = photo_config(write_photos(tmp_path / "photos"), data={"known": [], "held_out": 0.0})
    pipeline.fit(config, tmp_path / "run")
    found, text = chapters(tmp_path / "run")
    assert "prototypes" in found
    assert "no unknown classes" in text
    assert 1 not in figure(text, "embedding-plot")["kind"]
    [score, *_] = figure(text, "score-plots")["scores"]
    assert (score["histogram"]["unknown"], score["histogram"]["threshold"]) == (None, None)
    assert "curve" not in score
    assert score["accepted"] is None
    assert "no threshold, and nothing is called unknown" in text
    assert "rejected as unknown" not in text


def test_no_test_part(tmp_path):
    photos = write_photos(tmp_path / "photos")
    config = photo_config(photos, data={"known": []})
    task = learning_task(open_task(config.data, None).train, "photos", config.data)
    pipeline.fit(config, tmp_path / "run", task=task)
    found, text = chapters(tmp_path / "run", task=task)
    assert found == ["prototypes", "robustness", "training", "making"]
    assert 'data-grade="untested"' in text


def test_what_the_threshold_promises_and_its_range(tmp_path):
    _, text = chapters(fit_photos(tmp_path, method="softmax", rejection={"accept": 0.9}))
    assert "Accepts at least 90 % of known images on average; with 32 held-out images, this threshold" in text
    assert "% (90 % range); few held-out images: raise data.held_out, or add images." in text


def test_thresholds_of_single_classes(run, tmp_path):
    found, text = chapters(fit_photos(tmp_path, rejection={"per_class": True}))
    assert "classes" in found
    score = figure(text, "score-plots")["scores"][0]
    assert score["histogram"]["threshold"] is score["accepted"] is None
    assert "There is no single threshold to show." in text


def test_many_classes_and_images_are_cut_evenly(run, monkeypatch):
    from pmal.reporting.page.sections import galleries as report_sections_pictures
    from pmal.reporting.page.sections import results as report_sections

    for module in (report_sections, report_sections_pictures):
        monkeypatch.setattr(module, "CLASSES", 2)
    monkeypatch.setattr(report_sections_pictures, "POINTS", 5)
    monkeypatch.setattr(report, "MOST", 20)
    _, text = chapters(run)
    assert "2 of 3 classes are shown" in text
    assert "Drawn from 20 of 24 and 20 of 40 known and unknown" in text
    points = figure(text, "embedding-plot")
    assert points["classes"] == [NAMES[0], NAMES[2]]
    assert [points["kind"].count(kind) for kind in (0, 1, 2)] == [5, 5, 6]


def test_other_quality_rules_are_named(tmp_path):
    _, text = chapters(fit_photos(tmp_path, mining={"quality": "probability"}))
    assert figure(text, "robustness-plot")["symbol"] == "probability"


def test_what_is_no_finished_run_is_refused(run, tmp_path):
    with pytest.raises(DataError, match="not a run folder"):
        report.write_report(tmp_path)
    (tmp_path / "config.toml").write_bytes((run / "config.toml").read_bytes())
    with pytest.raises(DataError, match="not finished: run `pmal fit` again"):
        report.write_report(tmp_path)


def test_a_class_that_was_added_since_is_refused(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    model = load_model(run / "model", torch.device("cpu"))
    spec = model.classifier.spec
    images = torch.randint(0, 256, (6, spec.channels, spec.image_size, spec.image_size)).byte()
    wider, _ = add_class(model, "noise", model.answer(images).z, images, [str(i) for i in range(6)])
    save_model(tmp_path / "run" / "model", wider)
    seal_again(tmp_path / "run", "model")
    with pytest.raises(UsageError, match="class noise was added since"):
        report.write_report(tmp_path / "run")


def test_other_images_than_those_of_the_run_are_refused(tmp_path):
    run = fit_photos(tmp_path, training={"epochs": 1})
    (tmp_path / "photos" / NAMES[0] / "00 <i>.png").unlink()
    (tmp_path / "photos" / NAMES[0] / "01 <i>.png").unlink()
    (tmp_path / "photos" / NAMES[0] / "02 <i>.png").unlink()
    with pytest.raises(DataError, match="other images"):
        report.write_report(run)
    assert not (run / "report.html").exists()


def test_an_image_that_could_not_be_read_is_left_out(tmp_path):
    photos = write_photos(tmp_path / "photos")
    (photos / NAMES[0] / "07 <i>.png").write_bytes(b"no image")
    pipeline.fit(photo_config(photos, training={"epochs": 1}), tmp_path / "run")
    assert "robustness" in chapters(tmp_path / "run")[0]


def test_embeddings_have_no_pictures_but_a_report(tmp_path):
    random = np.random.default_rng(0)
    labels = np.arange(150) % 3
    store = VectorStore("X", (3 * np.eye(6)[labels] + random.normal(size=(150, 6))).astype(np.float32))
    samples = Samples.whole(store, labels, ("a", "b", "c"))
    settings = {
        "encoder": {"name": "precomputed"},
        "data": {"augmentation": "none"},
        "training": {"epochs": 2},
    }
    config = build(RunConfig, settings)
    task = learning_task(samples.at(np.arange(100)), "X", config.data)
    task = dataclasses.replace(task, test=samples.at(np.arange(100, 150)))
    pipeline.fit(config, tmp_path / "run", task=task)
    _, text = chapters(tmp_path / "run", task=task)
    assert set(figure(text, "embedding-plot")["place"]) == {None}
    assert "tile blank" in text
    assert "data:image" not in text


def test_every_score_of_every_method_is_explained():
    own = {score for method in METHODS.values() for score in method.scores}
    assert {*LOGIT_SCORES, *own, "typicality", "decision"} == SCORES.keys()
