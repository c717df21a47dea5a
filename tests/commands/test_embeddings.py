"""A run on embeddings of another model, through every command."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch

from pmal import pipeline
from pmal._runtime.session import open_session
from pmal.config import Resources
from pmal.serving.http.served_model import model_loader
from tests.serving.http_service import call as http
from tests.serving.http_service import running_model
from tests.support.embeddings import CENTERS, WIDTH, rows, write_pictures, write_rows
from tests.support.hanging import HANGING

pytestmark = pytest.mark.slow

FIT = ("--known", "cat,dog,owl", "--device", "cpu", "--seed", "0")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with rows of a source whose first images are readable, and rows to ask about."""
    folder = tmp_path_factory.mktemp("embeddings")
    write_rows(folder / "e.npz", files=write_pictures(folder, 240, readable=150))
    np.savez(folder / "new.npz", embeddings=rows(40, seed=3)[0])
    return folder


@pytest.fixture
def run(made, call):
    """The run of that source, fitted once."""
    if not (made / "run" / "manifest.json").is_file():
        code, shown, error = call("fit", made / "e.npz", "--out", made / "run", *FIT)
        assert code == 0, error
        assert "encoder precomputed: embeddings in the place of images" in shown + error
    return made / "run"


def test_rows_are_answered_as_images_are(run, made, call):
    code, shown, _ = call("predict", run, made / "new.npz", "--json")
    answers = json.loads(shown)["answers"]
    assert (code, len(answers)) == (0, 40)
    assert answers[5]["image"] == f"{made}/new.npz[5]"
    right = ["cat", "dog", "owl", "unknown"]
    assert np.mean([answer["class"] == right[i % 4] for i, answer in enumerate(answers)]) > 0.8
    assert answers[0]["prototypes"][0]["file"].endswith(".png")
    code, shown, _ = call("predict", run, made / "new.npz", "--csv", "--fdr", "0.2", "--top", "1")
    table = list(csv.DictReader(io.StringIO(shown)))
    assert (code, len(table)) == (0, 40)
    assert {row["known"] for row in table} == {"0", "1"}


def test_rows_that_are_not_finite_are_errors_and_never_known(run, tmp_path, call):
    vectors, _ = rows(4)
    vectors[1, 0], vectors[2, 0] = np.nan, -np.inf
    np.savez(tmp_path / "n.npz", embeddings=vectors)
    code, shown, error = call("predict", run, tmp_path / "n.npz", "--csv")
    assert code == 3
    assert "n.npz[1]" not in shown
    assert f"{tmp_path}/n.npz[1]: NaN or infinite values" in error
    assert "error: 2 of 4 could not be answered" in error


def test_images_and_rows_do_not_mix(run, made, tmp_path, call):
    code, _, error = call("predict", run, made / "img" / "1.png")
    assert code == 3
    assert "1.png: this model takes embeddings, not images: name a .npz" in error
    np.savez(tmp_path / "w.npz", embeddings=np.ones((2, WIDTH + 1)))
    code, _, error = call("predict", run, tmp_path / "w.npz")
    assert code == 3
    assert f"embeddings of {WIDTH + 1} numbers, but the model takes {WIDTH}" in error
    code, _, error = call("fit", made / "e.npz", "--out", tmp_path / "r", "--encoder", "small")
    assert code == 2
    assert "encoder small takes images: leave encoder" in error
    assert len(error.strip().splitlines()) == 1


def test_evaluate_is_what_fit_measured(run, call):
    code, shown, _ = call("evaluate", run, "--json", "--device", "cpu")
    assert code == 0
    found, stored = json.loads(shown), json.loads((run / "metrics.json").read_text())
    assert found["accuracy"] == stored["accuracy"]
    assert found["scores"]["combined"] == stored["scores"]["combined"]
    assert found["about"]["encoder"] == "precomputed"


def test_data_that_became_wider_is_told(run, made, tmp_path, call):
    shutil.copytree(run, tmp_path / "run")
    vectors, labels = rows(240)
    np.savez(tmp_path / "e.npz", embeddings=np.repeat(vectors, 2, axis=1), labels=labels)
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(made / "e.npz"), str(tmp_path / "e.npz")))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    del manifest["sha256"]["config.toml"]  # an edited file is refused otherwise
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    code, _, error = call("evaluate", tmp_path / "run")
    assert code == 3
    assert f"embeddings of {2 * WIDTH} numbers, but the model takes {WIDTH}" in error


def test_the_report_shows_pictures_where_they_are_and_names_where_not(run, call):
    code, _, error = call("report", run, "--device", "cpu")
    assert code == 0, error
    text = (run / "report.html").read_text()
    assert "data:image" in text
    assert "tile blank" in text
    assert any(f">{i}.png<" in text for i in range(150, 240)), "a row without a picture goes by its name"


