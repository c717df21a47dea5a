"""What is no picture of anything is never called known, whoever asks: the estimator or the command."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from PIL import Image

from pmal import OpenSetClassifier
from pmal.errors import DataError, UsageError
from pmal.estimator.checks import make_problem
from pmal.rejection.bundle.saving import load_model, save_model
from tests.serving.tiny_model import make_model, pictures_of

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def textures(count):
    """Three kinds of noise that a network tells apart: coarse, in rows, in columns; 16 px, in color."""
    random, labels = np.random.default_rng(0), np.arange(count) % 3
    kinds = [(4, 4), (16, 2), (2, 16)]
    small = [random.integers(30, 226, (*kinds[k], 3)) for k in labels]
    pictures = [x.repeat(16 // x.shape[0], 0).repeat(16 // x.shape[1], 1) for x in small]
    return np.stack(pictures).astype(np.uint8), labels


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A classifier of textures in its folder, and the run that can be calibrated again."""
    images, labels = textures(600)
    settings = {"data": {"flip": "no", "augmentation": "none"}}
    made = OpenSetClassifier(encoder="small", epochs=3, random_state=0, device="cpu", settings=settings)
    folder = tmp_path_factory.mktemp("textures") / "model"
    made.fit(images, labels).save(folder)
    return folder


def write_bad_images(folder):
    """One color, one pixel, noise, at other sizes and with other channels than the model's."""
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    images = {
        "black": Image.new("L", (16, 16), 0),
        "noise": Image.fromarray(noise),
        "pixel": Image.new("RGB", (1, 1), (255, 0, 0)),
        "red": Image.new("RGB", (300, 200), (255, 0, 0)),
        "transparent": Image.new("RGBA", (16, 16), (0, 0, 0, 0)),
        "white": Image.new("L", (16, 16), 255),
    }
    for name, image in images.items():
        image.save(folder / f"{name}.png")
    return sorted(images)


def test_the_command_calls_no_such_image_known(saved, call, tmp_path):
    names = write_bad_images(tmp_path)
    code, out, _ = call("predict", str(saved), str(tmp_path), "--json")
    answers = json.loads(out)["answers"]
    assert code == 0
    assert [answer["class"] for answer in answers] == ["unknown"] * len(names)
    assert all(answer["p_value"] < 0.05 for answer in answers)


def test_the_estimator_calls_no_such_image_known(saved):
    model = OpenSetClassifier.load(saved)
    known, _ = textures(60)
    flat = np.stack([np.full((16, 16, 3), color, dtype=np.uint8) for color in (0, 128, 255)])
    assert (model.predict(flat) == -1).all()
    assert (model.predict(known) != -1).mean() > 0.8


def test_embeddings_without_a_value_are_refused_by_name_and_unknown_below():
    problem = make_problem()
    model = OpenSetClassifier(encoder="precomputed", random_state=0, device="cpu").fit(problem.X, problem.y)
    nothing = np.full_like(problem.X[:2], np.nan)
    with pytest.raises((DataError, UsageError), match="NaN"):
        model.predict(nothing)
    logits = torch.full((2, len(model.classes_)), torch.nan)
    answers = model.model_.answer_embedded(torch.from_numpy(nothing), logits)
    assert answers.labels.tolist() == [-1, -1]


def test_a_model_without_statistics_answers_only_by_a_threshold_of_the_users_own(call, tmp_path):
    older = dataclasses.replace(make_model(), typicality=None)
    save_model(tmp_path / "model", older)
    Image.fromarray(pictures_of(0, 1)[0, 0].numpy()).save(tmp_path / "rows.png")
    asked = ("predict", str(tmp_path), str(tmp_path / "rows.png"))
    code, out, error = call(*asked)
    assert (code, out) == (2, "")
    assert "statistics" in error
    assert "--from calibration" in error
    with pytest.raises(UsageError, match="statistics"):
        OpenSetClassifier.load(tmp_path)
    code, out, _ = call(*asked, "--threshold", "1000")
    assert code == 0
    assert "cat" in out


def test_models_of_embeddings_have_no_statistics_to_miss(tmp_path):
    problem = make_problem()
    model = OpenSetClassifier(encoder="precomputed", random_state=0, device="cpu").fit(problem.X, problem.y)
    model.save(tmp_path / "m")
    without = dataclasses.replace(load_model(tmp_path / "m" / "model", CPU), typicality=None)
    without.check_statistics()
