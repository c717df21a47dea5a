"""What is given as X and y, checked as scikit-learn checks it: sparse, column names, number of features."""

from typing import Any

import numpy as np
import sklearn
from sklearn.base import BaseEstimator, clone
from sklearn.utils import column_or_1d

from pmal.data.arrays import vector_store
from pmal.data.samples import VectorStore
from pmal.errors import DataError

FITTED_TO = ("n_features_in_", "feature_names_in_")
_OLD = tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 6)


def refuse_sparse(X: Any) -> None:
    """Raise DataError for a sparse matrix: the network takes dense rows."""
    if hasattr(X, "tocsr"):
        raise DataError(
            "X is sparse, and only dense rows are taken: pass X.toarray(), or fewer columns by TruncatedSVD"
        )


def rows_to_fit(estimator: BaseEstimator, X: Any) -> tuple[VectorStore, dict[str, Any]]:
    """Return rows to learn from, and the attributes that say what was learned from: set them afterwards."""
    if isinstance(X, VectorStore):
        return X, {"n_features_in_": X.vectors.shape[1]}
    asked = clone(estimator)  # a fit that fails leaves what was fitted before as it is
    store = vector_store(_validated(asked, X, reset=True))
    return store, {name: getattr(asked, name) for name in FITTED_TO if hasattr(asked, name)}


def rows_to_answer(estimator: BaseEstimator, X: Any, origin: str) -> VectorStore:
    """Return rows of the columns that the estimator was fitted on, or raise ValueError."""
    if not isinstance(X, VectorStore):
        return vector_store(_validated(estimator, X, reset=False), origin)
    width, expected = X.vectors.shape[1], estimator.n_features_in_
    if width != expected:
        raise DataError(
            f"{X.origin} has {width} features, but the classifier was fitted on {expected} features"
        )
    return X


def labels_given(y: Any) -> Any:
    """Return the labels as a column; a matrix of one column is one, with scikit-learn's warning."""
    y = y.detach().cpu().numpy() if hasattr(y, "detach") else y
    shape = np.asarray(y).shape
    return column_or_1d(y, warn=True) if len(shape) == 2 and shape[1] == 1 else y


def _validated(estimator: BaseEstimator, X: Any, *, reset: bool) -> Any:
    X = X.detach().cpu().numpy() if hasattr(X, "detach") else X
    if np.asarray(X).ndim == 1:
        raise DataError(
            f"X has shape {np.asarray(X).shape}, and rows of features are needed. Reshape your data: "
            "X[None] is one sample, X[:, None] has one feature"
        )
    if _OLD:
        return estimator._validate_data(X, reset=reset, force_all_finite=False)
    from sklearn.utils.validation import validate_data

    return validate_data(estimator, X, reset=reset, ensure_all_finite=False)
