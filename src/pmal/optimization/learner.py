"""The network of the second training: a classifier that keeps its samples near their class's prototypes.

B samples, R prototypes renewed per step, K classes, T prototypes of the class that has most, D channels.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pmal.config import RunConfig
from pmal.data.feeding.augmentation import augment, normalize
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier
from pmal.ensemble.embeddings import embed_images
from pmal.optimization.bank import PrototypeBank, as_table
from pmal.optimization.distances import DISTANCES
from pmal.optimization.losses import prototype_margin_loss


class PrototypeLearner(nn.Module):
    """A classifier, the bank of prototypes, and the loss that trains the classifier with them."""

    def __init__(
        self,
        classifier: Classifier,
        bank: PrototypeBank,
        config: RunConfig,
        flip: bool,
    ) -> None:
        super().__init__()
        self.classifier, self.bank, self.settings = classifier, bank, config.optimization
        self.distance = DISTANCES[self.settings.distance]
        self.policy, self.flip = config.data.augmentation, flip
        self.smoothing = config.training.label_smoothing
        # Prototypes that are not renewed at the first step have the embeddings of the initial weights.
        bank.fill(_embed(classifier, bank.images))

    def objective(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy of augmented images plus the margin loss of their prototype distances.

        The prototypes join the batch without augmentation, so that batch norm treats both alike.
        """
        model, due_R = self.classifier, self.bank.due()
        views = augment(images, self.policy, model.mean, model.std, self.flip)
        prototypes = normalize(self.bank.images[due_R], model.mean, model.std)
        z_BD, z_RD = model.encoder(torch.cat([views, prototypes])).split([len(views), len(prototypes)])
        classification = cross_entropy(model.head(z_BD), labels, label_smoothing=self.smoothing)
        # Not in mixed precision: a cosine of bfloat16 products has only two digits.
        with torch.autocast(images.device.type, enabled=False):
            prototypes_KTD = self.bank.renew(due_R, z_RD.float())
            distances_BK = self.distance(z_BD.float(), prototypes_KTD, self.bank.mask)
            separation = prototype_margin_loss(
                distances_BK, labels, margin=self.settings.margin, temperature=self.settings.temperature
            )
        return classification + self.settings.weight * separation


def embed_prototypes(model: Classifier, images_PCHW: Tensor, mask_KT: Tensor) -> Tensor:
    """Return the prototypes as embedded by a finished network: float32 (K, T, D) on the CPU.

    The images are ordered by class and then by rank. Entries that the mask excludes become zeros.
    """
    return as_table(_embed(model, images_PCHW), mask_KT.cpu())


def _embed(model: Classifier, images_PCHW: Tensor) -> Tensor:
    z_PD, _ = embed_images(model, ResidentImages(images_PCHW, images_PCHW.device))
    return z_PD
