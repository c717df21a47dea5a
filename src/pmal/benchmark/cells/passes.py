"""What a cell costs, and how many epochs another method may train at the same cost."""

from pmal.benchmark.cells.cell import FIT, Cell
from pmal.reporting.image_passes import image_passes


def cell_passes(cell: Cell, num_classes: int) -> float:
    """Return the passes per training image of all trainings of a cell.

    A cell that measures only the classifiers has no second training.
    """
    config = cell.config()
    if cell.measure == FIT:
        return image_passes(config, num_classes)
    return float(config.classifiers * config.training.epochs)


def epochs_at_cost(passes: float, networks: int = 1) -> int:
    """Return the epochs of each network, if this many networks share these passes.

    >>> epochs_at_cost(346.9), epochs_at_cost(346.9, networks=3)
    (347, 116)
    """
    return max(1, round(passes / networks))
