"""Groups among embeddings whose number nobody knows: proposed classes in a pile of rejected samples.

HDBSCAN on the principal components of embeddings of unit length. It finds groups of any shape where samples
lie densely, and leaves out what lies in none. Its settings were chosen on known classes alone
(benchmarks/discovery.py).

N samples, D channels, G groups.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pmal.errors import DataError, UsageError

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]

LEFT = -1
"""The group of what lies in none."""
MOST = 20_000
"""Samples at most: each is compared with all others, which takes minutes for so many."""
SMALLEST, LARGEST_OF_SMALLEST = 5, 50
DIMENSIONS, NEIGHBORS, CUT = 16, 1, "eom"


@dataclass(frozen=True, eq=False)
class Group:
    """Samples that may be one class."""

    members: Ints
    """Positions, the most central first."""
    tightness: float
    """Mean cosine of its members to their center, up to 1."""

    @property
    def rank(self) -> float:
        """Return by what groups are ranked: how many samples it has, each counted by the tightness."""
        return len(self.members) * self.tightness


def smallest_group(count: int) -> int:
    """Return how many of `count` samples make a group at least: the square root, from 5 to 50.

    >>> smallest_group(20), smallest_group(900), smallest_group(10**6)
    (5, 30, 50)
    """
    return min(max(SMALLEST, round(math.sqrt(count))), LARGEST_OF_SMALLEST)


def find_groups(z_ND: Floats, smallest: int | None = None) -> list[Group]:
    """Return the groups among embeddings, those that are large and tight first; leftovers are in none.

    Args:
        z_ND: embeddings, finite; their length does not count.
        smallest: members of a group at least. None: `smallest_group` of N.

    >>> z_ND = np.repeat(np.eye(3), [9, 6, 1], axis=0)
    >>> [group.members.tolist() for group in find_groups(z_ND)]
    [[0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]]
    """
    labels_N = group_embeddings(z_ND, smallest)
    unit_ND = unit_rows(z_ND)
    groups = [_group(unit_ND, np.flatnonzero(labels_N == g)) for g in range(labels_N.max(initial=LEFT) + 1)]
    return sorted(groups, key=lambda group: (-group.rank, int(group.members.min())))


def group_embeddings(
    z_ND: Floats,
    smallest: int | None = None,
    *,
    dimensions: int = DIMENSIONS,
    neighbors: int = NEIGHBORS,
    cut: str = CUT,
) -> Ints:
    """Return the group of each sample, -1 for leftovers.

    Args:
        z_ND: embeddings, finite.
        smallest: members of a group at least. None: `smallest_group` of N.
        dimensions: principal components that distances are taken in; 0: all of the space.
        neighbors: how many near samples say how dense it is around one, itself among them (`min_samples`).
        cut: how HDBSCAN cuts its tree, "eom" or "leaf".
    """
    from sklearn.cluster import HDBSCAN  # takes a while to import

    z_ND, smallest = _checked(z_ND), smallest_group(len(z_ND)) if smallest is None else smallest
    if smallest < 2:
        raise UsageError(f"smallest is {smallest}: a group has 2 samples or more")
    if len(z_ND) < smallest:
        return np.full(len(z_ND), LEFT, np.int64)
    found = HDBSCAN(
        min_cluster_size=smallest,
        min_samples=min(neighbors, len(z_ND)),
        cluster_selection_method=cut,
        allow_single_cluster=False,
        copy=False,
    )
    labels_N: Ints = found.fit(_principal(unit_rows(z_ND), dimensions)).labels_.astype(np.int64)
    return labels_N


def unit_rows(z_ND: Floats) -> NDArray[np.float64]:
    """Return rows of length 1, so that Euclidean distances rank as cosines do; zeros stay zeros."""
    wide_ND = np.asarray(z_ND, np.float64)
    largest_N1 = np.abs(wide_ND).max(axis=1, keepdims=True, initial=0.0)
    wide_ND = wide_ND / np.where(largest_N1 > 0, largest_N1, 1.0)  # so that no square overflows
    length_N1 = np.linalg.norm(wide_ND, axis=1, keepdims=True)
    found_ND: NDArray[np.float64] = wide_ND / np.where(length_N1 > 0, length_N1, 1.0)
    return found_ND


def _principal(unit_ND: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """Return the first principal components: in hundreds of dimensions all distances are nearly the same."""
    if not 0 < dimensions < unit_ND.shape[1]:
        return unit_ND
    centered_ND = unit_ND - unit_ND.mean(axis=0)
    _, directions_DD = np.linalg.eigh(centered_ND.T @ centered_ND)
    found_ND: NDArray[np.float64] = centered_ND @ directions_DD[:, -dimensions:]
    return found_ND


def _group(unit_ND: NDArray[np.float64], members: Ints) -> Group:
    cosine_N = unit_ND[members] @ unit_rows(unit_ND[members].mean(axis=0, keepdims=True))[0]
    return Group(members[np.argsort(-cosine_N, kind="stable")], float(cosine_N.mean()))


def _checked(z_ND: Floats) -> Floats:
    array = np.asarray(z_ND)
    if array.ndim != 2:
        raise DataError(f"embeddings have shape {array.shape}: pass (N, D)")
    if len(array) > MOST:
        raise UsageError(f"{len(array):,} samples to group: pass at most {MOST:,}, such as those of one week")
    broken = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(broken):
        raise DataError(f"sample {broken[0]}: its embedding has NaN or infinite numbers: leave it out")
    return array