def test_a_report_of_rows_without_files_names_them(tmp_path, call):
    write_rows(tmp_path / "e.npz")
    code, _, error = call("fit", tmp_path / "e.npz", "--out", tmp_path / "run", *FIT)
    assert code == 0, error
    text = (tmp_path / "run" / "report.html").read_text()
    assert "data:image" not in text
    assert re.search(r">\[[0-9]+\]<", text), "the row stands where its picture would be"
    assert "e.npz[" in text
    code, shown, _ = call("audit", tmp_path / "run")
    assert code == 0
    assert "contact sheets" not in shown
    assert [file.name for file in (tmp_path / "run" / "audit").iterdir()] == ["audit.csv"]
    assert "e.npz[" in (tmp_path / "run" / "audit" / "audit.csv").read_text()


def test_audit_draws_what_is_readable(run, call):
    code, shown, error = call("audit", run, "--device", "cpu")
    assert code == 0, error
    assert "table and contact sheets" in shown
    assert len(list((run / "audit").glob("sheet-*.png"))) == 3


def test_export_answers_as_the_run_does(run, made, tmp_path, call):
    pytest.importorskip("onnxruntime")
    code, shown, error = call("export", run, "--out", tmp_path / "m.onnx")
    assert code == 0, error
    assert "rows: 0 decisions differ" in shown
    card = (tmp_path / "m.md").read_text()
    assert f"Input `embeddings`: float32 (B, {WIDTH})" in card
    asked = [call("predict", model, made / "new.npz", "--json") for model in (run, tmp_path / "m.onnx")]
    ours, exported = (json.loads(shown)["answers"] for _, shown, _ in asked)
    assert [a["class"] for a in ours] == [a["class"] for a in exported]
    np.testing.assert_allclose([a["score"] for a in ours], [a["score"] for a in exported], rtol=1e-3)
    code, _, error = call("predict", tmp_path / "m.onnx", made / "img" / "1.png")
    assert code == 3
    assert "this model takes embeddings" in error


def test_the_card_says_code_that_runs(run, tmp_path, call):
    pytest.importorskip("onnxruntime")
    call("export", run, "--out", tmp_path / "m.onnx")
    code = (tmp_path / "m.md").read_text().rpartition("```python\n")[2].partition("```")[0]
    np.savez(tmp_path / "other.npz", embeddings=rows(8)[0])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=HANGING
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 8


def test_a_nan_never_passes_the_exported_graph(run, tmp_path, call):
    runtime = pytest.importorskip("onnxruntime")
    for score in ("logit", "distance", "combined"):
        call("export", run, "--out", tmp_path / "m.onnx", "--score", score, "--force")
        session = runtime.InferenceSession(tmp_path / "m.onnx")
        bad = np.full((2, WIDTH), np.nan, np.float32)
        bad[1] = np.inf
        assert session.run(["label"], {"embeddings": bad})[0].tolist() == [-1, -1]


def test_a_class_more(run, tmp_path, call):
    shutil.copytree(run, tmp_path / "run")
    vectors = (CENTERS[3] + np.random.default_rng(4).normal(size=(30, WIDTH))).astype(np.float32)
    np.savez(tmp_path / "fox.npz", embeddings=vectors)
    code, shown, error = call("add-class", tmp_path / "run", "fox", tmp_path / "fox.npz")
    assert code == 0, error
    assert "class fox: 10 prototypes" in shown
    np.savez(tmp_path / "ask.npz", embeddings=vectors[:1])
    answer = json.loads(call("predict", tmp_path / "run", tmp_path / "ask.npz", "--json")[1])["answers"][0]
    assert answer["class"] == "fox"
    assert answer["prototypes"][0]["file"].startswith("fox.npz["), (
        "a path of this machine is nobody's business"
    )


@pytest.mark.parametrize("kind", ["nan", "wide", "mixed", "picture", "two"])
def test_a_class_that_cannot_be_added_leaves_the_model(run, made, tmp_path, call, kind):
    vectors, labels = rows(6)
    more = {"labels": labels} if kind == "mixed" else {}
    vectors[2] = np.nan if kind == "nan" else vectors[2]
    np.savez(tmp_path / "a.npz", embeddings=vectors[:, :-1] if kind == "wide" else vectors, **more)
    given = [made / "img" / "1.png"] if kind == "picture" else [tmp_path / "a.npz"] * (1 + (kind == "two"))
    before = (run / "model" / "model.json").read_bytes() if (run / "model" / "model.json").exists() else b""
    code, _, error = call("add-class", run, "fox", *given)
    assert code in (2, 3)
    assert len(error.strip().splitlines()) == 1
    assert ("a.npz" if kind in ("nan", "mixed", "wide") else "one .npz") in error
    assert before == ((run / "model" / "model.json").read_bytes() if before else b"")


