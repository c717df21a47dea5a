"""The cost of a run: how often an image goes through a network in training, per training image."""

from pmal.config import RunConfig
from pmal.methods import METHODS


def image_passes(config: RunConfig, num_classes: int) -> float:
    """Return the passes per training image of all trainings of a run.

    Prototypes, further views, mixtures and generated images count, too.

    Two classifiers of 100 epochs, and 100 more epochs in which 60 prototypes join every batch of 128:

    >>> round(image_passes(RunConfig(), num_classes=6), 1)
    346.9
    """
    method, first = METHODS[config.method], config.classifiers * config.training.epochs
    if not method.second:
        return float(first * method.passes)
    if not method.mines:
        return float(first + config.second_training.epochs * method.passes)
    from pmal.optimization.bank import refresh_size  # imports torch, which tables do not need

    batch = config.training.batch_size
    joined = refresh_size(num_classes * config.mining.per_class, batch, config.optimization.refresh)
    return first + config.second_training.epochs * (1 + joined / batch)
