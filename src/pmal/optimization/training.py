"""The second training: from the first classifier and the mined prototypes to the final network."""

import copy
import functools
import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pmal._engine.loop import Training, TrainingSet, finish, train_together
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal._runtime.seeds import stream
from pmal._runtime.session import Session
from pmal._runtime.tensors import has_tensors
from pmal.config import RunConfig
from pmal.ensemble.classifier import Classifier, load_classifier, save_classifier
from pmal.ensemble.classifiers import untrained
from pmal.ensemble.job import Job
from pmal.errors import DataError
from pmal.mining.prototypes import PrototypeSet
from pmal.optimization.bank import PrototypeBank, held_prototypes, refresh_size
from pmal.optimization.learner import PrototypeLearner

READ_BATCH = 512


@dataclass(frozen=True)
class PrototypeTrainingSet(TrainingSet):
    """A training set and those of its samples that represent their classes."""

    prototypes: PrototypeSet

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the samples and the prototypes: weights and checkpoints belong to both."""
        table_KT = self.prototypes.table().numpy()
        return hashlib.sha256(super().digest.encode() + table_KT.tobytes()).hexdigest()

    def prototype_images(self, chosen_p: torch.Tensor | None = None) -> torch.Tensor:
        """Return uint8 images (P, C, H, W) by class, then by rank, on the device: the chosen ones, or all."""
        positions_P = self._prototype_positions()
        wanted_p = positions_P if chosen_p is None else positions_P[chosen_p]
        if not len(wanted_p):  # more processes than prototypes
            return next(self.images.stream([positions_P[:1]]))[:0]
        return torch.cat(list(self.images.stream(torch.split(wanted_p, READ_BATCH))))

    def _prototype_positions(self) -> torch.Tensor:
        wanted_P = self.prototypes.ids.numpy()
        order_N = np.argsort(self.ids)
        rank_P = np.searchsorted(self.ids, wanted_P, sorter=order_N).clip(max=len(self.ids) - 1)
        found_P = torch.from_numpy(order_N[rank_P])
        same_label = self.labels.cpu()[found_P] == self.prototypes.labels
        strange = (self.ids[found_P.numpy()] != wanted_P) | ~same_label.numpy()
        if strange.any():
            sample = f"sample {wanted_P[strange][0]}"
            raise DataError(f"prototypes: {sample} is not a training image of its class: mine them again")
        return found_P


def with_prototypes(data: TrainingSet, prototypes: PrototypeSet) -> PrototypeTrainingSet:
    """Return the training set together with its prototypes."""
    return PrototypeTrainingSet(data.images, data.labels, data.ids, prototypes)


def optimize_embedding(first: Classifier, prototypes: PrototypeSet, job: Job) -> Classifier:
    """Return the final network, trained from the first classifier; a finished one is loaded.

    The training can be resumed like any other, with the state of the prototype bank.
    """
    config, session, folder = job.config, job.session, job.folder / "optimization"
    both, ranks = with_prototypes(job.data, prototypes), session.ranks
    if not has_tensors(folder / "weights", ranks):
        seed = stream(config.seed, "optimization")
        learner = make_prototype_learner(first, both, config, flip=job.flip, seed=seed, ranks=ranks)
        training = Training("optimization", learner, learner.objective, seed, folder)
        logging = _logging_staleness(session, learner.bank)
        train_together("optimization", [training], both, config.second_training, logging)
        save_classifier(folder / "weights", learner.classifier, both.digest, ranks)
    finish(folder, ranks)
    return load_classifier(folder / "weights", session.device, first.spec.class_names, both.digest, ranks)


def make_prototype_learner(
    first: Classifier,
    data: PrototypeTrainingSet,
    config: RunConfig,
    *,
    flip: bool,
    seed: int,
    ranks: Ranks = ALONE,
) -> PrototypeLearner:
    """Return the untrained network: a copy of the first classifier, or the same network with new weights.

    Raises:
        DataError: the prototypes are of other classes or images.
    """
    settings = config.optimization
    prototypes, classes = data.prototypes, len(first.spec.class_names)
    if prototypes.num_classes != classes:
        raise DataError(
            f"prototypes of {prototypes.num_classes} classes, but {classes} are known: mine them again"
        )
    model = (
        copy.deepcopy(first)
        if settings.init == "warm"
        else untrained(first.spec, first.mean, first.std, seed)
    )
    bank = PrototypeBank(
        data.prototype_images(held_prototypes(prototypes.mask, ranks)),
        prototypes.mask,
        int(model.encoder.num_features),
        refresh_size(len(prototypes), config.training.batch_size, settings.refresh),
        ranks,
    )
    model = model.use_channels_last().to(data.labels.device)
    return PrototypeLearner(model, bank, config, flip)


def _logging_staleness(session: Session, bank: PrototypeBank) -> Session:
    """Return the session with a log that adds the age of the prototypes' embeddings to each epoch."""

    def log(**event: Any) -> None:
        session.log(**event, **(bank.staleness() if "epoch" in event else {}))

    return session.logging_to(log)
