"""The finished model: a network, what it compares images with, and where known ends.

B images, K classes (the network's K0 and those added since), T prototypes of the class that has most,
D channels, P prototypes in all.
"""

import functools
import math
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from pmal._runtime.devices import full_precision
from pmal._runtime.progress import Advance
from pmal.data.feeding.batches import HostImages, ImageBatches, ResidentImages
from pmal.ensemble.classifier import Classifier, in_half_precision
from pmal.ensemble.embeddings import batch_for, embed_images
from pmal.ensemble.replay import Replayed
from pmal.errors import DataError, UsageError, unknown_name
from pmal.methods import SCORES
from pmal.optimization.distances import attention_weights
from pmal.rejection.calibration.held_out import Calibration
from pmal.rejection.calibration.thresholds import conformal_p_values, decide, promise
from pmal.rejection.scores import LOGIT_SCORES, Reference, class_distances, unknown_scores
from pmal.rejection.typicality.of_layers import (
    TYPICALITY,
    AnyTypicality,
    always_typical,
    embed_with_typicality,
)
from pmal.rejection.typicality.penalty import DECISION, Penalty

_ROWS = 1 << 16
REPLAYED = (*LOGIT_SCORES, "distance")
"""Scores that need no look at a value, so that a GPU can be told beforehand to compute them."""
ADDED_SCORES = ("distance", "neighbors")
"""Scores of a model with classes that were added without training: its logits know nothing of them."""


@dataclass(frozen=True)
class Prototype:
    """An image that stands for its class, as people find it."""

    id: int
    file: str
    log_r: float
    gap: float


@dataclass(frozen=True)
class Rule:
    """The score by which an image is rejected, and its threshold."""

    score: str
    accept: float = 0.95
    per_class: bool = False
    threshold: float | None = None
    """Set by hand, or found on a validation set. None: by calibration, for `accept`."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model says about B images."""

    labels: Tensor
    """Class of each image, -1 for unknown (B,)."""
    nearest: Tensor
    """Class that it was taken for before the threshold (B,)."""
    score: Tensor
    """The unknown score that decides, the penalty of images unlike all training images in it, float64 (B,);
    larger is more unknown."""
    limits: Tensor
    """The threshold that each image was held against (B,)."""
    probabilities: Tensor
    """Softmax over the network's own classes (B, K0)."""
    z: Tensor
    """Embeddings (B, D), on the device of the network; all else is on the CPU."""
    far: Tensor
    """The typicality score, float64 (B,); larger is less like any training image."""
    far_limits: Tensor
    """The typicality from which on an image is unknown even if all else is usual (B,)."""
    p_values: Tensor
    """How often a known image looks at least as unknown (B,); NaN without held-out images."""


