"""Whether `pmal fit` would accept a data set, found by its own checks with its default settings."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pmal.config import DataConfig
from pmal.data.decoding.fitting import listed
from pmal.data.decoding.loading import check_quarantine
from pmal.data.feeding.parts import check_classes, image_shape
from pmal.data.inspection.images import Seen
from pmal.data.samples import Samples, Source
from pmal.data.splits.protocols import list_sets
from pmal.data.splits.task import choose_split, make_task
from pmal.errors import PmalError


def refusals(source: Source, parts: Sequence[Seen]) -> list[str]:
    """Return the errors of `pmal fit` in its order, but those of empty classes; none if it would start.

    Args:
        source: the data set.
        parts: its parts, after all samples were looked at.
    """
    unread: defaultdict[int, dict[int, str]] = defaultdict(dict)  # of a store, by the row in it
    for part in parts:
        reasons = {int(part.samples.ids[position]): reason for position, reason in part.unread.items()}
        unread[id(part.samples.store)] |= reasons
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
        attempt(image_shape, task.train, config)
        for name, samples in task.parts().items():
            attempt(_check_part, name, samples, unread[id(samples.store)])
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


def _check_part(name: str, samples: Samples, reasons: dict[int, str]) -> None:
    """Apply the checks that run when a part is opened."""
    bad = [(position, reasons[row]) for position, row in enumerate(samples.ids.tolist()) if row in reasons]
    check_quarantine(listed(samples, bad), len(samples), name, unit=samples.unit)
    readable = np.delete(np.arange(len(samples)), [position for position, _ in bad])
    check_classes(name, samples, samples.at(readable))
