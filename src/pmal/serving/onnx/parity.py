"""Checks that an exported graph answers as the model does, before it is used.

There are two checks. First, from the graph's own embeddings and logits: its scores and decisions must be
those of PyTorch, except for the last digits of float64. Second, from the pixels: the network's float32 is
rounded in another order, so the scores must be nearly the same, and the decisions the same. A difference
is a share of the spread of the scores, because a score has no unit. An image whose score is at the
threshold, within the tolerance, may be decided either way, as it may between two batch sizes of PyTorch.
Such images are counted.

N images, B of them in a batch.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pmal._runtime.session import Session
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import load_images
from pmal.data.samples import evenly
from pmal.data.splits.task import open_task
from pmal.errors import PmalError
from pmal.rejection.model import Answers, OpenSetModel
from pmal.run.run_folder import CONFIG, read_config
from pmal.serving.onnx.onnx_model import BATCH, OnnxModel, Outputs

SAME_INPUT, ROUNDED = 1e-6, 1e-3
"""Shares of the scores' spread by which a score may differ: from the same embeddings, and from pixels.

Measured from pixels: 5e-6 for a small trained network, 2e-4 for an untrained resnet50. Both runtimes differ
equally from float64.
"""
EMBEDDING = 1e-4
"""Share of its length by which an embedding may differ. The largest measured share is 1e-6."""
SMALL_BATCHES, REPEATED = (1, 7), 15
"""Other batch sizes, and the number of images that are run again in them."""
OTHER_RATES = (0.8, 0.9)
"""Acceptance rates. The first that is not the model's own is compared too."""
RANDOM_IMAGES, PART_LIMIT = 64, 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Parity:
    """How much the graph differs from PyTorch."""

    images: int
    compared_on: str
    """Description of the images."""
    score_difference: float
    """The largest difference of a score, divided by the spread of the scores."""
    decisions_differ: int
    """Number of images at the threshold, within the tolerance, that the two decide differently."""


@dataclass(frozen=True, eq=False)
class Images:
    """Images uint8 (N, C, H, W) or embeddings float32 (N, D, 1, 1) to compare on, and their description."""

    pixels: torch.Tensor
    text: str


def check_parity(model: OpenSetModel, exported: OnnxModel, images: Images) -> Parity:
    """Compare an exported graph with the model, and return how much they differ.

    Args:
        model: the finished model.
        exported: the graph.
        images: to compare on.

    Raises:
        PmalError: scores or decisions differ by more than rounding explains.
    """
    pixels = images.pixels.numpy()
    found = exported.run(pixels)
    z, logits = (torch.from_numpy(found[name]) for name in ("embedding", "logits"))
    expected = model.answer(images.pixels)
    spread = _spread(expected.score.numpy())
    far = torch.from_numpy(found["typicality"])
    _compare(model.answer_embedded(z, logits, far), found, spread, SAME_INPUT, "the same embeddings")
    _compare_weights(model, z, found)
    if exported.takes_accept:
        rate = next(rate for rate in OTHER_RATES if rate != model.rule.accept)
        other = replace(model, rule=replace(model.rule, accept=rate)).answer_embedded(z, logits, far)
        asked = exported.with_accept(rate).run(pixels)
        _compare(other, asked, spread, ROUNDED, f"accept {rate}")
        same_N = asked["nearest"] == other.nearest.numpy()
        if not (asked["threshold"] == other.limits.numpy())[same_N].all():
            raise _refusal("thresholds differ", f"accept {rate}")
    largest, differ = _compare(expected, found, spread, ROUNDED, f"batches of {BATCH}")
    for batch in SMALL_BATCHES:
        few = exported.run(pixels[:REPEATED], batch)
        _compare(_first(expected, REPEATED), few, spread, ROUNDED, f"batches of {batch}")
    return Parity(len(pixels), images.text, largest, differ)


def images_to_check(model: OpenSetModel, run: Path, session: Session) -> Images:
    """Return test images of the run if its data are here, prototypes, and random images.

    Args:
        model: the finished model.
        run: the run's folder.
        session: device, data and display.
    """
    spec = model.classifier.spec
    unit = "rows" if spec.image_size == 1 else "images"
    parts, texts = [random_inputs(model, RANDOM_IMAGES)], [f"{RANDOM_IMAGES} random {unit}"]
    if model.pictures is not None and tuple(model.pictures.shape[1:]) == spec.image_shape.of_tensor:
        parts.append(model.pictures)
        texts.append(f"{len(model.pictures)} prototypes")
    if (run / CONFIG).is_file():
        try:
            named = _run_images(run, spec.image_shape, session)
        except PmalError as error:
            session.display.say(f"not compared on the {unit} of the run: {error}")
            named = {}
        parts += named.values()
        texts += [f"{len(part)} {name} {unit}" for name, part in named.items()]
    return Images(torch.cat(parts[::-1]), ", ".join(texts[::-1]))


