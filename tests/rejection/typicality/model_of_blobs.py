"""A model that learned nothing but knows what its images have in common, and images of noise."""

import dataclasses

import torch

from pmal.config import EncoderConfig
from pmal.data.feeding.batches import ResidentImages
from pmal.ensemble.classifier import Classifier, ClassifierSpec
from pmal.ensemble.embeddings import embed_images
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.typicality.of_layers import fit_typicality
from tests.rejection.typicality.blobs import CPU, smooth_images

NAMES = ("ant", "bee")
NOISE = torch.randint(0, 256, (50, 1, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def make_model(held_out=400, rule=None):
    torch.manual_seed(0)
    network = Classifier(ClassifierSpec(EncoderConfig("small"), NAMES, 12, 1)).eval()
    typicality = fit_typicality(network, ResidentImages(smooth_images(600, seed=1), CPU))
    model = OpenSetModel(network, NAMES, rule or Rule("logit", 0.9), typicality=typicality)
    images = ResidentImages(smooth_images(held_out, seed=2), CPU)
    z, logits, far = embed_images(network, images, embed=model.embed_batch)
    return dataclasses.replace(
        model, calibration=Calibration.fit(model.scores(z, logits, far), logits.argmax(dim=1))
    )