def test_rows_over_http(run):
    served = model_loader(run, torch.device("cpu"))()
    headers = {"Content-Type": "application/json"}
    vectors = rows(2)[0].tolist()
    with running_model(served) as (_, port):
        reply = http(port, "POST", "/v1/predict", json.dumps({"embeddings": vectors}).encode(), headers)
        assert reply.status == 200
        assert [a["image"] for a in reply.body["answers"]] == ["embeddings[0]", "embeddings[1]"]
        assert reply.body["answers"][0]["nearest"] == "cat"
        assert reply.body["answers"][0]["prototypes"][0]["picture"] is None
        mixed = json.dumps({"embeddings": [vectors[0], [1.0], [float("nan")] * WIDTH]}).encode()
        reply = http(port, "POST", "/v1/predict", mixed, headers)
        assert [error["index"] for error in reply.body["errors"]] == [1, 2]
        reply = http(port, "POST", "/v1/predict", b"x", {"Content-Type": "image/png"})
        assert reply.status == 415
        assert "send application/json" in reply.body["error"]
        about = http(port, "GET", "/v1/model").body
        assert (about["takes"], about["channels"]) == ("embeddings", WIDTH)


def test_what_was_killed_goes_on_and_ends_the_same(run, made, tmp_path, call, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "optimize_embedding", die)
        config, session = pipeline.read_config(run), open_session(Resources(device="cpu"))
        with pytest.raises(KeyboardInterrupt):
            pipeline.fit(config, tmp_path / "run", session)
    code, _, error = call("fit", made / "e.npz", "--out", tmp_path / "run", "--no-report", *FIT)
    assert code == 0, error
    for file in ("metrics.json", "prototypes.json"):
        assert (tmp_path / "run" / file).read_text() == (run / file).read_text()


def test_rows_that_are_not_finite_are_left_out_of_a_fit(tmp_path, call):
    vectors, labels = rows(240)
    vectors[7] = np.nan
    np.savez(tmp_path / "e.npz", embeddings=vectors, labels=labels)
    code, shown, error = call("fit", tmp_path / "e.npz", "--out", tmp_path / "run", "--no-report", *FIT)
    assert code == 0, error
    assert "1 of" in shown + error
    assert "rows left out, see quarantine.json" in shown + error
    assert "e.npz[7]" in (tmp_path / "run" / "quarantine.json").read_text()


def test_a_class_of_one_row_is_learned_with_a_warning(tmp_path, call):
    vectors, labels = rows(241)
    labels = np.append(labels[:240], "wolf")
    np.savez(tmp_path / "e.npz", embeddings=vectors, labels=labels)
    words = ("--out", tmp_path / "run", "--no-report", "--epochs", "2", "--device", "cpu")
    code, shown, error = call("fit", tmp_path / "e.npz", *words)
    assert code == 0, error
    assert "few rows: only 1 to learn class 'wolf' from" in shown + error


def test_data_check(tmp_path, call):
    vectors, labels = rows(8)
    code, shown, _ = call("data", "check", write_rows(tmp_path / "a.npz", 8))
    assert code == 0
    assert f"8 rows of {WIDTH} numbers, 4 classes" in shown
    vectors[1] = np.nan
    np.savez(tmp_path / "b.npz", embeddings=vectors, labels=labels)
    code, shown, error = call("data", "check", tmp_path / "b.npz", "--json")
    assert code == 3
    assert json.loads(shown)["problems"][0]["items"][0]["id"] == 1
    assert "b.npz: 1 row has NaN or infinite values: remove or embed them again" in error
    code, _, error = call("data", "convert", tmp_path / "b.npz", tmp_path / "c.parquet")
    assert code == 2
    assert not (tmp_path / "c.parquet").exists()


def test_benchmark_cells_of_rows(made, tmp_path, call):
    words = ("--data", made / "e.npz", "--methods", "softmax", "--out", tmp_path / "ledger", "--epochs", "2")
    known = ("--set", 'data.known=["cat", "dog"]')
    code, _, error = call("benchmark", *words, *known, "--device", "cpu")
    assert code == 0, error
    [cell] = (tmp_path / "ledger").glob("softmax/*.json")
    assert "precomputed" in cell.name


def test_far_images_are_none_of_its(run, call):
    code, _, error = call("benchmark", "far", run)
    assert code == 2
    assert "this model takes embeddings, not images: name a run that was fitted on images" in error


def test_a_source_of_rows_in_python(made):
    from pmal import OpenSetClassifier

    for encoder in ("auto", "precomputed"):
        model = OpenSetClassifier(encoder=encoder, random_state=0, device="cpu", epochs=2)
        model.fit(str(made / "e.npz"))
        assert model.n_features_in_ == WIDTH
        assert model.predict(rows(4)[0]).shape == (4,)
