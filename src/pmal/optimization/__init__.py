"""The second training: distances from samples to sets of prototypes, and the loss that uses them."""

from pmal.optimization.distances import (
    DISTANCES,
    attention_weights,
    nearest_distance,
    point_to_set_distance,
)
from pmal.optimization.losses import prototype_margin_loss

__all__ = [
    "DISTANCES",
    "attention_weights",
    "nearest_distance",
    "point_to_set_distance",
    "prototype_margin_loss",
]
