"""What a fitted classifier does with what it rejected, and with answers that somebody corrected."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._runtime.progress import choose_display
from pmal.data.arrays import ReadSamples
from pmal.data.decoding.loading import load_images
from pmal.data.samples import Samples
from pmal.data.targets import ClassLabels
from pmal.rejection.model import OpenSetModel
from pmal.rejection.open_world.corrected import Corrected
from pmal.rejection.open_world.grouping import Group, find_groups
from pmal.rejection.open_world.removal import RemovedClass, remove_class
from pmal.rejection.open_world.renewal import renew
from pmal.rejection.open_world.renewal_effect import Renewed
from pmal.rejection.open_world.space import answer_with_space

_BLOCK = 512
"""Samples that are read at a time."""


class OpenWorldMixin:
    """Groups among rejected samples, corrected answers, and classes that go."""

    classes_: NDArray[Any]
    model_: OpenSetModel
    changes_: tuple[str, ...]
    """What was done since it was fitted, loaded or saved."""
    verbose: bool

    def discover(self, X: Any, smallest: int | None = None, rejected_only: bool = True) -> list[Group]:
        """Return groups among the samples that are rejected: proposals of new classes.

        How many there are is found, not asked. Large and tight groups come first; samples that lie in no
        group are in none. Give a group to `add_class` to make a class of it.

        Args:
            X: samples, known and unknown ones.
            smallest: samples of a group at least. None: the square root of how many are rejected, 5 to 50.
            rejected_only: whether to leave out what the classifier names. False: all of X is grouped.

        Returns:
            Groups with `members`, positions in X with the most central first, and `tightness`, their mean
            cosine to the center.
        """
        samples = self._samples(X)
        plan = torch.split(torch.arange(len(samples)), _BLOCK)
        blocks = [answer_with_space(self.model_, images) for images in self._read(samples).stream(plan)]
        labels_N = np.concatenate([answers.labels.numpy() for answers, _ in blocks])
        places_N = np.flatnonzero((labels_N < 0) | (not rejected_only))
        z_ND = np.concatenate([z_BD for _, z_BD in blocks])
        groups = find_groups(z_ND[places_N], smallest)
        return [Group(places_N[group.members], group.tightness) for group in groups]

    def update(self, X: Any, y: Any) -> Renewed:
        """Take in corrected answers without training, and return what that changed.

        Half of each class's samples become neighbors, and some of them prototypes; the other half sets the
        threshold together with the samples held out so far. The threshold's promise is
        kept if the known samples among X are a fair sample of what comes in.

        Args:
            X: samples that the classifier was not trained on.
            y: their true classes, among `classes_`, or unknown (-1).

        Returns:
            What became of them, and whether a full training is advised (`train_again`).
        """
        samples = self._samples(X)
        labels_N = torch.from_numpy(self._labels.numbers(y, len(samples)))
        z_ND, _, far_N = self._embed_samples(samples)
        names = [samples.name(position) for position in range(len(samples))]
        given = Corrected(z_ND, far_N, labels_N, self._pixels(samples), names)
        self.model_, effect = renew(self.model_, given)
        self.changes_ = (*self.changes_, f"updated by {effect.known} known and {effect.unknown} unknown")
        self._say(effect)
        return effect

    def remove_class(self, name: Any) -> RemovedClass:
        """Forget a class without training, one that was trained or added; its samples are unknown then.

        Returns:
            What went with it.
        """
        labels = self._labels
        self.model_, effect = remove_class(self.model_, str(name))
        left = [value for value in labels.values.tolist() if str(value) != str(name)]
        self.classes_ = np.array(left)
        self.changes_ = (*self.changes_, f"removed {name}")
        self._say(effect)
        return effect

    def _pixels(self, samples: Samples) -> torch.Tensor:
        return load_images(samples, self.model_.classifier.spec.image_shape).images

    def _say(self, effect: Renewed | RemovedClass) -> None:
        if self.verbose:
            choose_display(quiet=False).say(str(effect))

    @property
    @abstractmethod
    def _labels(self) -> ClassLabels: ...

    @abstractmethod
    def _samples(self, X: Any, origin: str = "X") -> Samples: ...

    @abstractmethod
    def _embed_samples(self, samples: Samples) -> tuple[torch.Tensor, ...]: ...

    @abstractmethod
    def _read(self, samples: Samples) -> ReadSamples: ...
