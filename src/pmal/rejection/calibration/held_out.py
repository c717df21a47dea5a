"""Scores of held-out known images, kept so that any acceptance rate can be chosen later.

n held-out images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pmal.errors import unknown_name
from pmal.rejection.calibration.thresholds import Threshold, conformal_threshold, per_class_thresholds
from pmal.rejection.scores import ScoreScale, combined_score
from pmal.rejection.typicality.penalty import Penalty

EMBEDDINGS_LIMIT = 10_000
"""Number of embeddings that are kept at most, so that a bundle stays small."""
FOLDS = 10
"""Number of folds of the held-out images. Each is compared with the other folds."""
COMBINED = {"distance": 1.0, "neighbors": 2.0, "logit": 1.0}
"""Scores that the combined score consists of, if a model has them, and their weights.

Distance and logit measure how well an image fits a class. Neighbors measures whether training images are near
it. Each of the two questions has half of the weight. Chosen on known classes alone (docs/method.md)."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of held-out known images, by name, and the class that the network predicted for each.

    The combined score compares an image with all of them. The combined scores stored here compare each image
    with nine tenths of the others (cross-conformal), because an image that is compared with itself looks too
    known.
    """

    scores: Mapping[str, torch.Tensor]
    """float64 (n,). `combined` is shorter in models that version 0.1 saved."""
    predictions: torch.Tensor
    """int64 (n,)"""
    scale: ScoreScale | None
    """Scale of the combined score."""
    z: torch.Tensor | None = None
    """Embeddings (m, D) of m <= n of the images. The effect of a class added later is measured on them."""
    labels: torch.Tensor | None = None
    """int64 (m,): their classes, if known."""
    folds: int = 0
    """Number of parts that were held out in turn, each scored by a model of the others. 0: one part."""

    @classmethod
    def fit(cls, scores: Mapping[str, torch.Tensor], predictions: torch.Tensor) -> "Calibration":
        """Return the calibration by all scores of held-out images, with a combined score if possible.

        Args:
            scores: by name, float64 (n,).
            predictions: the nearest class of each image, int64 (n,).
        """
        parts = {name: scores[name] for name in COMBINED if name in scores}
        folds = _folds(len(predictions))
        usable = {name: values for name, values in parts.items() if _can_scale(values, folds)}
        if len(usable) < 2 or len(folds) < 2:
            return cls(dict(scores), predictions, None)
        combined = _cross_fitted(usable, folds)
        return cls({**scores, "combined": combined}, predictions, ScoreScale.fit(usable, COMBINED))

    @classmethod
    def pooled(cls, parts: Sequence["Calibration"]) -> "Calibration":
        """Return the calibration by images that were held out in turn, each part by another model.

        Args:
            parts: one calibration for each part, by a model that was trained on the others.
        """
        names = [name for name in parts[0].scores if name != "combined"]
        scores = {name: torch.cat([part.scores[name] for part in parts]) for name in names}
        found = cls.fit(scores, torch.cat([part.predictions for part in parts]))
        return replace(found, folds=len(parts))

    def keeping(self, z_ND: torch.Tensor, labels_N: torch.Tensor | None) -> "Calibration":
        """Return the calibration with embeddings and labels of the images; evenly spaced, if many."""
        step = -(-len(z_ND) // EMBEDDINGS_LIMIT)
        labels = None if labels_N is None else labels_N[::step].clone()
        return replace(self, z=z_ND[::step].clone(), labels=labels)

    def with_penalty(self, penalty: Penalty, score: str, typicality: str) -> "Calibration":
        """Return the calibration with the penalty in a score.

        Each image is given the penalty by the scale of the images outside its fold. By a scale that it is a
        part of itself, an image looks less unlike the others than a new one does, and the threshold would
        accept fewer new images than it promises: of 20 images, 88.5 % instead of 90 %.

        Args:
            penalty: by the scale of all images. It stands in for that of a fold which has none.
            score: name of the score.
            typicality: name of the score that the penalty is for.
        """
        near_n, far_n = self.of(score), self.of(typicality)
        joint_n = near_n + penalty(far_n)
        for fold in _folds(len(near_n)):
            rest = _without(fold, len(near_n))
            other = Penalty.fit(near_n[rest], far_n[rest], penalty.linear) or penalty
            joint_n[fold] = near_n[fold] + other(far_n[fold])
        return replace(self, scores={**self.scores, score: joint_n})

    def threshold(self, score: str, accept: float) -> Threshold:
        """Return one threshold for all classes.

        Args:
            score: its name.
            accept: share of known images to accept.
        """
        return conformal_threshold(self.of(score), accept)

    def class_thresholds(self, score: str, accept: float, num_classes: int) -> tuple[Threshold, ...]:
        """Return one threshold for each predicted class."""
        return per_class_thresholds(self.of(score), self.predicted(score), num_classes, accept)

    def by_class(self, score: str, accept: float, num_classes: int) -> list[torch.Tensor]:
        """Return the known scores of each predicted class.

        A class that has no threshold of its own gets the scores of all classes.
        """
        known_N, predictions_N = self.of(score), self.predicted(score)
        thresholds = self.class_thresholds(score, accept, num_classes)
        return [known_N if t.pooled else known_N[predictions_N == k] for k, t in enumerate(thresholds)]

    def predicted(self, score: str) -> torch.Tensor:
        """Return the predicted classes of the images that have this score."""
        whole = len(self.of(score)) == len(self.predictions)
        return self.predictions if whole else self.predictions[_second_half(len(self.predictions))]

    def of(self, score: str) -> torch.Tensor:
        """Return the known scores by this name.

        Raises:
            UsageError: there is no such score.
        """
        if score not in self.scores:
            raise unknown_name("score", score, self.scores)
        return self.scores[score]


def _cross_fitted(scores: Mapping[str, torch.Tensor], folds: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the combined score of each image by the scale of the images outside its fold."""
    combined = torch.empty(sum(map(len, folds)), dtype=torch.float64)
    for fold in folds:
        rest = _without(fold, len(combined))
        scale = ScoreScale.fit({name: values[rest] for name, values in scores.items()}, COMBINED)
        combined[fold] = combined_score({name: values[fold] for name, values in scores.items()}, scale).cpu()
    return combined


def _folds(count: int) -> list[torch.Tensor]:
    """Return the positions of up to ten folds, drawn with a fixed seed: images often lie in class order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return [order[first::FOLDS] for first in range(min(FOLDS, count))]


def _without(fold: torch.Tensor, count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bool).index_fill(0, fold, False).nonzero().flatten()


def _second_half(count: int) -> torch.Tensor:
    """Return the images whose combined scores version 0.1 kept. The others were its scale."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[count - count // 2 :]


def _can_scale(scores: torch.Tensor, folds: Sequence[torch.Tensor]) -> bool:
    return all(_has_spread(scores[_without(fold, len(scores))]) for fold in folds)


def _has_spread(scores: torch.Tensor) -> bool:
    finite = scores[scores.isfinite()]
    return len(finite) > 1 and bool(finite.amax() > finite.amin())