def random_inputs(model: OpenSetModel, count: int) -> torch.Tensor:
    """Return random images, or random embeddings with the mean and deviation of training embeddings."""
    network, spec = model.classifier, model.classifier.spec
    generator = torch.Generator().manual_seed(0)
    if spec.image_size == 1:
        normal_ND = torch.randn(count, spec.channels, generator=generator)
        return (normal_ND * network.std.cpu() + network.mean.cpu())[:, :, None, None]
    shape = spec.image_shape.of_tensor
    return torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)


def _run_images(run: Path, shape: ImageShape, session: Session) -> dict[str, torch.Tensor]:
    task = open_task(read_config(run).data, session.resources.data_root)
    found = {}
    for name, samples in (("unknown test", task.unknown), ("known test", task.test)):
        if samples is not None:
            few = samples.at(evenly(len(samples), PART_LIMIT))
            found[name] = load_images(few, shape).images
    return found


def _compare(
    expected: Answers, found: Outputs, spread: float, tolerance: float, where: str
) -> tuple[float, int]:
    """Return the largest difference of a score, in spreads, and how many images at the threshold differ."""
    score_N, limit_N = expected.score.numpy(), expected.limits.numpy()
    z_ND = expected.z.cpu().numpy()
    length_N1 = np.linalg.norm(z_ND, axis=1, keepdims=True)
    if not (np.abs(found["embedding"] - z_ND) <= EMBEDDING * length_N1).all():
        raise _refusal("embeddings differ", where)
    far_N, far_spread = expected.far.numpy(), _spread(expected.far.numpy())
    with np.errstate(invalid="ignore"):
        at_limit_N = np.abs(score_N - limit_N) <= tolerance * spread
    worst = _difference(found["score"], score_N, spread)
    if not worst <= tolerance:
        raise _refusal(f"scores differ by {worst:.1g} of their spread", where)
    if not _difference(found["typicality"], far_N, far_spread) <= tolerance:
        raise _refusal("typicality scores differ", where)
    if tolerance == SAME_INPUT and not _same_p_values(found["p_value"], expected.p_values.numpy()):
        raise _refusal("p-values differ", where)
    differ_N = found["label"] != expected.labels.numpy()
    if (differ_N & ~at_limit_N).any():
        raise _refusal(f"{int((differ_N & ~at_limit_N).sum())} of {len(score_N)} decisions differ", where)
    probability = np.abs(found["probabilities"] - expected.probabilities.numpy()).max()
    if not probability <= ROUNDED:
        raise _refusal(f"probabilities differ by {probability:.1g}", where)
    return worst, int(differ_N.sum())


def _difference(found_N: Floats, expected_N: Floats, spread: float) -> float:
    """Return the largest difference, in spreads. Equal infinities do not differ."""
    with np.errstate(invalid="ignore"):
        return float((np.where(found_N == expected_N, 0.0, np.abs(found_N - expected_N)) / spread).max())


def _same_p_values(found_N: Floats, expected_N: Floats) -> bool:
    """Return whether p-values agree, except for images whose score equals a held-out one.

    There, the last digit of a score changes the p-value by a rank.
    """
    close_N = np.isclose(found_N, expected_N, rtol=0, atol=SAME_INPUT, equal_nan=True)
    return bool(close_N.mean() >= 0.99)


def _compare_weights(model: OpenSetModel, z: torch.Tensor, found: Outputs) -> None:
    if model.reference is None:
        return
    weights = model.attention(z, torch.from_numpy(found["nearest"])).numpy()
    if not np.allclose(found["attention"], weights, rtol=0, atol=SAME_INPUT):
        raise _refusal("weights of prototypes differ", "the same embeddings")


def _spread(score_N: Floats) -> float:
    """Return the unit of differences of scores; if all are nearly the same, it follows their size."""
    finite = score_N[np.isfinite(score_N)]
    if not len(finite):
        return 1.0
    return max(float(finite.std()), 1e-6 * float(np.abs(finite).max()), math.sqrt(np.finfo(np.float64).tiny))


def _first(answers: Answers, count: int) -> Answers:
    return Answers(*(getattr(answers, field.name)[:count] for field in fields(answers)))


def _refusal(what: str, where: str) -> PmalError:
    return PmalError(f"not exported: {what} from those of PyTorch ({where}): please report the encoder")
