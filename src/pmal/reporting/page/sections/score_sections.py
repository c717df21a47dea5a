"""The section of a run's report about its scores: histograms with thresholds, and curves."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pmal.reporting.page.document import Figure, Section
from pmal.reporting.page.numbers.run_numbers import open_set_curve, score_histogram
from pmal.reporting.page.numbers.threshold_numbers import accepted_along
from pmal.reporting.page.still import draw_still
from pmal.reporting.page.tested import Answered, Measured, RunFacts

SCORES = {
    "probability": "One minus the largest softmax probability (the paper's PR).",
    "logit": "Minus the largest logit.",
    "energy": "Minus the log of the summed exponentials of the logits.",
    "distance": "Distance to the prototypes of the nearest class (the paper's DR).",
    "neighbors": "Cosine distance to the fifth nearest training image.",
    "openmax": "The share that OpenMax gives to an unknown class.",
    "placeholder": "The largest logit of a placeholder for what is unknown, minus that of a known class.",
    "cgdl": "The larger of reconstruction and latent, each on the scale of the training images.",
    "reconstruction": "How badly the image is reconstructed from its embedding.",
    "latent": "Distance to the latent Gaussian of the class that fits best.",
    "cssr": "How badly its class reconstructs the embedding, and how unlike its class it uses the channels.",
    "density": "Minus the log density of the embedding.",
    "combined": "The mean surprise of several scores, each against held-out known images.",
    "decision": "The score of the rule, and more the less an image looks like any training image.",
    "typicality": "How unlike all training images it is to the layers of the network, whatever its class.",
}


def scores_section(tested: Measured, facts: RunFacts) -> Section:
    """Return histograms of every score with its threshold, ROC and the OSCR curve."""
    names = list(tested.model.scores)
    scores = [_score_data(name, tested, facts) for name in names]
    chosen = names.index(tested.score)
    lead = "Every score says how unknown an image looks. An image above the threshold is called unknown;"
    lead += " the threshold was set on held-out images of the known classes, without any unknown ones."
    if tested.unknown is None:
        lead += " There were no unknown test images."
    caption = "Heights follow the square root of the share, so that tails stay visible."
    caption += " The shares at the slider are those that the score that is shown would have alone."
    caption += tested.sampled
    label = "For each score: a histogram of known and unknown test images, the ROC and the OSCR curve"
    data = {"chosen": chosen, "scores": scores}
    figure = Figure("score-plots", "scores", data, label, caption, still=draw_still(scores[chosen]))
    return Section("scores", "Scores", lead, [figure])


def _score_data(name: str, tested: Measured, facts: RunFacts) -> dict[str, Any]:
    known_N, unknown_M = tested.split(tested.model.scores[name])
    about = SCORES.get(name, "")
    if name == tested.score:
        about += " This score decides in this model."
    histogram = score_histogram(known_N, unknown_M, tested.thresholds.get(name))
    data: dict[str, Any] = {
        "name": name,
        "title": facts.method,
        "about": about,
        "histogram": histogram,
        "accepted": _accepted(name, tested, histogram),
    }
    if unknown_M is not None:
        data["curve"] = open_set_curve(tested.correct, known_N, unknown_M)
        data["figures"] = _areas((facts.metrics or {}).get("scores", {}), name)
        if tested.softmax is not None:
            data["beside"] = _softmax_beside(name, tested, tested.softmax, facts)
    return data


def _accepted(name: str, tested: Measured, histogram: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the shares that the score accepts as its threshold moves."""
    scores, edges = tested.model.scores[name], histogram["edges"]
    return accepted_along(*tested.split(scores), (edges[0], edges[-1]), histogram["threshold"])


def _softmax_beside(name: str, tested: Measured, softmax: Answered, facts: RunFacts) -> dict[str, Any]:
    """Return curve and areas of the softmax by the same score, or by its probability if it has none."""
    own = name if name in softmax.scores else "probability"
    known_N, unknown_M = tested.split(softmax.scores[own])
    correct_N = softmax.nearest[: len(tested.known)] == tested.known.labels
    scores = (facts.metrics or {}).get("softmax", {}).get("scores", {})
    return {
        "name": "softmax" if own == name else f"softmax, {own}",
        "curve": open_set_curve(correct_N, known_N, np.asarray(unknown_M)),
        "figures": _areas(scores, own),
    }


def _areas(scores: Mapping[str, Any], name: str) -> dict[str, float | None]:
    return {key: scores[name][key]["value"] if name in scores else None for key in ("auroc", "oscr")}
