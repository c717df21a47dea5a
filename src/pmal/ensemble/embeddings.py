"""Embeddings and logits of a whole set, without augmentation."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pmal._runtime.devices import full_precision
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.progress import Advance
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors, load_tensors, save_tensors
from pmal.data.feeding.batches import ImageBatches, sequential_plan
from pmal.data.feeding.parts import Part
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.heads import LinearHead
from pmal.ensemble.job import Job
from pmal.errors import DataError

FOLDER = "embeddings"
"""Folder of the embeddings in a run."""
CPU = torch.device("cpu")
CPU_BATCH = 64
"""Images per batch. The maps of larger batches do not fit a CPU's cache: oscri is a fifth slower at 512."""
GPU_BATCH, GPU_PIXELS = 2048, 2**24
"""Images per batch and pixels of a channel, at most: enough to fill the device, and maps of a few GB."""


@dataclass(frozen=True)
class EmbeddedSet:
    """The training set embedded by one classifier: a space in which prototypes are mined."""

    z_ND: torch.Tensor
    weight_KD: torch.Tensor
    bias_K: torch.Tensor
    fresh: bool
    """Whether it was embedded now: what was mined from older embeddings is then outdated."""

    @property
    def space(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return embeddings, class weights and biases."""
        return self.z_ND, self.weight_KD, self.bias_K

    @property
    def logits(self) -> torch.Tensor:
        """Return the logits, (N, K)."""
        return self.z_ND @ self.weight_KD.T + self.bias_K


@torch.no_grad()
def embed_images(
    model: Classifier,
    images: ImageBatches,
    advance: Advance | None = None,
    ranks: Ranks = ALONE,
    to: torch.device = CPU,
    embed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return z_ND and logits_NK in float32.

    Full precision on every device: scores are compared by rank, and fewer bits would create ties. Several
    processes share the batches, which stay the same, and each gets all results.

    Args:
        model: the classifier; it is set to evaluation mode.
        images: the images to embed.
        advance: called with the number of images that were just embedded.
        ranks: the processes that share the batches.
        to: the device of the results.
        embed: computes other tensors of a batch instead; as many are returned.
    """
    model.eval()
    embed = embed or model.embed
    plan = sequential_plan(len(images), batch_for(model))
    shares = [plan[share] for share in ranks.shares(len(plan))]
    own = shares[ranks.rank]
    report, outputs = ranks.for_all(advance) if advance else None, []
    with full_precision():
        for batch in images.stream(own) if own else ():
            outputs.append(tuple(_plain(tensor, to) for tensor in embed(batch)))
            if report:
                report(len(batch))
        if not outputs:  # a process without a share takes part in the exchange all the same
            blank = embed(model.spec.blank(1, model.mean.device))
            outputs.append(tuple(_plain(tensor, to)[:0] for tensor in blank))
    counts = [sum(map(len, share)) for share in shares]
    columns = (torch.cat(tensors) for tensors in zip(*outputs, strict=True))
    return tuple(ranks.gather_rows(column, counts) for column in columns)


def _plain(tensor: torch.Tensor, to: torch.device) -> torch.Tensor:
    return (tensor if tensor.dtype == torch.float64 else tensor.float()).to(to)


def batch_for(model: Classifier) -> int:
    """Return how many images to embed at a time."""
    if model.mean.device.type == "cpu":
        return CPU_BATCH
    return max(1, min(GPU_BATCH, GPU_PIXELS // model.spec.image_size**2))


def embed_training_set(classifiers: Sequence[Classifier], job: Job) -> list[EmbeddedSet]:
    """Return one space per classifier; stored embeddings of these weights and images are loaded."""
    folder, train, session = job.folder / FOLDER, job.train, job.session
    return [
        _load(folder / str(index), model, train, session.ranks)
        or _embed(folder / str(index), model, train, session)
        for index, model in enumerate(classifiers)
    ]


def stored_embeddings(classifiers: Sequence[Classifier], job: Job) -> list[EmbeddedSet] | None:
    """Return the stored embeddings, or None if some are missing or of other weights or images."""
    folder, ranks = job.folder / FOLDER, job.session.ranks
    found = [_load(folder / str(u), model, job.train, ranks) for u, model in enumerate(classifiers)]
    there = [one for one in found if one is not None]
    return there if len(there) == len(found) else None


def stored_embedding(path: Path) -> EmbeddedSet:
    """Return the training set as one classifier of a run embedded it, whatever it was made of."""
    if not has_tensors(path):
        raise DataError(f"{path.parent}: no embeddings of the training images: run `pmal fit` again")
    tensors, _ = load_tensors(path)
    return EmbeddedSet(tensors["z"], tensors["weight"], tensors["bias"], fresh=False)


def _load(path: Path, model: Classifier, train: Part, ranks: Ranks) -> EmbeddedSet | None:
    if not has_tensors(path, ranks):
        return None
    tensors, about = load_tensors(path, ranks)
    if about != _origin(model, train):
        return None
    return EmbeddedSet(tensors["z"], tensors["weight"], tensors["bias"], fresh=False)


def _embed(path: Path, model: Classifier, train: Part, session: Session) -> EmbeddedSet:
    with session.display.stage(f"embedding {path.name}", len(train.samples), "images") as advance:
        z_ND, _ = embed_images(model, train.images, advance=advance, ranks=session.ranks)
    head = model.head
    assert isinstance(head, LinearHead)  # pmal compares spaces of linear classifiers
    bias = head.bias if head.bias is not None else torch.zeros(len(head.weight))
    weight_KD, bias_K = head.weight.detach().cpu(), bias.detach().cpu()
    tensors = {"z": z_ND, "weight": weight_KD, "bias": bias_K}
    save_tensors(path, tensors, _origin(model, train), session.ranks)
    return EmbeddedSet(z_ND, weight_KD, bias_K, fresh=True)


def _origin(model: Classifier, train: Part) -> dict[str, str]:
    """Return digests of what an embedding belongs to: these weights, and these images."""
    weights = hashlib.sha256()
    for tensor in model.state_dict().values():
        weights.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    images = hashlib.sha256(train.samples.ids.tobytes() + train.images.fingerprint().encode())
    return {"weights": weights.hexdigest(), "images": images.hexdigest()}
