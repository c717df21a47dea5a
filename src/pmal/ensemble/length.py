"""The length of trainings: small sets need more epochs, because a network learns by steps."""

import math
from dataclasses import replace

from pmal._runtime.text import counted
from pmal.config import RunConfig
from pmal.data.feeding.batches import steps_in_epoch

FEW_STEPS = 100
"""Fewest steps: with fewer, a network is little better than its initial weights."""


def with_enough_steps(config: RunConfig, images: int) -> tuple[RunConfig, str]:
    """Return the settings with enough epochs for a set of this size, and one line about the change.

    The line is empty if the epochs of the settings are enough. Settings without `training.min_steps`, for
    example after a user asked for a number of epochs, stay unchanged; too few steps give a warning.

    >>> from pmal.config import TrainingConfig
    >>> config, note = with_enough_steps(RunConfig(training=TrainingConfig(epochs=20, min_steps=100)), 480)
    >>> config.training.epochs, note
    (25, '480 images: 25 epochs instead of 20, for 100 steps')
    """
    training = config.training
    steps = steps_in_epoch(images, training.batch_size)
    needed = math.ceil(training.min_steps / steps)
    if needed > training.epochs:
        note = f"{images:,} images: {needed} epochs instead of {training.epochs}, for {needed * steps} steps"
        return replace(config, training=replace(training, epochs=needed)), note
    done, enough = training.epochs * steps, math.ceil(FEW_STEPS / steps)
    if done < FEW_STEPS:
        made = f"{counted(training.epochs, 'epoch')} of {images:,} images: {done} steps"
        return (
            config,
            f"warning: {made}, too few to learn much: raise --epochs to {enough} or more",
        )
    return config, ""
