"""How long a run takes is told before it starts."""

from dataclasses import replace

import pytest
import torch

from pmal.config import EncoderConfig, RunConfig
from pmal.data.splits.protocols import all_known
from pmal.data.splits.task import Task
from pmal.ensemble import forecast
from pmal.ensemble.classifier import ClassifierSpec
from pmal.ensemble.finetuning import forward_passes
from pmal.ensemble.forecast import IMAGES, Work, describe_time, seconds_needed, work_of
from pmal.ensemble.heads import HeadConfig

SPEC = ClassifierSpec(EncoderConfig("small"), ("a", "b"), 28, 1)


def clock(*times):
    return iter(times).__next__


def task(folds=0, **parts):
    parts = {"held_out": None, "test": None, "unknown": None} | parts
    return Task(split=all_known(2), train=range(400), **parts, flip=False, folds=folds)


def test_every_fold_trains_on_the_others():
    assert work_of(task(), 30.0, frozen=False) == Work(0, 12_000)
    assert work_of(task(folds=10), 30.0, frozen=False) == Work(0, 12_000 + 10 * 0.9 * 12_000)


def test_a_frozen_network_embeds_all_parts():
    parts = {"held_out": range(40), "test": range(100), "unknown": range(60)}
    assert work_of(task(**parts), 1.0, frozen=True).embedded == 600


def test_fine_tuning_is_added_and_the_run_is_measured_without_it_too():
    encoder = EncoderConfig("efficientnet_lite0", finetune="all", finetune_epochs=4)
    work = work_of(task(test=range(100)), 30.0, frozen=True, finetuning=forward_passes(encoder))
    assert work == Work(2 * 500 + 4 * 3 * 400, 2 * 12_000)
    assert forward_passes(EncoderConfig("efficientnet_lite0")) == 0
    line = describe_time(7200, "efficientnet_lite0", frozen=True, finetuned=True)
    assert line.endswith("no --finetune, --set encoder.finetune_epochs=3 or a GPU take less")


def test_the_second_step_is_the_one_that_counts():
    # One clock at the start and one at the end of the second step: half a second for IMAGES images.
    found = seconds_needed(Work(0, 100 * IMAGES), SPEC, RunConfig(), None, clock(7.0, 7.5))
    assert found == pytest.approx(50.0)


def test_a_step_that_shows_several_views_is_not_counted_for_each():
    """The clock has seen all of them."""
    spec = replace(SPEC, head=HeadConfig("conosr"))
    config = RunConfig(method="conosr")
    one = seconds_needed(Work(0, 4 * 10 * IMAGES), spec, config, None, clock=clock(0.0, 2.0))
    assert one == pytest.approx(10 * 2.0)


def test_embedding_is_added():
    calls = []

    class Frozen:
        image_size = 8

        def __call__(self, pixels):
            calls.append(pixels.shape)

    work = Work(10 * IMAGES, 100 * IMAGES)
    found = seconds_needed(work, SPEC, RunConfig(), Frozen(), clock(0.0, 0.5, 1.0, 3.0))
    assert found == pytest.approx(50.0 + 20.0)
    assert calls == [(IMAGES, 3, 8, 8)] * 2


def test_random_numbers_stay_where_they_were():
    before = torch.get_rng_state()
    seconds_needed(Work(0, 1), SPEC, RunConfig(), None)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("missing", "encoder", "expected"),
    [
        (None, "resnet18", "--encoder efficientnet_lite0 (pretrained, for photos), fewer --epochs"),
        ("no weights", "resnet18", "--encoder small, fewer --epochs"),
        ("no weights", "small", "fewer --epochs"),
    ],
)
def test_what_is_long_is_warned_of_with_what_takes_less(monkeypatch, missing, encoder, expected):
    monkeypatch.setattr(forecast, "weights_missing", lambda name: missing)
    assert (
        describe_time(601, encoder, frozen=False)
        == f"warning: about 10 min 01 s on this CPU: {expected} or a GPU take less"
    )
