"""The verdict on a run in two sentences: a finding with its numbers, and what to do about it.

These are pure functions of metrics.json. A score that carries no information rejects as many unknown
images as known ones. So the share of known images rejected is chance level, and the verdict depends on
how far the model gets beyond it.
"""

from collections.abc import Mapping
from typing import Any

from pmal.rejection.training_scores import POST_HOC
from pmal.rejection.typicality.of_layers import TYPICALITY
from pmal.rejection.typicality.penalty import DECISION
from pmal.reporting.page.document import Verdict

POOR_ACCURACY = 0.7
TOO_STRICT = 0.1
"""Share of known images rejected beyond what was asked for: more than test images vary by."""
GRADES = ((0.1, "chance"), (0.5, "weak"), (0.8, "fair"))
"""Limits below which a grade holds: shares of the way from chance to all unknown images rejected."""
SEPARATES = 0.9
"""AUROC from which on a score can reject most unknown images by another threshold."""
NO_RULE = (TYPICALITY, DECISION, *POST_HOC)
"""Scores that cannot be chosen as the score of a rule."""
CLEARLY = 0.03
"""Difference in AUROC from which on another score is worth a try."""

_REJECTED = {
    "no better": "no better than chance ({chance})",
    "chance": "barely better than chance ({chance})",
    "weak": "better than chance ({chance}), but most are accepted as known",
    "fair": "well above chance ({chance}), but some are accepted as known",
    "good": "far above chance ({chance})",
}
_NEXT = {
    "inaccurate": "Raise the accuracy first: train longer, or use more images or a pretrained encoder.",
    "no threshold": "Set data.held_out above 0, and fit again from the beginning.",
    "closed": "Name the known classes (--known) and leave others out, to see what is rejected.",
    "strict": "Hold out more images (data.held_out), or see whether training and test images are alike.",
    "chance": "Train longer, use a pretrained encoder, or show the model more known classes.",
    "weak": "Train longer, use a pretrained encoder, or show the model more known classes.",
    "fair": "See which ones under Mistakes: a class that is often confused can be added.",
    "good": "Look under Mistakes before you rely on it: other unknown images may be harder than these.",
}


def judge(metrics: Mapping[str, Any] | None) -> Verdict:
    """Return the verdict on the contents of metrics.json. None: there were no test images.

    >>> judge(None).grade
    'untested'
    """
    if metrics is None:
        finding = "This run has no figures on test images: how well it recognizes and rejects is not known."
        return Verdict("untested", finding, "Measure it on images that it was not trained on.")
    grade = _grade(metrics)
    accuracy = f"{_percent(metrics['accuracy']['value'])} of known images are named correctly"
    only = "Only " if grade == "inaccurate" else ""
    finding = f"{only}{accuracy}; {_rejection_words(metrics)}."
    return Verdict(grade, finding, _advice(metrics, grade))


def rejection_grade(rejected: float, chance: float) -> str:
    """Return the grade of a share of unknown images rejected.

    Args:
        rejected: this share.
        chance: the share of known images rejected.

    >>> [rejection_grade(share, chance=0.05) for share in (0.09, 0.3, 0.7, 0.95)]
    ['chance', 'weak', 'fair', 'good']
    """
    gain = (rejected - chance) / max(1 - chance, 1e-9)
    return next((grade for limit, grade in GRADES if gain < limit), "good")


def _grade(metrics: Mapping[str, Any]) -> str:
    """Return the first problem of a run; without one, the grade of its rejection."""
    decision = metrics.get("decision")
    if metrics["accuracy"]["value"] < POOR_ACCURACY:
        return "inaccurate"
    if decision is None:
        return "no threshold"
    if decision["known_accepted"] < decision["accept"] - TOO_STRICT:
        return "strict"
    if "unknown_rejected" not in decision:
        return "closed"
    return rejection_grade(decision["unknown_rejected"], 1 - decision["known_accepted"])


def _rejection_words(metrics: Mapping[str, Any]) -> str:
    decision = metrics.get("decision")
    if decision is None:
        return "no images were held out, so there is no threshold, and nothing is called unknown"
    chance = 1 - decision["known_accepted"]
    if "unknown_rejected" not in decision:
        lost = f"{_percent(chance)} are rejected at this threshold"
        return f"{lost}. There were no unknown test images, so what it rejects of those is not known"
    rejected = decision["unknown_rejected"]
    grade = rejection_grade(rejected, chance) if rejected > chance else "no better"
    words = _REJECTED[grade].format(chance=_percent(chance))
    return f"of the unknown images {_percent(rejected)} are rejected at this threshold, {words}"


def _advice(metrics: Mapping[str, Any], grade: str) -> str:
    """Return what to do. If too few are rejected, the threshold and the score come before training."""
    scores = {name: found["auroc"]["value"] for name, found in metrics["scores"].items()}
    own = metrics.get("decision", {}).get("score")
    if grade not in ("chance", "weak", "fair") or own not in scores:
        return _NEXT[grade]
    best = max((name for name in scores if name not in NO_RULE), key=lambda name: scores[name], default=own)
    if scores[best] >= scores[own] + CLEARLY:
        figures = f"AUROC {_percent(scores[best])}, against {_percent(scores[own])} of {own}"
        option = f"--from calibration --set rejection.score={best}"
        return f"The score {best} tells these unknown images apart better ({figures}): try {option}."
    if scores[own] >= SEPARATES and grade != "fair":
        tells = f"The score tells them apart (AUROC {_percent(scores[own])}), but the threshold is tolerant"
        return f"{tells}: a lower --accept rejects more of both kinds."
    return _NEXT[grade]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"
