"""Arguments of every learning stage: settings, training images, network, and the folder of results."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from pmal._engine.loop import TrainingSet, training_set
from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import RunConfig
from pmal.data.feeding.parts import Part
from pmal.ensemble.classifier import ClassifierSpec
from pmal.methods import METHODS, Method


@dataclass(frozen=True)
class Job:
    """One training of a method, from images to the final network."""

    config: RunConfig
    train: Part
    spec: ClassifierSpec
    """The description that the networks are built from."""
    flip: bool
    """Whether images may be mirrored."""
    folder: Path
    """The folder in which every stage stores its results: existing results are loaded, not repeated."""
    session: Session

    @functools.cached_property
    def data(self) -> TrainingSet:
        """Return the training images as a set for the training loop."""
        return training_set(self.train, self.session)

    @property
    def method(self) -> Method:
        """Return the method that the settings name."""
        return METHODS[self.config.method]

    def on(self, train: Part, folder: Path) -> "Job":
        """Return the same job on other images, in another folder, without display and log."""
        quiet = replace(self.session, display=Silent(), log=lambda **event: None)
        return replace(self, train=train, folder=folder, session=quiet)
