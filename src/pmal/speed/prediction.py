"""Latency and throughput of a finished model's answers, next to those of the reference loop, in turns.

The model has everything that one of `pmal fit` has: prototypes, training embeddings, every score, and the
typicality of its layers. The same model without typicality takes its turns next to it: that is what the
second line of defense costs.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from pmal._runtime.session import Session
from pmal.optimization.learner import embed_prototypes
from pmal.optimization.training import PrototypeTrainingSet
from pmal.rejection.model import OpenSetModel, Rule
from pmal.rejection.scores import Reference
from pmal.rejection.typicality.of_layers import fit_typicality
from pmal.speed.contestants import Case, prototypes_of, training_data
from pmal.speed.reference import ReferenceLoop
from pmal.speed.timing import Rows, Stopwatch, Work, in_turns, spread

FEWEST = 3
"""Calls, whatever they cost."""


@dataclass(frozen=True)
class PredictionPlan:
    """How much to ask a model, and how often."""

    images: int
    """Most images of a call in which the throughput is measured."""
    calls: int
    """Most calls with one image."""
    repeats: int
    """Most calls with many images."""
    reference_images: int = 16_384
    """Most images of the reference loop at a time: it is slower."""
    trial: int = 64
    """Images of a first call, whose time decides how many are worth while."""
    seconds: float = 1.0
    """Rough limit for all calls with one image, and for one with many: slow networks are called less."""
    bank: int = 20_000
    """Training embeddings of the model."""

    def fitted(self, one: float, each: float) -> "PredictionPlan":
        """Return the plan for a model that takes so many seconds for one image, and for each of a batch."""
        calls, images = max(FEWEST, int(self.seconds / one)), max(1, int(self.seconds / each))
        return dataclasses.replace(self, calls=min(self.calls, calls), images=min(self.images, images))


def finished_model(case: Case, bank: int, device: torch.device) -> OpenSetModel:
    """Return a model of this network, untrained, with random training embeddings; its threshold is set."""
    network, data = case.network(device).eval(), training_data(case, case.pictures(), device)
    prototypes = prototypes_of(case)
    pictures = PrototypeTrainingSet(data.images, data.labels, data.ids, prototypes).prototype_images()
    table_KTD = embed_prototypes(network, pictures, prototypes.mask)
    bank_ND = torch.randn(bank, table_KTD.shape[2], generator=torch.Generator().manual_seed(0))
    reference = Reference(table_KTD, prototypes.mask, "point-to-set", bank_ND)
    typicality = fit_typicality(network, data.images)
    rule = Rule("distance", threshold=0.5)
    return OpenSetModel(network, case.spec.class_names, rule, reference, typicality=typicality)


def measure_prediction(case: Case, plan: PredictionPlan, watch: Stopwatch, session: Session) -> Rows:
    """Return a row per precision of the network: on a GPU there are two."""
    model = finished_model(case, plan.bank, session.device)
    models = {"float32": model}
    if session.device.type == "cuda":
        models["float16"] = model.in_half_precision()
    rows = [_measure(case, one, precision, plan, watch, session) for precision, one in models.items()]
    return {"prediction": rows}


def _measure(
    case: Case,
    model: OpenSetModel,
    precision: str,
    plan: PredictionPlan,
    watch: Stopwatch,
    session: Session,
) -> dict[str, Any]:
    """Return one row.

    `near` is an answer without typicality, `network` the network alone, without any score.
    """
    pictures = case.pictures()
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    one, batch = pixels[:1], pixels[torch.arange(min(plan.trial, plan.images)) % len(pixels)]
    seconds = [min(watch.seconds(partial(model.answer, x)) for _ in range(FEWEST)) for x in (one, batch)]
    plan = plan.fitted(seconds[0], seconds[1] / len(batch))
    compared = min(plan.images, plan.reference_images)
    loop = ReferenceLoop(case.spec, pictures, [0] * compared, case.batch_size, session.device)
    ones = _works(model, one, loop.answerer())
    many = _works(model, pixels[torch.arange(plan.images) % len(pixels)], loop.tester())
    warmup = max(FEWEST, plan.calls // 5)
    total = len(ones) * (plan.calls + warmup) + len(many) * (plan.repeats + 1)
    with session.display.stage(f"prediction {case.encoder} {precision}", total, "calls") as advance:
        single = in_turns(ones, watch, warmup=warmup, repeats=plan.calls, advance=advance)
        batched = in_turns(many, watch, warmup=1, repeats=plan.repeats, advance=advance)
    images = dict.fromkeys(many, plan.images) | {"reference": compared}
    speed = {name: images[name] / statistics.median(taken) for name, taken in batched.items()}
    return {
        **{name: value for name, value in case.describe().items() if name != "batch_size"},
        "precision": precision,
        "bank": plan.bank,
        "calls": plan.calls,
        "images": plan.images,
        **_latency("", single["model"]),
        **_latency("near_", single["near"]),
        **_latency("network_", single["network"]),
        **_latency("reference_", single["reference"]),
        "images_per_s": speed["model"],
        "spread": spread(batched["model"]),
        "near_images_per_s": speed["near"],
        "network_images_per_s": speed["network"],
        "reference_images_per_s": speed["reference"],
        "ratio": speed["model"] / speed["reference"],
        "latency_ratio": statistics.median(single["reference"]) / statistics.median(single["model"]),
        "typicality_cost": speed["near"] / speed["model"] - 1,
        "typicality_latency_cost": statistics.median(single["model"]) / statistics.median(single["near"]) - 1,
    }


def _works(model: OpenSetModel, images: torch.Tensor, reference: Work) -> dict[str, Work]:
    near = dataclasses.replace(model, typicality=None)
    return {
        "model": partial(model.answer, images),
        "near": partial(near.answer, images),
        "network": partial(near.embed, images),
        "reference": reference,
    }


def _latency(prefix: str, seconds: Sequence[float]) -> dict[str, float]:
    median, tail = statistics.median(seconds), float(np.quantile(seconds, 0.99, method="inverted_cdf"))
    return {f"{prefix}median_ms": 1e3 * median, f"{prefix}p99_ms": 1e3 * tail}
