"""Pairs of nearly equal pictures: those that a comparison of all with all finds, and no others."""

import numpy as np
import pytest
from PIL import Image

from pmal.data.inspection import near_duplicates
from pmal.data.inspection.near_duplicates import MOST_BITS, near_pairs, perceptual_hash


def soft(count, seed=0):
    """Thumbnails with some structure, none like another."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 6, 6), dtype=np.uint8)
    return np.stack(
        [np.asarray(Image.fromarray(one).resize((16, 16), Image.Resampling.BICUBIC)) for one in small]
    )


def noisy(thumbnails, level, seed=1):
    noise = np.random.default_rng(seed).normal(0, level, thumbnails.shape)
    return np.clip(thumbnails + noise, 0, 255).astype(np.uint8)


def all_pairs(thumbnails, least):
    """By an N x N matrix."""
    hashes = perceptual_hash(thumbnails)
    bits = np.bitwise_count(hashes[:, None] ^ hashes[None])
    alike = np.corrcoef(thumbnails.reshape(len(thumbnails), -1))
    return {(i, j) for i, j in np.argwhere((bits <= MOST_BITS) & (alike >= least)).tolist() if i < j}


@pytest.mark.parametrize("least", [0.6, 0.95])
def test_all_pairs_are_found_and_no_others(least, monkeypatch):
    monkeypatch.setattr(near_duplicates, "_ROWS", 7)
    originals = soft(60)
    thumbnails = np.concatenate([originals, noisy(originals[:25], 12), noisy(originals[:25], 25, seed=2)])
    pairs, bits = near_pairs(thumbnails, least)
    assert {(i, j) for i, j in pairs.tolist()} == all_pairs(thumbnails, least)
    assert len(pairs) > 20, "the comparison is not of nothing with nothing"
    hashes = perceptual_hash(thumbnails)
    assert bits.tolist() == [int(hashes[i] ^ hashes[j]).bit_count() for i, j in pairs]


def test_the_most_alike_stand_first():
    originals = soft(2)
    thumbnails = np.concatenate([originals, noisy(originals[:1], 20), noisy(originals[1:], 3)])
    assert near_pairs(thumbnails, 0.8)[0].tolist() == [[1, 3], [0, 2]]


def test_brightness_and_contrast_do_not_matter():
    flatter = (soft(20) * 0.5 + 80).astype(np.uint8)
    pairs, bits = near_pairs(np.concatenate([soft(20), flatter]))
    assert sorted(pairs.tolist()) == [[i, i + 20] for i in range(20)]
    assert bits.max() <= 4


def test_images_without_contrast_are_near_to_none():
    assert len(near_pairs(np.full((5, 16, 16), 90, np.uint8))[0]) == 0
    assert len(near_pairs(np.empty((0, 16, 16), np.uint8))[0]) == 0


def test_an_image_may_ask_for_more_likeness():
    thumbnails = np.concatenate([soft(1), noisy(soft(1), 12)])
    assert len(near_pairs(thumbnails, np.array([0.9, 0.9]))[0]) == 1
    assert len(near_pairs(thumbnails, np.array([0.9, 0.9999]))[0]) == 0


def test_equal_ones_in_great_number_end_at_the_limit():
    assert near_pairs(np.repeat(soft(1), 300, axis=0), most=50)[0].shape == (50, 2)
