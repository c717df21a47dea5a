"""What scikit-learn expects of a classifier and a transformer, by the methods of `OpenSetClassifier`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from pmal.errors import UsageError
from pmal.estimator.notebook import describe_fitted
from pmal.rejection.model import OpenSetModel

Floats = NDArray[np.float64]


class Conventions(ClassNamePrefixFeaturesOutMixin, ClassifierMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # sklearn has no types
    """Methods that follow from others."""

    model_: OpenSetModel

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of samples whose label `predict` names, that of unknown counted as a label.

        Args:
            X: samples.
            y: their labels; that of unknown for samples of no known class.
            sample_weight: how much each sample counts. None: all count alike.
        """
        labels, truth_N = self.predict(X), np.asarray(y)
        if truth_N.shape != labels.shape:
            raise UsageError(f"y has shape {truth_N.shape} for {len(labels)} samples: pass one label each")
        right_N = [bool(a == b) for a, b in zip(labels.tolist(), truth_N.tolist(), strict=True)]
        return float(np.average(right_N, weights=sample_weight))

    def score_samples(self, X: Any) -> Floats:
        """Return how usual each sample looks: minus `unknown_score`, as scikit-learn's detectors do."""
        usual_N: Floats = -self.unknown_score(X)
        return usual_N

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithms of `predict_proba`, (N, K)."""
        with np.errstate(divide="ignore"):
            logs_NK: Floats = np.log(self.predict_proba(X))
        return logs_NK

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the embedding of each sample, (N, D): what prototypes and neighbors are compared in."""
        z_ND: NDArray[np.float32] = self._embed(X)[0].float().numpy()
        return z_ND

    @property
    def _n_features_out(self) -> int:
        check_is_fitted(self, "model_")
        return self.model_.classifier.num_features

    def __sklearn_tags__(self) -> Any:
        """Say that embeddings are float32, whatever X is."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def _more_tags(self) -> dict[str, Any]:
        """Return the tags as scikit-learn before 1.6 asks for them."""
        return {"preserves_dtype": []}

    def _repr_html_inner(self) -> str:
        """Return what a notebook shows: scikit-learn's diagram, and what was learned."""
        diagram: str = super()._repr_html_inner()
        return diagram + describe_fitted(self) if hasattr(self, "model_") else diagram

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**options)
        return found | {"text/html": self._repr_html_inner()} if "text/html" in found else found


def refuse_fit_options(options: dict[str, Any]) -> None:
    """Raise UsageError for what other classifiers take and this one does not."""
    if "sample_weight" in options:
        raise UsageError("fit takes no sample_weight: repeat samples that count more, or leave it out")
    if options:
        raise TypeError(f"fit() got an unexpected keyword argument '{next(iter(options))}'")
