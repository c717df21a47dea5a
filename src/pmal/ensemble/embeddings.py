"""Embeddings and logits of a whole set, without augmentation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pmal._runtime.devices import convolutions
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.data.batches import ImageBatches, sequential_plan
from pmal.data.parts import Part
from pmal.ensemble.classifier import Classifier
from pmal.errors import DataError


@dataclass(frozen=True)
class EmbeddedSet:
    """What one classifier makes of the training set: a space in which prototypes are mined."""

    z_ND: torch.Tensor
    weight_KD: torch.Tensor
    bias_K: torch.Tensor

    @property
    def space(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.z_ND, self.weight_KD, self.bias_K

    @property
    def logits(self) -> torch.Tensor:
        """(N, K)"""
        return self.z_ND @ self.weight_KD.T + self.bias_K


def count_pairs(embedded: Sequence[EmbeddedSet]) -> int:
    """Pairs of samples that mining looks at, in every pair of spaces."""
    return len(embedded[0].z_ND) ** 2 * math.comb(len(embedded), 2)


@torch.no_grad()
def embed_images(
    model: Classifier, images: ImageBatches, batch_size: int = 512
) -> tuple[torch.Tensor, torch.Tensor]:
    """z_ND and logits_NK in float32 on the CPU.

    Full precision on every device: scores are compared by rank, and fewer bits would make ties of them.
    """
    model.eval()
    with convolutions(tf32=False):
        outputs = [model.embed(batch) for batch in images.stream(sequential_plan(len(images), batch_size))]
    z_ND = torch.cat([z for z, _ in outputs]).float().cpu()
    logits_NK = torch.cat([logits for _, logits in outputs]).float().cpu()
    return z_ND, logits_NK


def embed_training_set(
    classifiers: Sequence[Classifier], train: Part, folder: Path, session: Session
) -> list[EmbeddedSet]:
    """One space per classifier; those that are on disk already are loaded."""
    spaces = []
    for index, model in enumerate(classifiers):
        path = folder / str(index)
        if not has_tensors(path):
            with session.display.stage(f"embedding {index}", len(train.samples), "images") as advance:
                z_ND, _ = embed_images(model, train.images)
                advance(len(train.samples))
            head = model.head
            bias = head.bias if head.bias is not None else torch.zeros(len(head.weight))
            tensors = {"z": z_ND, "weight": head.weight, "bias": bias}
            save_tensors(path, tensors | {"ids": torch.from_numpy(train.samples.ids)}, {})
        spaces.append(_load(path, train))
    return spaces


def _load(path: Path, train: Part) -> EmbeddedSet:
    tensors, _ = load_tensors(path)
    if not torch.equal(tensors["ids"], torch.from_numpy(train.samples.ids)):
        raise DataError(f"{path}.json: made from other training images: delete it to embed them anew")
    return EmbeddedSet(tensors["z"], tensors["weight"], tensors["bias"])
