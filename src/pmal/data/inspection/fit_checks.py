"""Whether `pmal fit` would accept a data set, found by its own checks with its default settings."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pmal.config import DataConfig
from pmal.data.decoding.fitting import listed
from pmal.data.decoding.loading import check_quarantine
from pmal.data.feeding.parts import check_classes, image_shape
from pmal.data.inspection.images import PartLooks
from pmal.data.samples import NOT_FINITE, Samples, Source, VectorStore
from pmal.data.splits.protocols import list_sets
from pmal.data.splits.task import Task, choose_split, make_task
from pmal.errors import PmalError


def refusals(source: Source, parts: Sequence[PartLooks]) -> list[str]:
    """Return the errors of `pmal fit` except those of classes without images; empty if it would start.

    Args:
        source: the data set.
        parts: its parts, after all images were looked at.
    """
    unread = {
        id(part.samples.store): {int(part.samples.ids[bad.position]): bad.reason for bad in part.unread}
        for part in parts
    }
    return _refusals(source, lambda samples: unread[id(samples.store)], image_shape)


def row_refusals(source: Source) -> list[str]:
    """Return the errors of `pmal fit` for embeddings; empty if it would start."""
    return _refusals(source, _broken_rows)


def _refusals(
    source: Source, unread: Callable[[Samples], dict[int, str]], *of_task: Callable[..., Any]
) -> list[str]:
    """Return the errors of `pmal fit`, in the order in which it would meet them.

    Args:
        source: the data set.
        unread: why samples of a store cannot be read, by their row in it.
        *of_task: checks of the training samples with the settings.
    """
    found = list(source.faults)
    source, config = _without_empty_classes(source), DataConfig()

    def attempt(check: Callable[..., Any], *given: Any) -> Any:
        try:
            return check(*given)
        except PmalError as error:
            found.append(str(error))
            return None

    task = attempt(lambda: make_task(source, choose_split(source, config), config))
    if task is not None:
        for check in of_task:
            attempt(check, task.train, config)
        for name, samples in _parts_of(task).items():
            attempt(_check_part, name, samples, unread(samples))
    return list(dict.fromkeys(found))


def has_published_split(source: Source) -> bool:
    """Return whether `pmal fit` takes known classes from a published list, which may skip the empty ones."""
    return source.name in list_sets()


def _without_empty_classes(source: Source) -> Source:
    """Return a source without empty classes, which are reported separately. Published lists need all."""
    there = tuple(np.unique(source.train.labels).tolist())
    if len(there) == len(source.train.class_names) or has_published_split(source):
        return source
    test = source.test.of_classes(there) if source.test is not None else None
    return replace(source, train=source.train.of_classes(there), test=test)


def _parts_of(task: Task) -> dict[str, Samples]:
    parts = {"train": task.train, "held out": task.held_out, "test": task.test, "unknown": task.unknown}
    return {name: samples for name, samples in parts.items() if samples is not None}


def _broken_rows(samples: Samples) -> dict[int, str]:
    assert isinstance(samples.store, VectorStore)
    broken = np.flatnonzero(~np.isfinite(samples.store.vectors).all(axis=1))
    return dict.fromkeys(broken.tolist(), NOT_FINITE)


def _check_part(name: str, samples: Samples, reasons: dict[int, str]) -> None:
    """Apply the checks that run when a part is opened."""
    bad = [(position, reasons[row]) for position, row in enumerate(samples.ids.tolist()) if row in reasons]
    check_quarantine(listed(samples, bad), len(samples), name, unit=samples.unit)
    readable = np.delete(np.arange(len(samples)), [position for position, _ in bad])
    check_classes(name, samples, samples.at(readable))
