"""A run with fine-tuning: what is trained, at which rates, and that all the rest works on the result."""

import json

import numpy as np
import pytest
import torch

from pmal._engine.loop import TrainingConfig, _Loop
from pmal._engine.optimizers import make_optimizer, set_rate
from pmal._runtime.tensors import load_tensors
from pmal.encoders.pretrained.backbone import Backbone
from pmal.encoders.pretrained.preprocessing import Preprocessing
from pmal.ensemble.finetuning import Learner
from pmal.errors import Interrupted
from tests.encoders.pretrained.tiny_models import save_tiny
from tests.support.command_line import assert_one_line_error

pytestmark = pytest.mark.slow

QUICK = ("--epochs", 2, "--set", "encoder.finetune_epochs=2", "--no-report", "--device", "cpu")


def words(out, depth="last"):
    encoder = ("--encoder", "hf/./tiny", "--finetune", depth)
    return ["fit", "images", "--num-known", 2, *encoder, "--out", out, *QUICK]


def tiny_backbone(blocks=8):
    layers = [torch.nn.Conv2d(3, 3, 1) for _ in range(blocks)]
    body = torch.nn.Sequential(*layers, torch.nn.BatchNorm2d(3), torch.nn.AdaptiveAvgPool2d(1))
    body.append(torch.nn.Flatten())
    images = Preprocessing(8, 8, (0.5,) * 3, (0.5,) * 3)
    return Backbone("tiny", body, images, num_features=3, architecture={})


def test_rates_fall_with_depth():
    model = Learner(tiny_backbone(), 2, "all", 0.5)
    optimizer = make_optimizer(model, TrainingConfig(learning_rate=0.1))
    set_rate(optimizer, 0.08)
    rates = [group["lr"] for group in optimizer.param_groups]
    assert rates == pytest.approx([0.08 * 0.5**i for i in range(len(rates))])
    assert len(rates) == 10


def test_lower_layers_and_batch_statistics_stay_with_last():
    backbone = tiny_backbone()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    model = Learner(backbone, 2, "last", 0.8)
    optimizer = make_optimizer(model, TrainingConfig(learning_rate=0.1))
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    for _ in range(3):  # the layer on top starts at zero, so that the first step trains it alone
        optimizer.zero_grad()
        model.train()
        model.loss(images, torch.tensor([0, 1, 0, 1]), flip=True).backward()
        optimizer.step()
    changed = {name for name, tensor in backbone.state_dict().items() if not tensor.equal(before[name])}
    assert changed
    assert all(int(name.split(".")[1]) >= 6 for name in changed), changed
    assert not any("running" in name for name in changed)


def test_export_answers_like_predict_and_no_folds_are_used(folder, call):
    # Not the random ResNet: some of its channels hardly vary on flat colors (deviation 8e-5), and dividing by
    # that enlarges the rounding of float32 beyond what an export may differ by.
    save_tiny("dinov2", folder / "tiny")
    code, out, error = call(*words("run"))
    assert code == 0, error
    assert "frozen" in out
    assert "fine-tuned" in out
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert {"accuracy", "scores", "decision"} == set(metrics["frozen"])
    assert not list((folder / "run").glob("folds*"))
    files = [f"images/{name}/{i}.png" for name in ("blue", "green", "red") for i in range(3)]
    code, _, error = call("export", "run", "--out", "run.onnx")
    assert code == 0, error
    answers = [json.loads(call("predict", m, *files, "--json")[1])["answers"] for m in ("run", "run.onnx")]
    for wanted, got in zip(*answers, strict=True):
        assert (got["class"], got["nearest"]) == (wanted["class"], wanted["nearest"])
        assert got["score"] == pytest.approx(wanted["score"], rel=1e-3, abs=1e-5)
    code, out, error = call("evaluate", "run", "--json")
    assert code == 0, error
    assert json.loads(out)["scores"] == metrics["scores"]


def test_an_interrupted_run_ends_with_the_same_bits(folder, call, monkeypatch):
    save_tiny("resnet", folder / "tiny")
    assert call(*words("whole", "all"))[0] == 0
    run_step = _Loop.run_step

    def stop(loop, *step):
        if loop.name == "fine-tuning" and loop.step == 1:
            loop.save()
            raise Interrupted(2, "interrupted")
        run_step(loop, *step)

    with monkeypatch.context() as patched:
        patched.setattr(_Loop, "run_step", stop)
        assert call(*words("broken", "all"))[0] == 130
    code, _, error = call(*words("broken", "all"))
    assert code == 0, error
    whole, again = (load_tensors(folder / run / "finetuned")[0] for run in ("whole", "broken"))
    assert all(tensor.equal(again[name]) for name, tensor in whole.items())
    assert (folder / "whole/metrics.json").read_text() == (folder / "broken/metrics.json").read_text()


def test_wrong_use_is_one_line(folder, call):
    small = call("fit", "images", "--encoder", "small", "--finetune", "last", "--out", "run")
    assert_one_line_error(small, 2, "finetune last goes with a pretrained encoder, not with small")
    np.savez("features.npz", features=np.zeros((9, 4), np.float32), labels=np.arange(9) % 3)
    # Named: else a line before the error says which encoder was chosen.
    vectors = call("fit", "features.npz", "--encoder", "precomputed", "--finetune", "all", "--out", "run")
    assert_one_line_error(vectors, 2, "not with precomputed")
    folds = call(*words("run"), "--set", "data.folds=5")
    assert_one_line_error(folds, 2, "data.folds does not go with finetune")
