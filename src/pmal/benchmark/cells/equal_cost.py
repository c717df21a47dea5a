"""Softmaxes that cost as much as PMAL: one that trains for longer, and several whose logits are averaged."""

import dataclasses

from pmal.benchmark.cells.asked_methods import TOGETHER, concerns
from pmal.benchmark.cells.cell import Cell
from pmal.benchmark.cells.passes import epochs_at_cost
from pmal.config import DataConfig
from pmal.data.splits.protocols import get_split, list_families, list_sets
from pmal.data.splits.task import open_task
from pmal.reporting.image_passes import image_passes


def equal_cost_cell(name: str, pmal: Cell, num_classes: int) -> Cell:
    """Return the cell of a softmax that has as many image passes as a cell of PMAL.

    Settings that only PMAL has change the cost, but are not settings of the softmax.

    Args:
        name: of the softmax in --methods.
        pmal: the cell whose cost counts.
        num_classes: number of known classes.
    """
    config = pmal.config()
    networks = config.classifiers + 1 if name == TOGETHER else 1
    epochs = epochs_at_cost(image_passes(config, num_classes), networks)
    settings = tuple(s for s in pmal.settings if concerns("softmax", s))
    softmax = dataclasses.replace(pmal, method="softmax", epochs=epochs, settings=settings)
    return softmax.together(networks) if name == TOGETHER else softmax


def count_known_classes(config: DataConfig, data_root: str | None) -> int:
    """Return the number of known classes of a split. Published splits need no data for it."""
    if config.source in list_sets() and config.family in list_families(config.source):
        return len(get_split(config.source, config.family, config.split).known)
    return len(open_task(config, data_root).class_names)
