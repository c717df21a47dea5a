"""An open-set problem: known classes to learn, their test images, and images of unknown classes."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pmal.config import DataConfig
from pmal.data.samples import UNKNOWN_NAME, Samples, Source
from pmal.data.sources.readers import open_source
from pmal.data.splits.protocols import (
    Split,
    all_known,
    get_split,
    list_families,
    list_sets,
    named_split,
    random_split,
)
from pmal.errors import DataError, UsageError, unknown_name

TEST_SHARE = 0.2
FEW_ENOUGH_FOR_FOLDS = 2000
"""Training images up to which they are held out in turn, if that is asked for: then a tenth is too few."""
ENOUGH_HELD_OUT = 40
"""19 are needed to promise accept = 0.95, and as few leave the share open between 85 and 100 %."""
_ROUNDING = 1e-9
"""A tenth of ten images is one, whatever floating point makes of it."""
Counts = NDArray[np.int64]
OWN_FAMILIES = ("all", "random", "named")


@dataclass(frozen=True)
class Task:
    """Labels of the known parts are 0 .. K-1; those of the unknown part are the data set's own."""

    split: Split
    train: Samples
    held_out: Samples | None
    """Known images that are not trained on: what thresholds are calibrated with."""
    test: Samples | None
    """None: the result is not measured."""
    unknown: Samples | None
    flip: bool
    folds: int = 0
    """Parts of the training images that are held out in turn, in the place of `held_out`."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the known classes."""
        return self.train.class_names

    def parts(self) -> dict[str, Samples]:
        """Return the parts that there are, by name."""
        parts = {"train": self.train, "held out": self.held_out, "test": self.test, "unknown": self.unknown}
        return {name: part for name, part in parts.items() if part is not None}

    def drawn(self) -> dict[str, int]:
        """Return how many images each part drew from the source of the training images.

        If these numbers change, other images than before are test images.
        """
        own = {name: part for name, part in self.parts().items() if part.store is self.train.store}
        return {name: len(part) for name, part in own.items() if len(part)}


def open_task(config: DataConfig, data_root: str | None) -> Task:
    """Return the known and unknown samples of a run; pixels are not read yet."""
    source = open_source(config.source, data_root)
    return make_task(source, choose_split(source, config), config)


def choose_split(source: Source, config: DataConfig) -> Split:
    """Return the split that the settings ask for, or the customary one for this source."""
    published = list_families(source.name) if source.name in list_sets() else ()
    family = config.family if config.family != "auto" else customary_family(published, config)
    names = source.train.class_names
    _check_choice(family, config)
    if family in published:
        return get_split(source.name, family, config.split)
    if family == "named":
        return named_split(names, config.known)
    if family == "random":
        return _random_split(source.train, config)
    if family == "all":
        return all_known(len(names))
    raise unknown_name(f"split family of {source.name}", family, [*published, *OWN_FAMILIES])


def _random_split(train: Samples, config: DataConfig) -> Split:
    """Return a random split; classes without training images, as parts of sets have, are unknown."""
    present = np.flatnonzero(np.bincount(train.labels, minlength=len(train.class_names))).tolist()
    drawn = random_split(len(present), config.num_known or max(2, round(0.6 * len(present))), config.split)
    known = tuple(present[k] for k in drawn.known)
    return replace(drawn, known=known, unknown=tuple(sorted({*range(len(train.class_names))} - {*known})))


def make_task(source: Source, split: Split, config: DataConfig) -> Task:
    """Divide the source by the split; fails before any training if a part cannot be used."""
    everything, test = source.train, source.test
    if test is None:
        everything, test = hold_out(everything, TEST_SHARE)
    train, held_out, folds = _learned(everything.of_classes(split.known), config, split.index)
    task = Task(
        split=split,
        folds=folds,
        train=train,
        held_out=held_out,
        test=test.of_classes(split.known),
        # No image of an unknown class is trained on, so a source without a test part has all of them tested.
        unknown=_unknown_part(source, split, source.train if source.test is None else source.test),
        flip=_flip(config.flip, source.digits),
    )
    _check(task, source.name)
    return task


def cost_of_few(task: Task, accept: float) -> str:
    """Return one line that says what so few images cost; empty if there are enough."""
    costs = []
    if task.test is not None and 0 < len(task.test) < ENOUGH_HELD_OUT:
        count = len(task.test)
        costs.append(f"ACC rests on {count} test images, each of which is {100 / count:.3g} points")
    held_out = len(task.train) if task.folds else len(task.held_out) if task.held_out else 0
    if 0 < held_out < ENOUGH_HELD_OUT:
        costs.append(_cost_of_few_held_out(held_out, accept))
    return f"few images: {'; '.join(costs)}" if costs else ""


