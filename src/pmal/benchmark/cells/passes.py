"""What a cell costs, and how long another may train at the same cost."""

from pmal.benchmark.cells.cell import FIT, Cell
from pmal.reporting.image_passes import image_passes


def cell_passes(cell: Cell, num_classes: int) -> float:
    """Return the passes per training image of all that a cell trains.

    What is measured of the classifiers alone has no second training.
    """
    config = cell.config()
    if cell.measure == FIT:
        return image_passes(config, num_classes)
    return float(config.classifiers * config.training.epochs)


def epochs_at_cost(passes: float, networks: int = 1) -> int:
    """Return the epochs of each of so many networks that have these passes together.

    >>> epochs_at_cost(346.9), epochs_at_cost(346.9, networks=3)
    (347, 116)
    """
    return max(1, round(passes / networks))
