"""Which class is taken for which, and what is rejected: a confusion matrix with a column for unknown.

K known classes; of the matrix (K + 1, K + 1) the last row is samples of no class, the last column what is
rejected.
"""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pmal.data.targets import UNKNOWN, ClassLabels
from pmal.errors import UsageError

NORMALIZE = (None, "true", "pred", "all")


class OpenSetConfusionDisplay:
    """Draws a confusion matrix of known classes, with a column for what is rejected.

    A row for samples of no known class is there if some are given. Make one by `from_estimator` or
    `from_predictions`; drawing needs matplotlib.

    >>> truth, found = ["a", "b", "?"], ["a", "?", "?"]
    >>> shown = OpenSetConfusionDisplay.from_predictions(truth, found, unknown_label="?", plot=False)
    >>> shown.display_labels, shown.confusion_matrix.tolist()
    (['a', 'b', 'unknown'], [[1, 0, 0], [0, 0, 1], [0, 0, 1]])
    """

    figure_: Any
    ax_: Any
    im_: Any
    text_: NDArray[Any]

    def __init__(self, confusion_matrix: NDArray[Any], *, display_labels: list[str]) -> None:
        """Hold a matrix for `plot`.

        Args:
            confusion_matrix: counts or shares (K or K + 1, K + 1).
            display_labels: of columns and rows.
        """
        self.confusion_matrix = confusion_matrix
        self.display_labels = display_labels

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, **options: Any) -> Self:
        """Return the display of what a fitted classifier says of samples X.

        Args:
            estimator: an `OpenSetClassifier`, or another with `classes_` whose `predict` rejects.
            X: samples.
            y: their labels; those of no known class have the estimator's `unknown_label`.
            options: as for `from_predictions`.
        """
        unknown = getattr(estimator, "unknown_label", UNKNOWN)
        given = {"labels": estimator.classes_, "unknown_label": unknown} | options
        return cls.from_predictions(y, estimator.predict(X), **given)

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_pred: Any,
        *,
        labels: Any = None,
        unknown_label: Any = UNKNOWN,
        normalize: str | None = None,
        plot: bool = True,
        **options: Any,
    ) -> Self:
        """Return the display of predictions next to the truth.

        Args:
            y_true: the labels of the samples.
            y_pred: what was predicted.
            labels: the known classes, in their order. None: all labels that occur, sorted.
            unknown_label: what unknown is called in both.
            normalize: "true" (shares of a row), "pred" (of a column), "all", or None for counts.
            plot: draw it at once.
            options: for `plot`.

        Raises:
            DataError: a label is neither among `labels` nor that of unknown.
            UsageError: `normalize` is none of these.
        """
        if normalize not in NORMALIZE:
            raise UsageError(f"normalize is {normalize!r}: pass 'true', 'pred', 'all' or None")
        truth, found = list(np.asarray(y_true).tolist()), list(np.asarray(y_pred).tolist())
        if labels is None:
            labels = sorted({*truth, *found} - {unknown_label})
        classes = ClassLabels(np.array(list(labels)), unknown_label)
        rows_N, columns_N = (classes.numbers(values, len(truth)) for values in (y_true, y_pred))
        matrix = np.zeros((len(classes.names) + 1,) * 2, dtype=np.int64)
        np.add.at(matrix, (rows_N, columns_N), 1)  # -1 is the last one
        kept = matrix if matrix[-1].any() else matrix[:-1]
        made = cls(_shares(kept, normalize), display_labels=[*classes.names, "unknown"])
        return made.plot(**options) if plot else made

    def plot(
        self, *, ax: Any = None, cmap: str = "Blues", values_format: str | None = None, colorbar: bool = True
    ) -> Self:
        """Draw the matrix and return the display, with `figure_`, `ax_`, `im_` and `text_`.

        Args:
            ax: matplotlib's axes to draw on. None: new ones.
            cmap: matplotlib's colors.
            values_format: of the numbers. None: whole counts, or shares of two digits.
            colorbar: draw one, too.
        """
        ax = _axes() if ax is None else ax
        shown, counts = self.confusion_matrix, self.confusion_matrix.dtype.kind == "i"
        style = values_format or ("d" if counts else ".2f")
        self.im_ = ax.imshow(shown, cmap=cmap)
        middle = (shown.max() + shown.min()) / 2
        self.text_ = np.empty(shown.shape, dtype=object)
        for (row, column), value in np.ndenumerate(shown):
            color = self.im_.cmap(0.0 if value > middle else 1.0)
            self.text_[row, column] = ax.text(
                column, row, format(value, style), ha="center", va="center", color=color
            )
        columns = self.display_labels
        ax.set_xticks(range(len(columns)), columns, rotation="vertical" if len(columns) > 6 else "horizontal")
        ax.set_yticks(range(len(shown)), columns[: len(shown)])
        ax.axvline(len(columns) - 1.5, color="black", linewidth=1)  # what lies right of it is rejected
        ax.set(xlabel="Predicted label", ylabel="True label")
        if colorbar:
            ax.figure.colorbar(self.im_, ax=ax)
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _shares(matrix: NDArray[Any], normalize: str | None) -> NDArray[Any]:
    if normalize is None:
        return matrix
    axis = {"true": 1, "pred": 0, "all": None}[normalize]
    total = matrix.sum(axis=axis, keepdims=True)
    shares: NDArray[Any] = matrix / np.where(total == 0, 1, total)
    return shares


def _axes() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise UsageError("drawing needs matplotlib: pip install matplotlib, or pass plot=False") from None
    return plt.subplots()[1]
