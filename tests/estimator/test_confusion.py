"""The confusion matrix with a column for what is rejected."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from pmal import OpenSetConfusionDisplay
from pmal.errors import DataError, UsageError

TRUTH = ["cat", "dog", "cat", "none", "dog", "none"]
FOUND = ["cat", "cat", "none", "none", "dog", "dog"]


def display(truth=TRUTH, found=FOUND, **options):
    return OpenSetConfusionDisplay.from_predictions(
        truth, found, **{"unknown_label": "none", "plot": False} | options
    )


def test_counts_are_those_of_scikit_learn():
    shown = display()
    expected = confusion_matrix(TRUTH, FOUND, labels=["cat", "dog", "none"])
    np.testing.assert_array_equal(shown.confusion_matrix, expected)
    assert shown.display_labels == ["cat", "dog", "unknown"]
    for normalize in ("true", "pred", "all"):
        wanted = confusion_matrix(TRUTH, FOUND, labels=["cat", "dog", "none"], normalize=normalize)
        np.testing.assert_allclose(display(normalize=normalize).confusion_matrix, wanted)


def test_without_unknown_samples_there_is_no_row_for_them():
    shown = display(TRUTH[:3], FOUND[:3])
    assert shown.confusion_matrix.tolist() == [[1, 0, 1], [1, 0, 0]]


def test_an_estimator_says_its_classes_and_its_unknown():
    class Fitted:
        classes_, unknown_label = np.array([2, 5, 7]), -9

        def predict(self, X):
            return np.array([2, -9, 5])

    shown = OpenSetConfusionDisplay.from_estimator(Fitted(), None, [2, -9, 7], plot=False)
    assert shown.display_labels == ["2", "5", "7", "unknown"]
    assert shown.confusion_matrix[[0, 2, 3], [0, 1, 3]].tolist() == [1, 1, 1]
    with pytest.raises(DataError, match=r"y\[2\] is 3, no class of this model: write -9"):
        OpenSetConfusionDisplay.from_estimator(Fitted(), None, [2, -9, 3], plot=False)
    with pytest.raises(UsageError, match="normalize is 'rows'"):
        display(normalize="rows")


def test_drawing():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    shown = display(plot=True, ax=ax)
    assert (shown.ax_, shown.figure_) == (ax, ax.figure)
    assert [text.get_text() for text in shown.text_.ravel()] == ["1", "0", "1", "1", "1", "0", "0", "1", "1"]
    assert [label.get_text() for label in ax.get_xticklabels()][-1] == "unknown"
    assert display(normalize="true").plot(ax=ax).text_[0, 0].get_text() == "0.50"


def test_matplotlib_is_imported_to_draw_only():
    code = "import sys; from pmal import OpenSetConfusionDisplay; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
