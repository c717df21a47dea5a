"""Softmaxes that cost as much as PMAL: one that trains for long, and several whose logits are averaged."""

import dataclasses

from pmal.benchmark.cells.asked_methods import TOGETHER, concerns
from pmal.benchmark.cells.cell import Cell
from pmal.benchmark.cells.passes import epochs_at_cost
from pmal.config import DataConfig
from pmal.data.splits.protocols import get_split, list_families, list_sets
from pmal.data.splits.task import open_task
from pmal.reporting.image_passes import image_passes


def equal_cost_cell(name: str, pmal: Cell, num_classes: int) -> Cell:
    """Return the softmax of this name in --methods that has as many image passes as a cell of PMAL.

    Settings of PMAL alone decide the cost, and are no part of the softmax.
    """
    config = pmal.config()
    networks = config.classifiers + 1 if name == TOGETHER else 1
    epochs = epochs_at_cost(image_passes(config, num_classes), networks)
    settings = tuple(s for s in pmal.settings if concerns("softmax", s))
    softmax = dataclasses.replace(pmal, method="softmax", epochs=epochs, settings=settings)
    return softmax.together(networks) if name == TOGETHER else softmax


def count_known_classes(config: DataConfig, data_root: str | None) -> int:
    """Return the number of known classes of a split: of a published one without a look at the data."""
    if config.source in list_sets() and config.family in list_families(config.source):
        return len(get_split(config.source, config.family, config.split).known)
    return len(open_task(config, data_root).class_names)
