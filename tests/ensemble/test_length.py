"""Small sets are trained for steps, not epochs."""

import pytest

from pmal.config import RunConfig, TrainingConfig
from pmal.ensemble.length import with_enough_steps


def settings(**words):
    return RunConfig(training=TrainingConfig(**words))


@pytest.mark.parametrize(("images", "epochs"), [(20, 100), (480, 25), (2000, 20), (24_000, 20)])
def test_a_small_set_is_passed_over_more_often(images, epochs):
    found, note = with_enough_steps(settings(epochs=20, min_steps=100), images)
    assert found.training.epochs == epochs
    assert bool(note) == (epochs > 20)
    assert with_enough_steps(found, images)[0] == found, "what is resumed has the same settings"


def test_epochs_that_were_asked_for_stay_and_few_steps_are_warned_of():
    found, note = with_enough_steps(settings(epochs=30), 240)
    assert found == settings(epochs=30)
    assert note == (
        "warning: 30 epochs of 240 images: 60 steps, too few to learn much: raise --epochs to 50 or more"
    )
    assert with_enough_steps(settings(epochs=50), 240)[1] == ""