@dataclass(frozen=True, eq=False)
class OpenSetModel:
    """Everything that a prediction needs; images in, answers out."""

    classifier: Classifier
    class_names: tuple[str, ...]
    """The network's classes, then those added since."""
    rule: Rule
    reference: Reference | None = None
    """Prototypes and training embeddings; none for a plain softmax classifier."""
    gallery: tuple[tuple[Prototype, ...], ...] = ()
    """The prototypes of each class by rank, in the order of `reference`."""
    pictures: Tensor | None = None
    """uint8 (P, C, H, W) of all prototypes, by class and then by rank."""
    calibration: Calibration | None = None
    typicality: AnyTypicality | None = None
    """What training images look like to the layers, or in pretrained features; None: nothing was fitted."""

    def __getstate__(self) -> dict[str, object]:
        """Return the state for copies and pickles, which rebuild what is only kept for speed."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def added(self) -> int:
        """How many classes the network was not trained on."""
        return len(self.class_names) - len(self.classifier.spec.class_names)

    @property
    def has_threshold(self) -> bool:
        """Whether it can reject: by held-out images, or by a threshold that was set."""
        return self.calibration is not None or self.rule.threshold is not None

    @property
    def score_names(self) -> tuple[str, ...]:
        """The scores that this model can be asked for; of those of plugins, the one that it rejects by."""
        names = [*LOGIT_SCORES, *self.classifier.head.own_scores]
        names += ("distance", "neighbors") if self.reference else ()
        names += [self.rule.score] if self.rule.score in SCORES else []
        if self.added:
            names = [*ADDED_SCORES]
        scale = self.calibration.scale if self.calibration else None
        return (*names, "combined") if scale and set(scale.quantiles) <= {*names} else tuple(names)

    def scores(self, z_BD: Tensor, logits_BK: Tensor, far_B: Tensor | None = None) -> dict[str, Tensor]:
        """Return every score of embedded images; with typicality, also those and the joint decision."""
        found = self._scores(z_BD, logits_BK, self.score_names)
        if self.typicality is not None and far_B is not None:
            found[TYPICALITY] = far_B
            if self.penalty is not None:
                found[DECISION] = found[self.deciding_score()].cpu() + self.penalty(far_B.cpu())
        return {name: score_B.cpu() for name, score_B in found.items()}

    def decision(self, z_BD: Tensor, logits_BK: Tensor, far_B: Tensor) -> Tensor:
        """Return the score that decides, typicality in it if that counts, float64 (B,)."""
        found = self.scores(z_BD, logits_BK, far_B)
        return found.get(DECISION, found[self.deciding_score()])

    @torch.no_grad()
    def answer(self, images: Tensor | ImageBatches, advance: Advance | None = None) -> Answers:
        """Return classes and scores of uint8 images (B, C, H, W) of the model's size and channels."""
        self.deciding_score()
        if not isinstance(images, Tensor) or len(images) > batch_for(self.classifier):
            return self.answer_embedded(*self.embed(images, advance))
        # Few, such as one, are answered in one piece: what takes time then is to launch each operation.
        self._check_images(images)
        with full_precision():
            found = self._answer_few(images.to(self.classifier.mean.device))
        if advance:
            advance(len(images))
        return self._answers(*found)

    def embed(self, images: Tensor | ImageBatches, advance: Advance | None = None) -> tuple[Tensor, ...]:
        """Return embeddings, logits and typicality scores of images, on the device of the network."""
        device = self.classifier.mean.device
        if isinstance(images, Tensor):
            self._check_images(images)
            elsewhere = images.device.type == "cpu" != device.type
            many = elsewhere and len(images) > batch_for(self.classifier)
            images = HostImages(images, device) if many else ResidentImages(images, device)
        return embed_images(self.classifier, images, advance=advance, to=device, embed=self._replayed_embed)

    def in_half_precision(self) -> "OpenSetModel":
        """Return the same model in float16, several times faster on a GPU.

        Scores keep about three digits, thresholds stay.
        """
        return replace(self, classifier=in_half_precision(self.classifier))

    def embed_batch(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `embed` does, of images (B, C, H, W) that lie on the device of the network."""
        return embed_with_typicality(self.classifier, self._typicality, images)

    @torch.no_grad()
    def answer_embedded(self, z_BD: Tensor, logits_BK: Tensor, far_B: Tensor | None = None) -> Answers:
        """Return answers to what `embed` gave; without typicality scores, by the near score alone."""
        self.deciding_score()
        # On the device of the network, where the many prototypes and neighbors of many classes take no time;
        # in blocks, because what is said of a million images may not fit there.
        z_BD, device = z_BD.to(self.classifier.mean.device), self.classifier.mean.device
        blocks = zip(torch.split(z_BD, _ROWS), torch.split(logits_BK, _ROWS), strict=True)
        judged = [[x.cpu() for x in self._judge(z, logits.to(device))] for z, logits in blocks]
        columns = (torch.cat(column) for column in zip(*judged, strict=True))
        return self._answers(z_BD, always_typical(z_BD) if far_B is None else far_B, *columns)

    @torch.no_grad()
    def logits(self, z_BD: Tensor) -> Tensor:
        """Return the logits of embeddings, by the network's head, (B, K0)."""
        logits_BK: Tensor = self.classifier.head(z_BD.to(self.classifier.mean)).float().cpu()
        return logits_BK

    def nearest_class(self, z_BD: Tensor, logits_BK: Tensor) -> Tensor:
        """Return the network's class; an added one if its prototypes are nearer than those of all others.

        So an added class takes images from the others, but never moves one between them.
        """
        own_B = logits_BK.argmax(dim=1)
        if not self.added or self._reference is None:
            return own_B
        z_BD = z_BD.to(self.classifier.mean.device)
        nearest_B = class_distances(z_BD, self._reference).argmin(dim=1).to(own_B.device)
        return nearest_B.where(nearest_B >= logits_BK.shape[1], own_B)

    def deciding_score(self) -> str:
        """Return the score of the rule, which this model must have."""
        if self.rule.score not in self.score_names:
            raise unknown_name("score of this model", self.rule.score, self.score_names)
        return self.rule.score

    def limits(self) -> Tensor:
        """Return the threshold of each class, float64 (K,)."""
        rule, count = self.rule, len(self.class_names)
        if rule.threshold is not None:
            return torch.full((count,), rule.threshold, dtype=torch.float64)
        if self.calibration is None:
            raise UsageError(
                "this model has no threshold, because no images were held out: pass one, "
                "or fit with more images or a larger data.held_out"
            )
        known, score = self.decisive(self.calibration), self.deciding_score()
        if rule.per_class:
            found = known.class_thresholds(score, rule.accept, count)
        else:
            found = (known.threshold(score, rule.accept),) * count
        return torch.tensor([threshold.value for threshold in found], dtype=torch.float64)

    def decisive(self, calibration: Calibration) -> Calibration:
        """Return the same calibration, with the penalty in its deciding score."""
        if self.penalty is None:
            return calibration
        return calibration.with_penalty(self.penalty, self.rule.score, TYPICALITY)

    @functools.cached_property
    def penalty(self) -> Penalty | None:
        """What images unlike all training images add to the deciding score; None: nothing."""
        held = self.calibration.scores if self.calibration else {}
        if self.typicality is None or TYPICALITY not in held or self.rule.score not in held:
            return None
        # That of features is a part of the combined score alone: other rules stay what their names say.
        if self.typicality.linear and self.rule.score != "combined" and len(self.class_names) > 1:
            return None
        return Penalty.fit(held[self.rule.score], held[TYPICALITY], self.typicality.linear)

    def far_limit(self) -> float:
        """Return the limit of typicality.

        Above it, typicality alone makes an image unknown that is usual in all else.
        """
        if self.penalty is None or self.calibration is None:
            return math.inf
        usual = float(self.calibration.of(self.rule.score).nanmedian())
        return float(self.penalty.far_limit(self.limits().amax() - usual))

    def guarantee(self) -> tuple[bool, str]:
        """Return whether the threshold accepts what it promises, and one line about it."""
        rule, calibration, count = self.rule, self.calibration, len(self.class_names)
        if rule.threshold is not None or calibration is None:
            return False, "no guarantee: a threshold that was set, or found on a validation set"
        several = "class that was added later is" if self.added == 1 else "classes that were added later are"
        new = f"; {self.added} {several} not covered" if self.added else ""
        known = self.decisive(calibration)
        if rule.per_class:
            found = known.class_thresholds(rule.score, rule.accept, count)
        else:
            found = (known.threshold(rule.score, rule.accept),)
        guaranteed, note = promise(found)
        if calibration.folds:
            note = note.replace("at least", "about", 1)
            note = note.replace("held-out images", f"images held out in {calibration.folds} parts", 1)
        return guaranteed, note + new

    def check_statistics(self) -> None:
        """Refuse a model that would take noise for a known class: one saved without typicality.

        Networks without layers to look at have none to miss; a class that was added and is unlike all others
        takes them away, which was said then; and a threshold that was set is the user's own.

        Raises:
            UsageError: the network sees images, and nothing says what training images look like to it.
        """
        sees = not self.classifier.on_features and bool(self.classifier.observed)
        if sees and self.typicality is None and not self.added and self.rule.threshold is None:
            raise UsageError(
                "this model was saved without the statistics of its layers, so noise could pass as known: "
                "`pmal fit --out RUN --from calibration` adds them without training, or pass a threshold "
                "to use the model as it is"
            )

    def attention(self, z_BD: Tensor, classes_B: Tensor) -> Tensor:
        """Return the share of each prototype in its class's answer, for one class per image: (B, T)."""
        if self._reference is None:
            raise UsageError("this model has no prototypes: fit one with method pmal to see them")
        prototypes_KTD, mask_KT = self._reference.prototypes_KTD, self._reference.mask_KT
        z_BD, classes_B = z_BD.to(mask_KT.device).double(), classes_B.to(mask_KT.device)
        weights_BT = z_BD.new_zeros(len(z_BD), mask_KT.shape[1])
        for k in sorted(set(classes_B.tolist())):
            asked = classes_B == k
            one = slice(k, k + 1)
            found_B1T = attention_weights(z_BD[asked], prototypes_KTD[one], mask_KT[one])
            weights_BT[asked] = found_B1T[:, 0]
        return weights_BT.cpu()

    def _scores(self, z_BD: Tensor, logits_BK: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        scale = self.calibration.scale if self.calibration else None
        device, head = self.classifier.mean.device, self.classifier.head
        return unknown_scores(z_BD.to(device), logits_BK.to(device), self._reference, scale, names, head)

    @functools.cached_property
    def _reference(self) -> Reference | None:
        """The reference if it is needed, with prototypes in the precision that distances are computed in."""
        return self.reference.ready(self.classifier.mean.device) if self.reference else None

    @functools.cached_property
    def _typicality(self) -> AnyTypicality | None:
        """Typicality on the device of the network.

        It is a copy, because a module moves in place, and others may share it.
        """
        return deepcopy(self.typicality).to(self.classifier.mean.device) if self.typicality else None

    @functools.cached_property
    def _limits(self) -> Tensor:
        return self.limits()

    @functools.cached_property
    def _far_limit(self) -> float:
        return self.far_limit()

    @functools.cached_property
    def _replayed_embed(self) -> Replayed[tuple[Tensor, Tensor, Tensor]]:
        # Of a copy: the model and what it holds would keep each other, and a GPU's memory, alive.
        return Replayed(replace(self, reference=None).embed_batch, self.classifier)

    @functools.cached_property
    def _replayed_answer(self) -> Replayed[tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
        copy = replace(self, reference=self._reference)  # as above
        return Replayed(copy._embed_and_judge, self.classifier)

    def _answer_few(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return embeddings, typicality scores, and what `_judge` says of them."""
        if self.classifier.training:
            self.classifier.eval()
        if self.rule.score in REPLAYED:
            return self._replayed_answer(images)
        z_BD, logits_BK, far_B = self._replayed_embed(images)
        return (z_BD, far_B, *self._judge(z_BD, logits_BK))

    def _embed_and_judge(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        z_BD, logits_BK, far_B = self.embed_batch(images)
        return (z_BD, far_B, *self._judge(z_BD, logits_BK))

    def _judge(self, z_BD: Tensor, logits_BK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return nearest class, deciding score and probabilities, all on the device of the network."""
        name = self.rule.score
        score_B = self._scores(z_BD, logits_BK, (name,))[name]
        return self.nearest_class(z_BD, logits_BK), score_B, logits_BK.double().softmax(dim=1)

    def _answers(
        self, z_BD: Tensor, far_B: Tensor, nearest_B: Tensor, score_B: Tensor, probabilities_BK: Tensor
    ) -> Answers:
        nearest_B, score_B, far_B = nearest_B.cpu(), score_B.cpu(), far_B.double().cpu()
        if self.penalty is not None:
            score_B = score_B + self.penalty(far_B)
        limits = self._limits
        return Answers(
            torch.from_numpy(decide(nearest_B, score_B, limits.numpy())),
            nearest_B,
            score_B,
            limits[nearest_B],
            probabilities_BK.cpu(),
            z_BD,
            far_B,
            torch.full_like(far_B, self._far_limit),
            self.p_values(nearest_B, score_B),
        )

    def p_values(self, nearest_B: Tensor, score_B: Tensor) -> Tensor:
        """Return how likely a known image is to look at least as unknown, (B,); NaN without held-out images.

        An image is unknown if this is at most 1 - accept.
        """
        if self.calibration is None:
            return torch.full_like(score_B, math.nan)
        return _p_values(self.known_scores, score_B, nearest_B)

    @functools.cached_property
    def known_scores(self) -> list[Tensor]:
        """What the deciding score of an image is compared with for its p-value: one list, or one per class.

        A class that shares the threshold of all classes shares their list.
        """
        if self.calibration is None:
            return []
        known, score = self.decisive(self.calibration), self.deciding_score()
        if not self.rule.per_class:
            return [known.of(score)]
        return known.by_class(score, self.rule.accept, len(self.class_names))

    @property
    def most_known_scores(self) -> int:
        """The number of held-out images that p-values come from, of the class that has most of them."""
        return max(map(len, self.known_scores), default=0)

    def _check_images(self, images: Tensor) -> None:
        spec = self.classifier.spec
        expected = spec.image_shape.of_tensor
        if tuple(images.shape[1:]) != expected or images.dtype != spec.dtype:
            got, wanted = f"{images.dtype} of shape {tuple(images.shape)}", f"{spec.dtype} (B, C, H, W)"
            raise DataError(f"images are {got}: this model takes {wanted} with {expected}")


def _p_values(known: Sequence[Tensor], score_B: Tensor, nearest_B: Tensor) -> Tensor:
    """Return each score's share among the known ones of its class, or among all if there is one list."""
    if len(known) == 1:
        return torch.from_numpy(conformal_p_values(known[0], score_B))
    found_B = torch.empty_like(score_B)
    for k in sorted(set(nearest_B.tolist())):
        here_B = nearest_B == k
        found_B[here_B] = torch.from_numpy(conformal_p_values(known[k], score_B[here_B]))
    return found_B
