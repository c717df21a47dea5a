"""The network of the second training: a classifier that keeps its samples near their class's prototypes.

B samples, R prototypes renewed per step, K classes, T prototypes of the class that has most, D channels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.config import RunConfig
from pmal.data.augmentation import augment, normalize
from pmal.data.batches import ResidentImages
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.optimization.bank import PrototypeBank, as_table
from pmal.optimization.distances import DISTANCES
from pmal.optimization.losses import prototype_margin_loss


class PrototypeLearner(nn.Module):
    """A classifier, the bank of prototypes, and the loss that trains the one by the other."""

    def __init__(
        self,
        classifier: Classifier,
        bank: PrototypeBank,
        config: RunConfig,
        flip: bool,
        teachers: Sequence[Classifier] = (),
    ) -> None:
        super().__init__()
        # In a tuple they are no part of this module: neither trained nor saved with it.
        self.teachers = tuple(teachers) if config.optimization.teaching else ()
        self.classifier, self.bank, self.settings = classifier, bank, config.optimization
        self.distance = DISTANCES[self.settings.distance]
        self.policy, self.flip = config.data.augmentation, flip
        self.smoothing = config.training.label_smoothing
        # What is not renewed at the first step is as the first weights see it.
        bank.fill(_embed(classifier, bank.images))

    def objective(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross entropy of augmented images, plus the margin loss of their distances to all prototypes.

        The prototypes join the batch as they are, so that batch norm treats both alike.
        """
        model = self.classifier
        views = augment(images, self.policy, model.mean, model.std, self.flip)
        prototypes = normalize(self.bank.due_images(), model.mean, model.std)
        z_BD, z_RD = model.encoder(torch.cat([views, prototypes])).split([len(views), len(prototypes)])
        classification = cross_entropy(model.head(z_BD), labels, label_smoothing=self.smoothing)
        # Not in mixed precision: a cosine of bfloat16 products has two digits.
        with torch.autocast(images.device.type, enabled=False):
            prototypes_KTD = self.bank.renew(z_RD.float())
            distances_BK = self.distance(z_BD.float(), prototypes_KTD, self.bank.mask)
            separation = prototype_margin_loss(distances_BK, labels, margin=self.settings.margin)
        loss = classification + self.settings.weight * separation
        if not self.teachers:
            return loss
        return loss + self.settings.teaching * teaching_loss(model.head(z_BD), self.teachers, views)


def teaching_loss(logits_BK: Tensor, teachers: Sequence[Classifier], views_BCHW: Tensor) -> Tensor:
    """Cross entropy with the mean probabilities of the teachers, which see the same views."""
    with torch.no_grad():
        answers_BK = torch.stack([teacher(views_BCHW).softmax(dim=1) for teacher in teachers]).mean(dim=0)
    return cross_entropy(logits_BK, answers_BK)


def embed_prototypes(model: Classifier, images_PCHW: Tensor, mask_KT: Tensor) -> Tensor:
    """The prototypes as everything after training sees them: float32 (K, T, D) on the CPU.

    uint8 images by class and then by rank; zeros where the mask is False.
    """
    return as_table(_embed(model, images_PCHW), mask_KT.cpu())


def _embed(model: Classifier, images_PCHW: Tensor) -> Tensor:
    z_PD, _ = embed_images(model, ResidentImages(images_PCHW, images_PCHW.device))
    return z_PD
