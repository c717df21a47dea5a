"""Embeddings in two dimensions: by openTSNE if it is installed, else by principal components."""

import importlib.util
import warnings

import numpy as np

from pmal._runtime.signals import deferred_signals
from pmal.reporting.page.numbers.run_numbers import Floats

ITERATIONS = 400
EXACT_LIMIT = 1_500
"""Below this number of points, Barnes-Hut is the faster approximation; above, interpolation is."""


def layout_method() -> str:
    """Return the method that `layouts` uses on this machine."""
    return "t-SNE" if importlib.util.find_spec("openTSNE") else "PCA"


def layouts(spaces: list[Floats], method: str) -> list[Floats]:
    """Return one layout (N, 2) of each space (N, D), turned so that they can be compared.

    Directions are compared, not lengths, as in the distance to prototypes.

    Args:
        spaces: embeddings of the same N images.
        method: "t-SNE" or "PCA".
    """
    flat = [_tsne(_unit(z_ND)) if method == "t-SNE" else _pca(_unit(z_ND)) for z_ND in spaces]
    first = [_normalized(flat[0])]
    return first + [_turned(_normalized(one), first[0]) for one in flat[1:]]


def _tsne(z_ND: Floats) -> Floats:
    from openTSNE import TSNE

    count = len(z_ND)
    if count < 8:
        return _pca(z_ND)
    # Signals are deferred: an error raised within its compiled code may crash the process.
    with deferred_signals(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about its own defaults and future versions of other libraries
        found = TSNE(
            perplexity=min(30.0, (count - 1) / 3),
            metric="euclidean",
            neighbors="exact",
            negative_gradient_method="bh" if count < EXACT_LIMIT else "fft",
            n_iter=ITERATIONS,
            random_state=0,
            n_jobs=1,  # more jobs would wait for each other on a busy machine, and round differently
        ).fit(z_ND)
    flat = np.asarray(found, dtype=np.float64)
    return flat if np.isfinite(flat).all() else _pca(z_ND)  # t-SNE of equal points is NaN


def _pca(z_ND: Floats) -> Floats:
    centered = z_ND - z_ND.mean(axis=0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    flat = np.zeros((len(z_ND), 2))
    flat[:, : min(2, len(s))] = (u * s)[:, :2]
    return flat


def _unit(z_ND: Floats) -> Floats:
    z_ND = np.nan_to_num(z_ND.astype(np.float64), posinf=0.0, neginf=0.0)
    length_N1 = np.linalg.norm(z_ND, axis=1, keepdims=True)
    unit: Floats = z_ND / np.where(length_N1 > 0, length_N1, 1.0)
    return unit


def _normalized(flat_N2: Floats) -> Floats:
    """Return a centered layout whose largest coordinate is 1."""
    centered = flat_N2 - flat_N2.mean(axis=0)
    scaled: Floats = centered / (np.abs(centered).max() or 1.0)
    return scaled


def _turned(flat_N2: Floats, like_N2: Floats) -> Floats:
    """Return a layout rotated or mirrored, so that it is as near to another as possible."""
    u, _, vt = np.linalg.svd(flat_N2.T @ like_N2)
    turned: Floats = flat_N2 @ (u @ vt)
    return turned
