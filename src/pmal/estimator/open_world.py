"""What a fitted classifier does with what it rejected, and with answers that somebody corrected."""

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._runtime.progress import choose_display
from pmal.data.decoding.loading import load_images
from pmal.data.samples import Samples
from pmal.data.targets import ClassLabels
from pmal.rejection.model import Answers, OpenSetModel
from pmal.rejection.open_world.corrected import Corrected
from pmal.rejection.open_world.grouping import Group, find_groups
from pmal.rejection.open_world.removal import RemovedClass, remove_class
from pmal.rejection.open_world.renewal import renew
from pmal.rejection.open_world.renewal_effect import Renewed


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
            smallest: samples of a group at least. None: 5, and more of more than 1,000 rejected ones.
            rejected_only: whether to leave out what the classifier names. False: all of X is grouped.

        Returns:
            Groups with `members`, positions in X with the most central first, and `tightness`, their mean
            cosine to the center.
        """
        answers = self._answers_of(self._samples(X))
        pile_N = answers.labels.numpy() < 0 if rejected_only else np.ones(len(answers.labels), dtype=bool)
        places_N = np.flatnonzero(pile_N)
        groups = find_groups(answers.z.cpu().numpy()[places_N], smallest)
        return [Group(places_N[group.members], group.tightness) for group in groups]

    def update(self, X: Any, y: Any) -> Renewed:
        """Take in corrected answers without training, and return what that changed.

        Half of each class's samples become neighbors, and some of them prototypes; the other half sets the
        threshold together with the samples held out so far. The threshold's promise is
        kept where the known samples among X are a fair sample of what comes in.

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
        spec = self.model_.classifier.spec
        return load_images(samples, size=spec.image_size, channels=spec.channels).images

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
    def _answers_of(self, samples: Samples) -> Answers: ...
