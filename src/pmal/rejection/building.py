"""From a trained network to the finished model: embed what it compares images with, and calibrate it."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import interpolate

from pmal._runtime.processes.ranks import Ranks
from pmal._runtime.progress import Advance
from pmal.config import RunConfig
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.data.feeding.parts import Part
from pmal.data.samples import Samples
from pmal.encoders.pretrained.backbone import Backbone
from pmal.ensemble.classifier import from_pixels
from pmal.ensemble.embeddings import embed_images
from pmal.ensemble.job import Job
from pmal.errors import UsageError, unknown_name
from pmal.methods import METHODS, SCORES
from pmal.mining.prototypes import PrototypeSet
from pmal.optimization.learned import Learned
from pmal.optimization.learner import embed_prototypes
from pmal.optimization.training import with_prototypes
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.model import OpenSetModel, Prototype, Rule
from pmal.rejection.scores import LOGIT_SCORES, Reference
from pmal.rejection.training_scores import training_embeddings
from pmal.rejection.typicality.of_layers import FITTED_IMAGES, fit_typicality

ALONE = "neighbors"
"""What decides if `combined` has no held-out images: the best of its parts on known classes alone."""
PICTURE_SIDE = 64


def build_model(
    learned: Learned, held_out: Part | None, job: Job, calibration: Calibration | None = None
) -> OpenSetModel:
    """Return the model of a run. Without prototypes it has the scores of the logits, and of the head, alone.

    Args:
        learned: what training left.
        held_out: known images that were not trained on, for the threshold.
        job: the settings and the training images.
        calibration: by images that were held out in turn, instead of `held_out`.
    """
    network, prototypes, config, session = learned.network, learned.prototypes, job.config, job.session
    data = job.data
    rule = Rule(default_score(config), config.rejection.accept, config.rejection.per_class)
    names, reference, pictures = network.spec.class_names, None, None
    learns = prototypes is not None or network.head.is_fitted_after
    total = (len(data.images) if learns else 0) + (len(held_out.images) if held_out else 0)
    total += min(len(data.images), FITTED_IMAGES)
    with session.display.stage("calibration", total, "images") as advance:
        typicality = fit_typicality(network, data.images, data.labels, advance, session.ranks)
        if prototypes is not None:
            pictures = with_prototypes(data, prototypes).prototype_images()
            table_KTD = embed_prototypes(network, pictures, prototypes.mask)
            bank_ND = training_embeddings(network, data.images, advance, session.ranks)
            reference = Reference(table_KTD, prototypes.mask, config.optimization.distance, bank_ND)
        if network.head.is_fitted_after:
            z_ND, logits_NK = embed_images(network, data.images, advance=advance, ranks=session.ranks)
            network.head.fit_after(z_ND, logits_NK, data.labels.cpu())
        gallery = _gallery(prototypes) if prototypes else ()
        pictures = None if pictures is None else thumbnails(pictures.cpu())
        model = OpenSetModel(network, names, rule, reference, gallery, pictures, typicality=typicality)
        if calibration:
            if reference and len(reference.training_ND) == len(data.ids):
                calibration = calibration.keeping(reference.training_ND.cpu(), data.labels.cpu())
            model = replace(model, calibration=calibration)
        elif held_out:
            model = replace(model, calibration=_calibrate(model, held_out, advance, session.ranks))
    if rule.score == "combined" and rule.score not in model.score_names:
        session.display.say(f"held-out images are too few or too alike for score combined: {ALONE} decides")
        return replace(model, rule=replace(rule, score=ALONE))
    return model


def for_images(model: OpenSetModel, backbone: Backbone, train: Samples) -> OpenSetModel:
    """Return a model of features as one of images, with the pictures of its prototypes."""
    pictures = None
    if model.gallery:
        places = {int(i): position for position, i in enumerate(train.ids)}
        chosen = train.at(np.array([places[p.id] for ranked in model.gallery for p in ranked]))
        pictures = load_images(chosen, ImageShape(min(backbone.image_size, PICTURE_SIDE), 3)).images
    return replace(model, classifier=from_pixels(model.classifier, backbone), pictures=pictures)


def thumbnails(images_PCHW: torch.Tensor) -> torch.Tensor:
    """Return pictures of at most 64 px: 10,000 prototypes at full size would make a bundle of gigabytes."""
    side = images_PCHW.shape[-1]
    if side <= PICTURE_SIDE or images_PCHW.is_floating_point():
        return images_PCHW
    parts = [
        interpolate(part.float(), size=(PICTURE_SIDE, PICTURE_SIDE), mode="area").round().byte()
        for part in torch.split(images_PCHW, 512)
    ]
    return torch.cat(parts)


def default_score(config: RunConfig) -> str:
    """Return what `rejection.score = "auto"` stands for."""
    if config.rejection.score != "auto":
        return config.rejection.score
    score = METHODS[config.method].score
    return ALONE if score == "combined" and not config.data.held_out else score


def check_score(config: RunConfig) -> None:
    """Fail before any training if the model would not have the score that it is to reject by.

    Scores of plugins are loaded here: evaluation, which needs them all, comes after hours of training.
    """
    plugins = dict(SCORES)
    score, valid = default_score(config), [*LOGIT_SCORES, *METHODS[config.method].scores, *plugins]
    if score not in valid:
        raise unknown_name(f"score of method {config.method}", score, valid)
    if score == "combined" and not config.data.held_out:
        raise UsageError("rejection.score = 'combined' is measured on held-out images: raise data.held_out")


def _calibrate(model: OpenSetModel, held_out: Part, advance: Advance, ranks: Ranks) -> Calibration:
    z_ND, logits_NK, far_N = embed_images(
        model.classifier, held_out.images, advance=advance, ranks=ranks, embed=model.embed_batch
    )
    found = Calibration.fit(model.scores(z_ND, logits_NK, far_N), logits_NK.argmax(dim=1))
    return found.keeping(z_ND, held_out.labels(torch.device("cpu")))


def _gallery(prototypes: PrototypeSet) -> tuple[tuple[Prototype, ...], ...]:
    columns = (prototypes.ids, prototypes.log_r, prototypes.gap)
    files = prototypes.files or tuple(str(i) for i in prototypes.ids.tolist())
    rows = zip(*(column.tolist() for column in columns), files, prototypes.labels.tolist(), strict=True)
    classes: list[list[Prototype]] = [[] for _ in range(prototypes.num_classes)]
    for i, log_r, gap, file, label in rows:
        classes[label].append(Prototype(i, file, log_r, gap))
    return tuple(map(tuple, classes))
