"""Every method runs through the same stages, and its model answers the same after a save and a load."""

import pytest
import torch

from pmal import pipeline
from pmal._runtime.session import open_session
from pmal.config import Resources, RunConfig, build, merge, read_recipe
from pmal.ensemble.heads import default_options
from pmal.errors import UsageError
from pmal.methods import METHODS
from pmal.rejection.bundle.saving import load_model
from pmal.rejection.scores import LOGIT_SCORES

QUICK = {"data": {"limit": 24, "held_out": 0.25}, "training": {"epochs": 1, "batch_size": 32}}


def quick_config(method, **settings):
    return build(RunConfig, merge(read_recipe("sample"), QUICK, {"method": method}, settings))


@pytest.fixture(scope="module")
def session():
    return open_session(Resources(device="cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("pmal", "softmax")])
def test_it_trains_saves_loads_and_answers_the_same(method, session, tmp_path):
    metrics = pipeline.fit(quick_config(method), tmp_path / "run", session)
    scores = set(metrics["scores"])
    assert scores >= {*LOGIT_SCORES, *METHODS[method].scores}
    assert metrics["decision"]["score"] == METHODS[method].score
    assert ("softmax" in metrics) == METHODS[method].second

    images = torch.randint(
        0, 256, (7, 1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    model = load_model(tmp_path / "run" / "model", torch.device("cpu"))
    head = model.classifier.spec.head  # whole, so that another default some day does not change it
    assert head.options.keys() == default_options(head.name).keys()
    again = load_model(tmp_path / "run" / "model", torch.device("cpu"))
    one, two = model.answer(images), again.answer(images)
    assert torch.equal(one.score, two.score)
    assert torch.equal(one.labels, two.labels)
    assert pipeline.evaluate(tmp_path / "run", session)["scores"] == metrics["scores"]


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("pmal", "softmax")])
def test_an_option_that_a_method_does_not_have_is_refused(method, session, tmp_path):
    with pytest.raises(UsageError, match="no_such"):
        pipeline.fit(quick_config(method, method_options={"no_such": 1}), tmp_path / "run", session)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"points": 1.5}, {"gamma": "high"}, {"weight": True}])
def test_an_option_of_another_type_is_refused(options, session, tmp_path):
    [(name, value)] = options.items()
    with pytest.raises(UsageError, match=f"method_options.{name} = {value!r}: expected (int|float)"):
        pipeline.fit(quick_config("cpn", method_options=options), tmp_path / "run", session)


@pytest.mark.slow
def test_a_final_head_is_made_anew_with_other_options(session, tmp_path):
    """They concern the second training alone: the classifiers stay."""
    run = tmp_path / "run"
    pipeline.fit(quick_config("proser"), run, session)
    weights = run / "classifiers" / "0" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    other = quick_config("proser", method_options={"placeholders": 3})
    pipeline.fit(other, run, session, start="optimization")
    assert weights.stat().st_mtime_ns == before
    assert len(load_model(run / "model", torch.device("cpu")).classifier.head.placeholders.weight) == 3
    with pytest.raises(UsageError, match="placeholders = 3, not None"):
        pipeline.fit(quick_config("proser"), run, session, start="calibration")


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("arpl", "temperature", 0.0),
        ("arpl", "weight", float("nan")),
        ("cpn", "gamma", -1.0),
        ("rpl", "weight", float("inf")),
    ],
)
def test_an_option_that_no_training_can_have_is_refused(method, option, value, session, tmp_path):
    with pytest.raises(UsageError, match=f"method_options.{option} = {value}: must be"):
        pipeline.fit(quick_config(method, method_options={option: value}), tmp_path / "run", session)
    assert not (tmp_path / "run").exists()
