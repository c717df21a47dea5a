"""A model of two classes in a space that its network leaves as it is, without any training."""

from dataclasses import replace

import torch

from pmal.config import EncoderConfig
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.open_world.corrected import Corrected
from pmal.rejection.scores import Reference, unknown_scores

FEATURES, PER_CLASS, CLASSES = 6, 3, ("ant", "bee", "cow")


def cloud(axis, count, seed, spread=0.5):
    noise = spread * torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return noise + 2 * torch.eye(FEATURES)[axis]


def make_model(score="combined", accept=0.9, held_out=40, seed=0, classes=2, folds=0):
    names = CLASSES[:classes]
    network = Classifier(ClassifierSpec(EncoderConfig("precomputed"), names, 1, FEATURES)).eval()
    with torch.no_grad():
        network.head.weight.copy_(torch.eye(FEATURES)[:classes])
        network.head.bias.zero_()
    bank_ND = torch.cat([cloud(k, 30, 10 * seed + k) for k in range(classes)])
    table_KTD = torch.stack([cloud(k, PER_CLASS, 10 * seed + k) for k in range(classes)])
    mask_KT = torch.ones(classes, PER_CLASS, dtype=torch.bool)
    reference = Reference(table_KTD, mask_KT, "point-to-set", bank_ND)
    each = held_out // classes
    held_ND = torch.cat([cloud(k, each, 10 * seed + 5 + k) for k in range(classes)])
    logits_NK = held_ND[:, :classes]
    calibration = Calibration.fit(unknown_scores(held_ND, logits_NK, reference), logits_NK.argmax(dim=1))
    calibration = calibration.keeping(held_ND, torch.arange(classes).repeat_interleave(each))
    gallery = tuple(
        tuple(Prototype(PER_CLASS * k + t, f"{k}/{t}", 0.0, 1.0) for t in range(PER_CLASS))
        for k in range(classes)
    )
    pictures = table_KTD.flatten(0, 1)[:, :, None, None]
    model = OpenSetModel(network, names, Rule(score, accept), reference, gallery, pictures)
    return replace(model, calibration=replace(calibration, folds=folds))


def corrected(z_ND, labels):
    labels_N = torch.as_tensor(labels)
    far_N = torch.full((len(z_ND),), -torch.inf, dtype=torch.float64)
    files = [f"new/{i}" for i in range(len(z_ND))]
    return Corrected(z_ND, far_N, labels_N, z_ND[:, :, None, None], files)
