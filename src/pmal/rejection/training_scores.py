"""Scores that need embeddings of the training set, for tables: of a softmax classifier as of PMAL's network.

A bundle of softmax has no embeddings of training images in it, and stays small; so these are fitted again
where a run is measured, from the run's training images.

N training images, B images, D channels, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.progress import Advance
from pmal.data.feeding.batches import ChosenImages, ImageBatches
from pmal.data.samples import evenly
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.heads import Head, LinearHead
from pmal.methods import SCORES
from pmal.rejection.model import OpenSetModel
from pmal.rejection.post_hoc import (
    ClassGaussians,
    VirtualLogit,
    fit_gaussians,
    fit_react,
    fit_vim,
    mahalanobis_score,
    react_score,
    vim_score,
)
from pmal.rejection.registered_scores import registered_score
from pmal.rejection.scores import NEIGHBORS, Reference, neighbor_score

BANK_LIMIT = 50_000
"""Training embeddings that `neighbors` looks at, evenly spaced if there are more: a bundle stays small."""

POST_HOC = ("mahalanobis", "vim", "react")
"""Scores that a table has and no bundle: what they were fitted to would have to be stored with it."""


def is_scored(network: Classifier) -> bool:
    """Return whether a network has these scores.

    ViM and ReAct rest on a linear head, as softmax and PMAL have.
    """
    return type(network.head) is LinearHead


@dataclass(frozen=True, eq=False)
class TrainingScores:
    """What was fitted to the training embeddings of a network with a linear head, all on the CPU."""

    bank_ND: Tensor
    weight_KD: Tensor
    bias_K: Tensor
    gaussians: ClassGaussians
    vim: VirtualLogit
    react: float

    @classmethod
    def fit(cls, z_ND: Tensor, labels_N: Tensor, head: Head) -> "TrainingScores":
        """Fit the scores to embeddings of training images, their labels, and the layer that classifies them.

        Args:
            z_ND: embeddings, which may be of evenly spaced images.
            labels_N: of all training images.
            head: the layer.
        """
        assert isinstance(head, LinearHead)
        labels_N = labels_N.cpu()[torch.from_numpy(evenly(len(labels_N), BANK_LIMIT))]
        z_ND, weight_KD = z_ND.cpu(), head.weight.detach().cpu()
        bias_K = torch.zeros(len(weight_KD)) if head.bias is None else head.bias.detach().cpu()
        gaussians = fit_gaussians(z_ND, labels_N)
        return cls(z_ND, weight_KD, bias_K, gaussians, fit_vim(z_ND, weight_KD, bias_K), fit_react(z_ND))

    def scores(self, z_BD: Tensor, logits_BK: Tensor) -> dict[str, Tensor]:
        """Return every score by name."""
        z_BD, logits_BK = z_BD.cpu(), logits_BK.cpu()
        return {
            "neighbors": neighbor_score(z_BD, self.bank_ND, min(NEIGHBORS, len(self.bank_ND))),
            "mahalanobis": mahalanobis_score(z_BD, self.gaussians),
            "vim": vim_score(z_BD, logits_BK, self.vim),
            "react": react_score(z_BD, self.react, self.weight_KD, self.bias_K),
        }


def all_scores(
    model: OpenSetModel,
    training: TrainingScores | None,
    z_BD: Tensor,
    logits_BK: Tensor,
    far_B: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return the scores that a model decides by, then those that only tables have."""
    own = model.scores(z_BD, logits_BK, far_B)
    others = training.scores(z_BD, logits_BK) if training else {}
    others |= {name: registered_score(name, z_BD.cpu(), logits_BK.cpu()) for name in SCORES}
    return own | {name: score_B for name, score_B in others.items() if name not in own}


def kept_embeddings(reference: Reference | None, count: int) -> Tensor | None:
    """Return the embeddings of so many training images that a model has kept, None if it has not."""
    if reference is None or len(reference.training_ND) != min(count, BANK_LIMIT):
        return None  # such as with those of classes that were added since
    return reference.training_ND


def training_embeddings(
    network: Classifier, images: ImageBatches, advance: Advance | None = None, ranks: Ranks = ALONE
) -> Tensor:
    """Return embeddings of at most BANK_LIMIT training images, on the CPU."""
    if len(images) > BANK_LIMIT:
        images = ChosenImages(images, torch.from_numpy(evenly(len(images), BANK_LIMIT)))
    z_ND, _ = embed_images(network, images, advance=advance, ranks=ranks)
    return z_ND
