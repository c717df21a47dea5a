"""Nearly identical pictures: saved again, resized, slightly brighter or slightly cropped.

Each image is kept as a gray thumbnail of 16 x 16 pixels. The signs of its 64 lowest frequencies are its hash.
Pairs whose hashes differ in few bits are found band by band: only images that agree in a band are compared.
Of these, the pairs whose thumbnails agree as well are reported. No N x N matrix exists at any time.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dctn

SIDE = 16
"""Side of a thumbnail."""
MOST_BITS = 10
"""Largest number of bits in which near-duplicates may differ. Thumbnails then decide on the pair."""
LEAST_CORRELATION = 0.95
"""Smallest correlation of the thumbnails of near-duplicates, whatever their brightness and contrast.

Of 1,200 photos, the 10 pairs above it show the same picture; different pictures reach 0.92.
"""
SMALL_CORRELATION = 0.99
"""The same for small images, which are similar by nature: of 5,000 digits of 28 px, no two reach it."""
SMALL = 64
"""Images with a shorter side below this are small."""
LEAST_CONTRAST = 4.0
"""Standard deviation of a thumbnail, in levels of 255, below which there is too little to compare."""
MOST_PAIRS = 100_000
"""Largest number of listed pairs: with more, the images are video frames, or all similar."""
_FREQUENCIES = 8
_ROWS = 1024

Thumbnails = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Pairs = NDArray[np.int64]


def perceptual_hash(thumbnails: Thumbnails) -> Hashes:
    """Return the 64-bit hashes (N,) of gray thumbnails (N, 16, 16): which frequencies are above their median.

    A brighter or flatter copy has the same hash.

    >>> picture = np.random.default_rng(0).integers(0, 200, (1, 16, 16), dtype=np.uint8)
    >>> bool((perceptual_hash(picture) == perceptual_hash(picture + np.uint8(50))).all())
    True
    """
    hashes = np.empty(len(thumbnails), np.uint64)
    for start in range(0, len(thumbnails), _ROWS):
        some = thumbnails[start : start + _ROWS].astype(np.float64)
        wave_NF = dctn(some, axes=(1, 2))[:, :_FREQUENCIES, :_FREQUENCIES].reshape(len(some), -1)
        wave_NF[:, 0] = 0  # the mean brightness does not describe the picture
        bits_NF = wave_NF > np.median(wave_NF[:, 1:], axis=1, keepdims=True)
        hashes[start : start + _ROWS] = np.packbits(bits_NF, axis=1).view(">u8")[:, 0]
    return hashes


def near_pairs(
    thumbnails: Thumbnails, least: NDArray[np.floating] | float = LEAST_CORRELATION, *, most: int = MOST_PAIRS
) -> tuple[Pairs, NDArray[np.int64]]:
    """Return the pairs (P, 2) of near-duplicates, i < j, most similar first, and their distances in bits.

    Args:
        thumbnails: gray, (N, 16, 16) uint8. Those with hardly any contrast have no near-duplicates.
        least: smallest correlation of the thumbnails of a pair; for each image (N,), or for all.
        most: largest number of pairs; the search ends there.
    """
    usable = np.flatnonzero(_contrasts(thumbnails) >= LEAST_CONTRAST)
    kept, least_N = thumbnails[usable], np.broadcast_to(least, len(thumbnails))[usable]
    hashes = perceptual_hash(kept)
    found: set[tuple[int, int]] = set()
    for pairs in _candidates(hashes, MOST_BITS):
        alike = _correlations(kept, pairs) >= least_N[pairs].max(axis=1)
        found.update((i, j) for i, j in pairs[alike].tolist())
        if len(found) >= most:
            break
    pairs = np.array(sorted(found)[:most], np.int64).reshape(-1, 2)
    distance = np.bitwise_count(hashes[pairs[:, 0]] ^ hashes[pairs[:, 1]]).astype(np.int64)
    order = np.argsort(-_correlations(kept, pairs), kind="stable")
    return usable[pairs[order]], distance[order]


def _contrasts(thumbnails: Thumbnails) -> NDArray[np.float64]:
    result = np.empty(len(thumbnails))
    for start in range(0, len(thumbnails), _ROWS):
        result[start : start + _ROWS] = thumbnails[start : start + _ROWS].std(axis=(1, 2))
    return result


def _candidates(hashes: Hashes, bits: int) -> Iterator[Pairs]:
    """Yield the pairs whose hashes differ in at most `bits` bits, perhaps repeatedly.

    The hashes of such a pair are equal in at least one of bits + 1 bands.
    """
    edges = np.linspace(0, 64, bits + 2).round().astype(int).tolist()
    for low, high in pairwise(edges):
        band = hashes >> np.uint64(low) & np.uint64((1 << (high - low)) - 1)
        order = np.argsort(band, kind="stable")
        ends = np.flatnonzero(np.diff(band[order])) + 1
        for bucket in np.split(order, ends):
            yield from _within(hashes, bucket, bits)


def _within(hashes: Hashes, bucket: NDArray[np.int64], bits: int) -> Iterator[Pairs]:
    """Yield the close pairs of a bucket, some rows at a time."""
    bucket_hashes = hashes[bucket]
    for start in range(0, len(bucket) - 1, _ROWS):
        rows = bucket_hashes[start : start + _ROWS]
        near = np.bitwise_count(rows[:, None] ^ bucket_hashes[None, start:]) <= bits
        first, second = np.nonzero(np.triu(near, 1))
        if len(first):
            pairs = np.stack([bucket[start + first], bucket[start + second]], axis=1)
            yield np.sort(pairs, axis=1)


def _correlations(thumbnails: Thumbnails, pairs: Pairs) -> NDArray[np.float64]:
    """Return the correlation of the pixels of each pair."""
    result = np.empty(len(pairs))
    for start in range(0, len(pairs), _ROWS):
        first, second = (_normed(thumbnails[some]) for some in pairs[start : start + _ROWS].T)
        result[start : start + _ROWS] = (first * second).sum(axis=1)
    return result


def _normed(thumbnails: Thumbnails) -> NDArray[np.float64]:
    """Return the thumbnails as vectors of mean 0 and length 1."""
    flat = thumbnails.reshape(len(thumbnails), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    normed: NDArray[np.float64] = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    return normed
