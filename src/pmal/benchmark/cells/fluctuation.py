"""How much prototypes change when the mining is repeated with other classifiers.

The paper repeats the mining three times and shows a picture. Here, three pairs of classifiers come from
independent random streams. Two figures are measured: the share of prototypes that two repetitions have in
common, and the distance of a prototype to the nearest one of the other repetition, in the space of the
first classifier. The same distance between random images of the class is given next to it.

N samples, D channels, T prototypes of a class.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal import pipeline
from pmal._runtime.manifest import describe_environment
from pmal._runtime.progress import notes_of_warnings
from pmal._runtime.session import Session
from pmal.benchmark.ablations import MININGS
from pmal.config import RunConfig
from pmal.data.feeding.parts import image_shape
from pmal.data.splits.task import open_task
from pmal.ensemble.embeddings import FOLDER, stored_embedding
from pmal.ensemble.inputs import run_inputs
from pmal.mining.miner import mine_spaces
from pmal.mining.prototypes import PrototypeSet
from pmal.mining.quality import QualityOptions
from pmal.reporting.about import describe


def measure_fluctuation(config: RunConfig, run: Path, session: Session) -> dict[str, Any]:
    """Mine with classifiers 0 and 1, 2 and 3, ... of a run, and return how the prototypes differ."""
    for stage in ("classifiers", "embeddings"):
        pipeline.fit(config, run, session, only=stage)
    task = open_task(config.data, session.resources.data_root)
    # Images that could not be read have no embedding.
    inputs = run_inputs(config, image_shape(task.train, config.data), run, session)
    samples = inputs.open("train", task.train, session).samples
    spaces = [stored_embedding(run / FOLDER / str(index)).space for index in range(2 * MININGS)]
    options = QualityOptions(config.mining, config.seed, device=session.device)
    with notes_of_warnings(session.display):
        mined = [
            mine_spaces(spaces[2 * i : 2 * i + 2], samples.labels, options, ids=samples.ids)[0]
            for i in range(MININGS)
        ]
    figures = compare_minings(mined, spaces[0][0], torch.as_tensor(samples.ids), samples.labels)
    about = {"manifest": describe_environment(session.device)}
    return describe(config, task) | figures | about


def compare_minings(
    mined: list[PrototypeSet], z_ND: Tensor, ids_N: Tensor, labels_N: NDArray[np.int64]
) -> dict[str, Any]:
    """Return means over classes and pairs of repetitions. Distances are one minus the cosine.

    Args:
        mined: the prototypes of each repetition.
        z_ND: embeddings of the samples.
        ids_N: ids of the samples.
        labels_N: classes of the samples.
    """
    place = {int(i): position for position, i in enumerate(ids_N.tolist())}
    unit_ND = torch.nn.functional.normalize(z_ND.double(), dim=1)
    random = np.random.default_rng(0)
    shares, near, by_chance = [], [], []
    for a, b in itertools.permutations(range(len(mined)), 2):
        for label in range(mined[a].num_classes):
            members = np.flatnonzero(labels_N == label)
            own, other = ([place[i] for i in _ids(mined[m], label)] for m in (a, b))
            drawn = random.permutation(members)[: len(own)]
            shares.append(len(set(own) & set(other)) / max(len(own), 1))
            near.append(_nearest(unit_ND[own], unit_ND[other]))
            by_chance.append(_nearest(unit_ND[drawn], unit_ND[random.permutation(members)[: len(other)]]))
    return {
        "minings": len(mined),
        "share_equal": float(np.mean(shares)),
        "distance_to_nearest": float(np.mean(near)),
        "distance_by_chance": float(np.mean(by_chance)),
        "per_class": mined[0].per_class,
    }


def _ids(mined: PrototypeSet, label: int) -> list[int]:
    return [int(i) for i in mined.ids[mined.labels == label].tolist()]


def _nearest(own_TD: Tensor, other_TD: Tensor) -> float:
    """Return the mean distance to the nearest one of the others."""
    return float((1 - own_TD @ other_TD.T).clamp_min(0).amin(dim=1).mean())
