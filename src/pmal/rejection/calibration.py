"""What held-out known images say about the scores, kept so that any acceptance rate can be asked for later.

n held-out images.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from pmal.errors import unknown_name
from pmal.rejection.scores import ScoreScale, combined_score
from pmal.rejection.thresholds import Threshold, conformal_threshold, per_class_thresholds

EMBEDDINGS_LIMIT = 10_000
"""Embeddings that are kept at most: a bundle stays small."""
COMBINED = {"distance": 1.0, "neighbors": 2.0, "logit": 1.0}
"""What the combined score is made of, where a model has them, and how much each counts.

Distance and logit say how well an image fits a class, neighbors whether training images lie where it lies:
half of the weight for each of the two questions. Chosen on known classes alone (docs/method.md)."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Scores of held-out known images, by name, and what the network took each image for.

    The combined score compares an image with some of them; so its own scores here are of the others alone.
    """

    scores: Mapping[str, torch.Tensor]
    """float64 (n,); that of `combined` is shorter."""
    predictions: torch.Tensor
    """int64 (n,)"""
    scale: ScoreScale | None
    """What the combined score is measured by."""
    z: torch.Tensor | None = None
    """Embeddings (m, D) of m <= n of the images: what a class that is added later is measured on."""
    labels: torch.Tensor | None = None
    """int64 (m,): the classes of these, where they are known."""

    @classmethod
    def fit(cls, scores: Mapping[str, torch.Tensor], predictions: torch.Tensor) -> "Calibration":
        """From all scores of held-out images. One half of them makes the scale of the combined score."""
        parts = {name: scores[name] for name in COMBINED if name in scores}
        first, second = _halves(len(predictions))
        usable = {name: values for name, values in parts.items() if _has_spread(values[first])}
        if len(usable) < 2 or not len(second):
            return cls(dict(scores), predictions, None)
        scale = ScoreScale.fit({name: values[first] for name, values in usable.items()}, COMBINED)
        combined = combined_score({name: values[second] for name, values in usable.items()}, scale)
        return cls({**scores, "combined": combined}, predictions, scale)

    def keeping(self, z_ND: torch.Tensor, labels_N: torch.Tensor | None) -> "Calibration":
        """The same with embeddings and labels of the images, evenly spaced ones where there are many."""
        step = -(-len(z_ND) // EMBEDDINGS_LIMIT)
        labels = None if labels_N is None else labels_N[::step].clone()
        return replace(self, z=z_ND[::step].clone(), labels=labels)

    def threshold(self, score: str, accept: float) -> Threshold:
        """One for all classes."""
        return conformal_threshold(self.of(score), accept)

    def class_thresholds(self, score: str, accept: float, num_classes: int) -> tuple[Threshold, ...]:
        """One per predicted class."""
        return per_class_thresholds(self.of(score), self._predictions(score), num_classes, accept)

    def by_class(self, score: str, accept: float, num_classes: int) -> list[torch.Tensor]:
        """Known scores of each predicted class; of all classes for one that has no threshold of its own."""
        known_N, predictions_N = self.of(score), self._predictions(score)
        thresholds = self.class_thresholds(score, accept, num_classes)
        return [known_N if t.pooled else known_N[predictions_N == k] for k, t in enumerate(thresholds)]

    def _predictions(self, score: str) -> torch.Tensor:
        """Of the images that a score is there of."""
        halved = score == "combined"
        return self.predictions[_halves(len(self.predictions))[1]] if halved else self.predictions

    def of(self, score: str) -> torch.Tensor:
        """The known scores by this name."""
        if score not in self.scores:
            raise unknown_name("score", score, self.scores)
        return self.scores[score]


def _halves(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of two halves, drawn once and for all: images often lie in the order of their classes."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return order[: count - count // 2], order[count - count // 2 :]


def _has_spread(scores: torch.Tensor) -> bool:
    finite = scores[scores.isfinite()]
    return len(finite) > 1 and bool(finite.amax() > finite.amin())
