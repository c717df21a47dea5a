"""Turned images, in training alone: each class turned by a quarter, a half or three quarters is another class.

To tell a dog from a cat, one patch of fur may do. To tell a dog from a dog on its head, the network has to see
how a dog is built; and what is built otherwise looks less like one.

B images of a batch, K classes.
"""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal._runtime.processes.ranks import Ranks
from pmal._runtime.seeds import seeded, stream
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.config import TrainingConfig
from pmal.ensemble.classifier import Classifier

TURNS = (1, 2, 3)
"""Quarters of a circle."""


class Turning(nn.Module):
    """Turn a share of each batch, and tell its images from upright ones."""

    def __init__(self, features: int, classes: int, share: float) -> None:
        super().__init__()
        self.share = share
        self.layer = nn.Linear(features, len(TURNS) * classes)

    def count(self, batch: int) -> int:
        """Return how many of the first images of a batch are turned."""
        return round(self.share * batch)

    def turn(self, views_BCHW: Tensor) -> Tensor:
        """Return the batch, in random order, with its first images turned: a third of them by each turn."""
        count = self.count(len(views_BCHW))
        turned = [
            part.rot90(turn, (2, 3))
            for turn, part in zip(TURNS, views_BCHW[:count].tensor_split(len(TURNS)), strict=True)
        ]
        return torch.cat([*turned, views_BCHW[count:]])

    def loss(self, logits_BK: Tensor, z_BD: Tensor, labels_B: Tensor, smoothing: float) -> Tensor:
        """Return the cross entropy of classes and turned classes together.

        Args:
            logits_BK: of the upright classes, for a batch that `turn` gave.
            z_BD: embeddings of the batch.
            labels_B: classes of the images, however they are turned.
            smoothing: of the labels.
        """
        classes, count = logits_BK.shape[1], self.count(len(labels_B))
        parts = labels_B[:count].tensor_split(len(TURNS))
        targets = [part + turn * classes for turn, part in zip(TURNS, parts, strict=True)]
        all_logits = torch.cat([logits_BK, self.layer(z_BD)], dim=1)
        return cross_entropy(all_logits, torch.cat([*targets, labels_B[count:]]), label_smoothing=smoothing)


def make_turning(model: Classifier, config: TrainingConfig, flip: bool, seed: int) -> Turning | None:
    """Return what turns images while a network is trained, or None.

    Images that may not be mirrored are not turned either: a 6 on its head is a 9.

    Args:
        model: the network.
        config: how it is trained.
        flip: whether images may be mirrored.
        seed: of the first weights.
    """
    if not (config.turned and flip):
        return None
    with seeded(stream(seed, "turning"), torch.device("cpu")):
        turning = Turning(int(model.encoder.num_features), len(model.spec.class_names), config.turned)
    return turning.to(model.mean.device)


def turning_of(trained: nn.Module) -> Turning | None:
    """Return what turned the images of a training, or None."""
    return next((part for part in trained.modules() if isinstance(part, Turning)), None)


def save_turning(turning: Turning | None, folder: Path, ranks: Ranks) -> None:
    """Keep the weights that tell turned images, next to those of the network."""
    if turning is not None:
        save_tensors(folder / "turning", turning.state_dict(), {}, ranks)


def load_turning(turning: Turning | None, folder: Path, ranks: Ranks) -> None:
    """Go on from the weights of another training."""
    if turning is not None and has_tensors(folder / "turning", ranks):
        turning.load_state_dict(load_tensors(folder / "turning", ranks)[0])
