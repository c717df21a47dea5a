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
from pmal.optimization.losses import decoy_loss, prototype_margin_loss


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
        model, due_R, settings = self.classifier, self.bank.due(), self.settings
        views = augment(images, self.policy, model.mean, model.std, self.flip)
        prototypes = normalize(self.bank.images[due_R], model.mean, model.std)
        decoys = make_decoys(views, settings.decoys, settings.decoy_kind)
        parts = [views, prototypes, decoys]
        z_BD, z_RD, z_XD = model.encoder(torch.cat(parts)).split([len(part) for part in parts])
        classification = cross_entropy(model.head(z_BD), labels, label_smoothing=self.smoothing)
        if settings.decoys and settings.decoy_entropy:
            uncertain = -model.head(z_XD).log_softmax(dim=1).mean()
            classification = classification + settings.decoy_entropy * uncertain
        # Not in mixed precision: a cosine of bfloat16 products has only two digits.
        with torch.autocast(images.device.type, enabled=False):
            prototypes_KTD = self.bank.renew(due_R, z_RD.float())
            distances_BK = self.distance(z_BD.float(), prototypes_KTD, self.bank.mask)
            separation = prototype_margin_loss(
                distances_BK, labels, margin=settings.margin, temperature=settings.temperature
            )
            if settings.decoys:
                distances_XK = self.distance(z_XD.float(), prototypes_KTD, self.bank.mask)
                separation = separation + decoy_loss(distances_XK, temperature=settings.temperature)
        return classification + settings.weight * separation


def make_decoys(views_BCHW: Tensor, count: int, kinds: str) -> Tensor:
    """Return images of no class, made from the first images of a batch, as many of each kind.

    Args:
        views_BCHW: augmented images in random order.
        count: number of decoys.
        kinds: joined by +. turned: by a quarter or three quarters of a circle; swapped: the quadrants change
            places; mixed: the mean of two images.
    """
    names, found = kinds.split("+"), [views_BCHW[:0]]
    each = count // len(names)
    for index, name in enumerate(names if count else []):
        x = views_BCHW[index * each : (index + 1) * each]
        if name == "turned":
            found += [x[0::2].rot90(1, (2, 3)), x[1::2].rot90(3, (2, 3))]
        elif name == "swapped":
            found += [x.roll((x.shape[2] // 2, x.shape[3] // 2), (2, 3))]
        elif name == "mixed":
            found += [(x + views_BCHW[len(views_BCHW) - each :]) / 2]
    return torch.cat(found)


def embed_prototypes(model: Classifier, images_PCHW: Tensor, mask_KT: Tensor) -> Tensor:
    """Return the prototypes as embedded by a finished network: float32 (K, T, D) on the CPU.

    Args:
        model: the network.
        images_PCHW: uint8 images by class and then by rank.
        mask_KT: which entries exist; the others become zeros.
    """
    return as_table(_embed(model, images_PCHW), mask_KT.cpu())


def _embed(model: Classifier, images_PCHW: Tensor) -> Tensor:
    z_PD, _ = embed_images(model, ResidentImages(images_PCHW, images_PCHW.device))
    return z_PD