def _cost_of_few_held_out(count: int, accept: float) -> str:
    share = Fraction(str(accept))
    if math.ceil((count + 1) * share) <= count:
        return f"the threshold rests on {count} held-out images: {_accepted(count, share)}"
    needed, possible = math.ceil(share / (1 - share)), Fraction(100 * count // (count + 1), 100)
    lack = f"{count} held-out images are too few for accept={accept:g}, which needs {needed}"
    advice = f"with rejection.accept={float(possible):g} the threshold {_accepted(count, possible)}"
    return f"{lack}: nothing is rejected; {advice}"


def _accepted(count: int, share: Fraction) -> str:
    """Return what a threshold at a rank among so many scores accepts: a share with a beta distribution."""
    from scipy.special import betaincinv  # takes a while to import

    rank = math.ceil((count + 1) * share)
    low, high = (100 * float(betaincinv(rank, count + 1 - rank, level)) for level in (0.05, 0.95))
    return f"accepts {low:.0f} to {high:.0f} % of known images (90 % range)"


def learning_task(samples: Samples, name: str, config: DataConfig) -> Task:
    """Return all samples to learn from but those held out, all classes known, and nothing to measure.

    A single class can be told from all else.
    """
    if config.family not in ("auto", "all") or config.split or config.known or config.num_known:
        raise UsageError(f"{name}: all classes in y are known: leave data.family, split and known out")
    train, held_out, folds = _learned(samples, config, draw=0)
    task = Task(
        folds=folds,
        split=all_known(len(samples.class_names)),
        train=train,
        held_out=held_out,
        test=None,
        unknown=None,
        flip=_flip(config.flip, digits=False),
    )
    _check(task, name, fewest=1)
    return task


def fold_of_each(labels_N: Counts, folds: int) -> Counts:
    """Return the part in which each sample is held out, from 0 on; -1: never, as the only one of its class.

    Classes are spread evenly over the parts, and parts are of equal size. The draw is fixed.

    >>> np.bincount(fold_of_each(np.array([0] * 6 + [1] * 4), 5)).tolist()
    [2, 2, 2, 2, 2]
    """
    random, fold_N, given = np.random.default_rng(0), np.full(len(labels_N), -1, dtype=np.int64), 0
    for label in np.unique(labels_N):
        members = random.permutation(np.flatnonzero(labels_N == label))
        if len(members) > 1:
            fold_N[members] = (given + np.arange(len(members))) % folds
            given += len(members)
    return fold_N


def _learned(known: Samples, config: DataConfig, draw: int) -> tuple[Samples, Samples | None, int]:
    """Return what is learned of the known samples, what is held out for good, and the folds if there are."""
    known = long_tailed(limited(known, config.limit), config.long_tail, draw)
    # The only sample of a class is never held out. If every class has one, nothing is.
    in_turn = len(np.unique(known.labels)) < len(known) <= FEW_ENOUGH_FOR_FOLDS
    folds = config.folds if config.held_out and in_turn else 0
    train, held_out = hold_out_enough(known, 0 if folds else config.held_out)
    return train, held_out if len(held_out) else None, folds


def hold_out(samples: Samples, share: float) -> tuple[Samples, Samples]:
    """Return all but a share of every class, and that share.

    What rounding leaves of a class's share counts for the next class, so that small classes give their share
    together; one sample of each stays. The draw is fixed, so that runs with different seeds are tested and
    calibrated on the same images.
    """
    return _draw(samples, _counts(samples, share))


def hold_out_enough(samples: Samples, share: float) -> tuple[Samples, Samples]:
    """Return all samples but those that set the threshold, and these: a share of each class, and not too few.

    If the share comes to fewer than 40 samples in all (or a third of them, if that is less), more are taken:
    an equal share of every class, as new samples would have it, but at least 2 of each class stay. A share of
    0 takes none.
    """
    count_K, size_K = _counts(samples, share), np.bincount(samples.labels, minlength=len(samples.class_names))
    enough = min(ENOUGH_HELD_OUT, len(samples) // 3) if share else 0
    while count_K.sum() < enough and (size_K - count_K > 2).any():
        share_K = np.where(size_K - count_K > 2, (count_K + 1) / np.maximum(size_K, 1), np.inf)
        count_K[share_K.argmin()] += 1
    return _draw(samples, count_K)


def _counts(samples: Samples, share: float) -> Counts:
    """Return how many samples of each class are a share of it."""
    count_K, owed = np.zeros(len(samples.class_names), dtype=np.int64), 0.0
    for label, size in enumerate(np.bincount(samples.labels, minlength=len(count_K)).tolist()):
        owed += share * size
        count_K[label] = max(0, min(int(owed + _ROUNDING), size - 1))
        owed -= int(count_K[label])
    return count_K


def _draw(samples: Samples, count_K: Counts) -> tuple[Samples, Samples]:
    """Return all samples but so many of each class, and these; more of a class contain fewer of it."""
    random, taken = np.random.default_rng(0), np.zeros(len(samples), dtype=bool)
    for label, count in enumerate(count_K.tolist()):
        taken[random.permutation(np.flatnonzero(samples.labels == label))[:count]] = True
    return samples.at(~taken), samples.at(taken)


def limited(samples: Samples, limit: int) -> Samples:
    """Return at most so many samples of every class, in their order; the draw is fixed. 0: all."""
    if not limit:
        return samples
    return _draw(samples, np.full(len(samples.class_names), limit))[1]


def long_tailed(samples: Samples, ratio: float, draw: int) -> Samples:
    """Return a long-tailed draw of the samples, in their order; 0: all of them.

    The class of rank k of K keeps ratio ** (-k / (K - 1)) of its samples, rounded, and at least one. Which
    classes are large is drawn at random.

    Args:
        samples: of classes of any size.
        ratio: how many times as many samples the first class keeps as the last, of classes of one size.
        draw: which of the draws. It decides the order of the classes and, with it, the samples.
    """
    if not ratio:
        return samples
    random, keep = np.random.default_rng(draw), np.zeros(len(samples), dtype=bool)
    last = max(len(samples.class_names) - 1, 1)
    for rank, label in enumerate(random.permutation(len(samples.class_names)).tolist()):
        members = random.permutation(np.flatnonzero(samples.labels == label))
        keep[members[: max(1, round(len(members) * ratio ** (-rank / last)))]] = True
    return samples.at(keep)


def customary_family(published: tuple[str, ...], config: DataConfig) -> str:
    """Return the family of splits that is used if the settings name none."""
    if config.known:
        return "named"
    if config.num_known:
        return "random"
    if "arpl" in published:
        return "arpl"
    return published[0] if published else "all"


def _check_choice(family: str, config: DataConfig) -> None:
    """Refuse settings that this family would silently ignore."""
    if config.known and family != "named":
        raise UsageError(f"--known does not go with family '{family}': leave one of them out")
    if config.num_known and family != "random":
        raise UsageError(f"--num-known does not go with family '{family}': leave one of them out")
    if config.split and family in ("named", "all"):
        raise UsageError(f"--split {config.split} does not go with family '{family}': it has one split only")


def _unknown_part(source: Source, split: Split, own: Samples) -> Samples | None:
    pool = source.foreign if split.foreign else own
    if pool is None:
        raise DataError(f"{source.name}: the unknown test images of split {split.label} are missing")
    if split.foreign and not split.unknown:
        return pool
    unknown = pool.at(np.isin(pool.labels, split.unknown))
    return unknown if split.unknown else None


def _flip(choice: str, digits: bool) -> bool:
    if choice not in ("auto", "yes", "no"):
        raise unknown_name("setting data.flip", choice, ["auto", "yes", "no"])
    return choice == "yes" or (choice == "auto" and not digits)


def _check(task: Task, source: str, fewest: int = 2) -> None:
    if len(task.class_names) < fewest:
        raise DataError(f"{source}: {len(task.class_names)} known class: a classifier needs at least 2")
    if UNKNOWN_NAME in task.class_names:
        raise DataError(
            f"{source}: a known class is named '{UNKNOWN_NAME}', as is the answer for all others: rename it"
        )
    per_class = np.bincount(task.train.labels, minlength=len(task.class_names))
    empty = [task.class_names[k] for k in np.flatnonzero(per_class == 0)]
    if empty:
        some = ", ".join(f"'{name}'" for name in empty[:5]) + (" ..." if len(empty) > 5 else "")
        raise DataError(
            f"{source}: no training images of {len(empty)} known classes ({some}): choose other known classes"
        )
    if task.test is not None and not len(task.test):
        raise DataError(
            f"{source}: no test images of the known classes: add some, at least 5 images per class"
        )
    if task.unknown is not None and not len(task.unknown):
        raise UsageError(
            f"{source}: split {task.split.label} has unknown classes, but no test images of them"
        )
