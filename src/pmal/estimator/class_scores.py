"""Keep `decision_function` from being taken for scores of classes.

It says how known a sample is, one number each. Where scikit-learn asks a classifier for scores of its
classes, it prefers `decision_function` to `predict_proba`, takes this number for the score of the second of
two classes, and calibrates or measures it without a word. Nothing in the call tells the two apart, so the
caller does: for those parts of scikit-learn the method does not exist, and they use `predict_proba`.
"""

import sys
from types import FrameType

_ASK_FOR_CLASSES = (
    "sklearn.calibration",
    "sklearn.metrics._scorer",
    "sklearn.multiclass",
    "sklearn.utils._response",
)
_BETWEEN = ("sklearn.", "joblib.")


def is_asked_for_knownness(_: object) -> bool:
    """Return whether the caller wants to know how known samples are, and no scores of classes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith(_BETWEEN):
        if module in _ASK_FOR_CLASSES:
            return False
        frame = frame.f_back
    return True
