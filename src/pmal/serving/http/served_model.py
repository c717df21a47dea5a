"""A model as the service holds it: ready to answer, with all that a client may ask about it."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmal._runtime.text import short_path
from pmal.data.decoding.decode import decode_fitted, encode_png
from pmal.errors import DataError, unknown_name
from pmal.rejection.bundle.record import thresholds_in_effect
from pmal.rejection.bundle.saving import describe_model
from pmal.rejection.model import OpenSetModel
from pmal.serving.answers.answer_files import watched_name
from pmal.serving.answers.answer_rows import json_number, strongest_prototypes, unicode_name
from pmal.serving.answers.answering import (
    describe_answers,
    find_model,
    model_header,
    open_model,
    takes_embeddings,
    with_rule,
)
from pmal.serving.http.batching import Images, answer_padded, batch_size, prototype_weights
from pmal.serving.http.requests.row_requests import unpack_row

RATES = (*(share / 100 for share in range(50, 100)), 0.995, 0.999)
"""The acceptance rates that a client gets thresholds for."""
BINS = 40


@dataclass(frozen=True, eq=False)
class ServedModel:
    """One bundle in memory; a reload puts another in its place."""

    model: OpenSetModel
    name: str
    fingerprint: str
    batch: int
    """Images that the network sees at once, always."""

    @functools.cached_property
    def header(self) -> dict[str, Any]:
        """What is shown next to every answer."""
        about = model_header(self.model, Path())
        del about["folder"]  # where it lies is nobody's business
        return {"name": self.name, "fingerprint": self.fingerprint, **about}

    @functools.cached_property
    def watched(self) -> str:
        """Model and score, as the watch over traffic calls them."""
        return watched_name(self.fingerprint, self.model.rule.score)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """What /v1/model says."""
        model, spec = self.model, self.model.classifier.spec
        return {
            **self.header,
            "scores": list(self.scores),
            "guaranteed": model.guarantee()[0],
            "takes": "embeddings" if self.takes_rows else "images",
            "encoder": spec.network_name,
            "image_size": spec.image_size,
            "channels": spec.channels,
            "classes": self._classes(),
            "acceptance": _acceptance(model),
            "known_scores": _histogram(model),
        }

    @functools.cached_property
    def scores(self) -> tuple[str, ...]:
        """The scores that can decide."""
        return deciding_scores(self.model)

    def deciding_by(self, score: str | None) -> "ServedModel":
        """Return the same model with another score that decides; None: the score of its rule."""
        if score is None or score == self.model.rule.score:
            return self
        if score not in self._others:
            raise unknown_name("score of this model", score, self.scores)
        return self._others[score]

    @functools.cached_property
    def _others(self) -> "dict[str, ServedModel]":
        """The model by every other score.

        Kept, because only images of one and the same model share a batch.
        """
        names = [name for name in self.scores if name != self.model.rule.score]
        return {name: replace(self, model=with_rule(self.model, score=name)) for name in names}

    @functools.cached_property
    def _starts(self) -> list[int]:
        """Where the pictures of each class begin."""
        return list(itertools.accumulate(map(len, self.model.gallery), initial=0))

    @property
    def takes_rows(self) -> bool:
        """Whether requests are embeddings, in JSON."""
        return takes_embeddings(self.model)

    def picture_path(self, k: int, rank: int) -> str | None:
        """Return the path of a prototype's picture.

        The fingerprint makes it another path for another model: it can be kept.
        """
        if self.model.pictures is None or not self.model.gallery or self.takes_rows:
            return None
        return f"v1/prototypes/{self.fingerprint[:16]}/{k}/{rank}.png"

    def picture(self, fingerprint: str, k: int, rank: int) -> bytes | None:
        """Return the PNG of a path that `picture_path` gave."""
        model = self.model
        if (
            model.pictures is None
            or self.takes_rows
            or fingerprint != self.fingerprint[:16]
            or k >= len(model.gallery)
        ):
            return None
        if rank >= len(model.gallery[k]):
            return None
        return encode_png(model.pictures[self._starts[k] + rank].permute(1, 2, 0).numpy())

    def decode(self, data: bytes, max_pixels: int) -> Images:
        """Return the image or embedding as the network takes it, (C, H, W). Raises `BadImage`."""
        spec = self.model.classifier.spec
        if self.takes_rows:
            return unpack_row(data, spec.channels)[:, None, None]
        pixels = decode_fitted(data, *spec.image_shape, max_pixels=max_pixels)
        return pixels.transpose(2, 0, 1)

    def answer(self, asked: Sequence[tuple[Images, str, int]]) -> list[dict[str, Any]]:
        """Return what predict says about each image, its name and so many prototypes."""
        found = answer_padded(self.model, [image for image, _, _ in asked], self.batch)
        weights_BT = prototype_weights(self.model, found)
        names = [name for _, name, _ in asked]
        entries = describe_answers(self.model, found, names + [""] * (self.batch - len(names)), 0)
        if weights_BT is not None and self.model.gallery:
            rows = zip(entries, asked, found.nearest.tolist(), weights_BT.tolist(), strict=False)
            for entry, (_, _, top), k, weights_T in rows:
                entry["prototypes"] = self._strongest(k, weights_T, top)
        return entries[: len(asked)]

    def _strongest(self, k: int, weights_T: Sequence[float], top: int) -> list[dict[str, Any]]:
        """Return the prototypes of a class with the largest weights, as a client finds them."""
        shown = strongest_prototypes(self._named[k], weights_T, top)
        return [{**one, "picture": self.picture_path(k, self._ranks[k][one["id"]])} for one in shown]

    @functools.cached_property
    def _named(self) -> list[list[tuple[str, int]]]:
        """File and id of each prototype, by class."""
        return [[(short_path(one.file), one.id) for one in members] for members in self.model.gallery]

    @functools.cached_property
    def _ranks(self) -> list[dict[int, int]]:
        return [{one.id: rank for rank, one in enumerate(members)} for members in self.model.gallery]

    def _members(self, k: int) -> Sequence[Any]:
        return self.model.gallery[k] if self.model.gallery else ()

    def _classes(self) -> list[dict[str, Any]]:
        model, own = self.model, len(self.model.classifier.spec.class_names)
        rows = enumerate(zip(model.class_names, thresholds_in_effect(model), strict=True))
        return [
            {
                "name": name,
                "threshold": None if threshold is None else json_number(threshold),
                "added": k >= own,
                "prototypes": len(self._members(k)),
                "picture": self.picture_path(k, 0) if self._members(k) else None,
            }
            for k, (name, threshold) in rows
        ]


def model_loader(
    run: Path,
    device: torch.device,
    batch: int = 0,
    half: bool = False,
    **rule: Any,
) -> Callable[[], ServedModel]:
    """Return what reads the bundle of a run, now and at every reload.

    Raises `PmalError` if it cannot be used.

    Args:
        run: folder of the run.
        device: to compute on.
        batch: images that the network sees at once.
        half: compute in float16.
        rule: what is another than in the bundle, as `with_rule` takes it.
    """

    def load() -> ServedModel:
        folder = find_model(run)
        fingerprint = str(describe_model(folder)["fingerprint"])
        model = open_model(folder, device, half, **rule)
        # Once, and not for each score: every model would make a copy of its own.
        model = replace(model, reference=model.reference.ready(device) if model.reference else None)
        if describe_model(folder)["fingerprint"] != fingerprint:
            raise DataError(f"{folder}: another model was saved while this one was read: load it again")
        # An answer by any score has to be the same in every place of a batch.
        size = min(batch_size(with_rule(model, score=name), batch) for name in deciding_scores(model))
        served = ServedModel(model, unicode_name(run.resolve().name), fingerprint, size)
        _ = served.about, served._others  # now, and not while somebody waits
        return served

    return load


def deciding_scores(model: OpenSetModel) -> tuple[str, ...]:
    """Return the scores that a model has a threshold for: of held-out images, or set by hand."""
    held = model.calibration.scores if model.calibration else {}
    found = {name for name, scores_N in held.items() if scores_N.isfinite().any()}
    return tuple(name for name in model.score_names if name in found | {model.rule.score})


def _acceptance(model: OpenSetModel) -> dict[str, Any] | None:
    """Return thresholds for every rate and what they promise: a client decides again without asking."""
    calibration, score, count = model.calibration, model.deciding_score(), len(model.class_names)
    if calibration is None or score not in calibration.scores:
        return None
    rates = sorted({*RATES, model.rule.accept})
    per_class = model.rule.per_class and model.rule.threshold is None
    rules = [replace(model.rule, accept=rate, per_class=per_class, threshold=None) for rate in rates]
    variants = [replace(model, rule=rule) for rule in rules]
    rows = [variant.limits().tolist()[: count if per_class else 1] for variant in variants]
    return {
        "rates": rates,
        "per_class": per_class,
        "thresholds": [list(map(json_number, column)) for column in zip(*rows, strict=True)],
        "typicality_thresholds": [json_number(variant.far_limit()) for variant in variants],
        "notes": [variant.guarantee()[1] for variant in variants],
    }


def _histogram(model: OpenSetModel) -> dict[str, Any] | None:
    """Return how the deciding score spreads over held-out known images."""
    if model.calibration is None or model.rule.score not in model.calibration.scores:
        return None
    scores_N = model.decisive(model.calibration).of(model.rule.score).double().numpy()
    finite = scores_N[np.isfinite(scores_N)]
    if not len(finite) or finite.min() == finite.max():
        return None
    # The last hundredth would leave the others no room on the scale; it counts in the last bin.
    low, high = float(finite.min()), float(np.quantile(finite, 0.99))
    high = high if high > low else float(finite.max())
    counts, _ = np.histogram(finite.clip(max=high), bins=BINS, range=(low, high))
    return {"low": low, "high": high, "counts": counts.tolist()}
