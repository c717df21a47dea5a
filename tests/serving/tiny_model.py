"""A finished model without any training: random convolutions tell stripes from stripes well enough."""

import torch

from pmal._runtime.progress import Silent
from pmal._runtime.session import Session
from pmal.config import EncoderConfig, Resources
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import Reference, unknown_scores
from pmal.rejection.typicality.of_layers import fit_typicality

SIZE = 12
CLASSES = ("cat", "dog", "a, b\nc")
PER_CLASS = (4, 2, 3)
"""Prototypes of each class; the rest of the table is masked."""
HELD_OUT = 20
BY_DISTANCE = Rule("distance")
SESSION = Session(torch.device("cpu"), Resources(), Silent())


def pictures_of(kind, count, seed=0, channels=1):
    """uint8 (count, channels, SIZE, SIZE): rows, columns or squares for the classes 0 to 2, else noise."""
    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    pattern = {0: row % 4 < 2, 1: column % 4 < 2, 2: (row // 3 + column // 3) % 2 == 0}.get(kind)
    noise = torch.randint(0, 256, (count, channels, SIZE, SIZE), generator=torch.manual_seed(seed))
    return (noise if pattern is None else 160 * pattern + noise // 3).to(torch.uint8)


def make_model(rule=BY_DISTANCE, *, prototypes=True, calibrated=True, channels=1):
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), CLASSES, SIZE, channels)).eval()
    network.set_normalization(torch.full((channels,), 0.5), torch.full((channels,), 0.3))
    with torch.no_grad():
        z_KND = torch.stack([network.embed(pictures_of(k, 10, 1, channels))[0] for k in range(3)])
        weight_KD = z_KND.mean(dim=1) - z_KND.mean(dim=(0, 1))
        network.head.weight.copy_(weight_KD)
        network.head.bias.copy_(-(weight_KD * z_KND.mean(dim=(0, 1))).sum(dim=1))
        held_out = torch.cat([pictures_of(k, HELD_OUT, 2, channels) for k in range(3)])
        z_ND, logits_NK = network.embed(held_out)
    mask_KT = torch.arange(max(PER_CLASS)) < torch.tensor(PER_CLASS)[:, None]
    # Longer, so that some prototypes get more attention than others; no cosine changes by it.
    table_KTD = 40 * z_KND[:, : max(PER_CLASS)]
    reference = Reference(table_KTD, mask_KT, "point-to-set", z_KND.flatten(0, 1)) if prototypes else None
    gallery = tuple(
        tuple(Prototype(10 * k + t, f"{name}/{t}.png", -0.1, 1.0) for t in range(PER_CLASS[k]))
        for k, name in enumerate(CLASSES)
    )
    chosen = torch.cat([pictures_of(k, 10, 1, channels)[:count] for k, count in enumerate(PER_CLASS)])
    calibration = Calibration.fit(unknown_scores(z_ND, logits_NK, reference), logits_NK.argmax(dim=1))
    return OpenSetModel(
        network,
        CLASSES,
        rule,
        reference,
        gallery if prototypes else (),
        chosen if prototypes else None,
        calibration if calibrated else None,
        # Nothing is held out for it: the near score alone decides, as these tests expect.
        fit_typicality(network, ResidentImages(held_out, torch.device("cpu"))),
    )
