"""A model of the embedded digits, trained for seconds: 4 digits known, the others not."""

import io
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.nn.functional import cross_entropy

import pmal
from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import Reference, unknown_scores
from pmal.rejection.typicality.of_layers import fit_typicality

KNOWN = (2, 3, 4, 8)
EACH = 100
PROTOTYPES, HELD_OUT, STEPS, BATCH = 5, 30, 40, 48


@dataclass
class Digits:
    """Images uint8 (N, 1, 28, 28), their labels, and the PNG files that they come from."""

    images: torch.Tensor
    labels: list
    files: list


def read_digits(split, each):
    path = pmal.__path__[0] + "/data/sample/mnist-sample.parquet"
    rows = pq.read_table(path, filters=[("split", "=", split)]).to_pylist()
    chosen = [row for label in range(10) for row in [r for r in rows if r["label"] == label][:each]]
    files = [row["image"]["bytes"] for row in chosen]
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(file))) for file in files])
    return Digits(torch.from_numpy(pixels)[:, None], [row["label"] for row in chosen], files)


NAMES = tuple(map(str, KNOWN))


def make_digits_model(names=NAMES):
    digits = read_digits("train", EACH)
    labels = torch.tensor([KNOWN.index(label) if label in KNOWN else -1 for label in digits.labels])
    images, labels = digits.images[labels >= 0], labels[labels >= 0]
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), names, 28, 1))
    network.set_normalization(torch.tensor([0.13]), torch.tensor([0.31]))
    held_out = torch.arange(len(labels)) % EACH < HELD_OUT
    train(network, images[~held_out], labels[~held_out])
    with torch.no_grad():
        z_ND, _ = network.embed(images[~held_out])
        z_MD, logits_MK = network.embed(images[held_out])
    rows_KT = torch.stack([central(z_ND, labels[~held_out], k) for k in range(len(KNOWN))])
    mask_KT = torch.ones_like(rows_KT, dtype=torch.bool)
    reference = Reference(z_ND[rows_KT], mask_KT, "point-to-set", z_ND)
    gallery = tuple(
        tuple(Prototype(int(row), f"{names[k]}/{int(row)}.png", -0.1, 1.0) for row in rows)
        for k, rows in enumerate(rows_KT)
    )
    scores = unknown_scores(z_MD, logits_MK, reference)
    calibration = Calibration.fit(scores, logits_MK.argmax(dim=1))
    pictures = images[~held_out][rows_KT.flatten()]
    seen = fit_typicality(network.eval(), ResidentImages(images[~held_out], torch.device("cpu")))
    return OpenSetModel(network, names, Rule("distance"), reference, gallery, pictures, calibration, seen)


def train(network, images, labels):
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    network.train()
    for step in range(STEPS):
        rows = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))[:BATCH]
        optimizer.zero_grad()
        cross_entropy(network.embed(images[rows])[1], labels[rows]).backward()
        optimizer.step()
    network.eval()


def central(z_ND, labels, k):
    """The rows of a class that are nearest to its mean."""
    rows = (labels == k).nonzero()[:, 0]
    far = (z_ND[rows] - z_ND[rows].mean(dim=0)).norm(dim=1)
    return rows[far.argsort()[:PROTOTYPES]]
