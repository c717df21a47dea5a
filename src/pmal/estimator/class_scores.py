"""Refuse to be taken for scores of classes.

`decision_function` says how known a sample is, one number each. If scikit-learn asks a classifier for its
response, it takes this number of a two-class problem for the score of the second class, and calibrates or
measures it without a word. Nothing in the call tells the two apart, so the caller does.
"""

import sys

from pmal.errors import UsageError

_ASK_FOR_CLASSES = ("sklearn.utils._response", "sklearn.calibration")


def refuse_class_scores() -> None:
    """Raise UsageError if scikit-learn itself asks `decision_function` for scores of classes."""
    frame = sys._getframe(2)
    while frame is not None and (module := frame.f_globals.get("__name__", "")).startswith("sklearn."):
        if module in _ASK_FOR_CLASSES:
            raise UsageError(
                "decision_function says how known a sample is, not which class it has, so it cannot be "
                "calibrated or scored as a class: use predict_proba (in a scorer, response_method=)"
            )
        if frame.f_back is None:
            return
        frame = frame.f_back
