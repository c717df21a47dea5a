"""What every stage that learns is handed: settings, training images, network, and where results are kept."""

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
    """What the networks are built from."""
    flip: bool
    """Whether images may be mirrored."""
    folder: Path
    """Where every stage keeps its results: what is there is loaded, not repeated."""
    session: Session

    @functools.cached_property
    def data(self) -> TrainingSet:
        """The training images as the loop takes them."""
        return training_set(self.train, self.session)

    @property
    def method(self) -> Method:
        """The method by its name in the settings."""
        return METHODS[self.config.method]

    def on(self, train: Part, folder: Path) -> "Job":
        """Return the same job on other images, in another folder, without display and log."""
        quiet = replace(self.session, display=Silent(), log=lambda **event: None)
        return replace(self, train=train, folder=folder, session=quiet)
