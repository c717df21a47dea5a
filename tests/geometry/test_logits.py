import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.geometry import logits
from pmal.geometry.logits import centered_logits, space_of
from tests.reference import topology as reference

CPU = torch.device("cpu")


def space(seed, n, channels, classes):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, channels)), rng.normal(size=(classes, channels))


def distances(y):
    return torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist").numpy()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 999), st.integers(2, 12), st.integers(1, 9), st.integers(2, 12), st.booleans())
def test_distances_are_those_of_definition_1(seed, n, channels, classes, dependent):
    z, W = space(seed, n, channels, classes)
    if dependent:  # rank-deficient weights
        W[-1] = W[0]
        W[:, -1] = 0
    y = centered_logits(z, W)
    assert y.shape[1] <= max(1, min(channels, classes - 1))
    np.testing.assert_allclose(distances(y), reference.topology_vectors(z, W), rtol=1e-6, atol=1e-7)


def test_are_the_literal_logits_in_another_basis():
    z, W = space(1, 30, 6, 5)
    literal = torch.from_numpy(z @ (W - W.mean(0)).T)
    np.testing.assert_allclose(distances(centered_logits(z, W)), distances(literal), rtol=1e-12, atol=1e-13)


def test_close_samples_far_from_the_origin_keep_their_digits():
    z, W = space(2, 2, 3, 4)
    z[1] = z[0] + 1e-6
    moved = distances(centered_logits(torch.from_numpy(z), torch.from_numpy(W)))[0, 1]
    expected = np.linalg.norm((z[1] - z[0]) @ (W - W.mean(0)).T)
    assert moved == pytest.approx(expected, rel=1e-8)


def test_what_all_class_weights_share_costs_few_digits():
    z, W = space(8, 10, 8, 1000)
    W = (W * 1024).round() / 1024  # so that the sum below is exact
    found = distances(centered_logits(z, W + 1024.0))
    np.testing.assert_allclose(found, distances(centered_logits(z, W)), rtol=5e-14)


def test_a_spread_far_below_the_length_is_still_a_topology():
    z, W = space(9, 30, 4, 3)
    made = space_of(1.0 + 1e-11 * z, W, CPU, "")
    plain = space_of(z, W, CPU, "")
    assert made.scale == pytest.approx(1e-11 * plain.scale, rel=1e-3, abs=0)
    torch.testing.assert_close(made.y_NR, plain.y_NR, rtol=0, atol=1e-3)


def test_blocks_of_rows_are_the_whole(monkeypatch):
    z, W = space(10, 23, 4, 5)
    z[0] *= 100  # the largest entry is not in the last block
    whole = centered_logits(z, W)
    monkeypatch.setattr(logits, "_BLOCK_NUMBERS", 4 * 5)
    assert torch.equal(centered_logits(z, W), whole)
    z[13, 2] = np.nan
    with pytest.raises(DataError, match="embeddings: sample 13 holds"):
        centered_logits(z, W)


@pytest.mark.parametrize("size", [1e-20, 1e20, 1e150])
def test_any_size_of_embeddings(size):
    z, W = space(3, 20, 4, 3)
    small, large = space_of(z, W, CPU, ""), space_of(z * size, W, CPU, "")
    assert large.scale == pytest.approx(small.scale * size, rel=1e-12, abs=0)
    torch.testing.assert_close(large.y_NR, small.y_NR, rtol=1e-9, atol=1e-12)


def test_a_space_is_centered_and_of_unit_length():
    made = space_of(*space(4, 50, 6, 4), CPU, "")
    assert made.y_NR.mean(0).abs().max() < 1e-15
    assert float(made.y_NR.square().sum(1).mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("what", ["samples", "classes"])
def test_nothing_to_tell_apart_is_all_zeros_without_noise(what):
    z, W = space(5, 40, 7, 6)
    if what == "samples":
        z[:] = z[0]
    else:
        W[:] = W[0]
    made = space_of(z, W, CPU, "")
    assert made.scale == 0
    assert not made.y_NR.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, np.longdouble])
def test_any_real_type(dtype):
    z = (np.arange(12).reshape(4, 3) % 5).astype(dtype)
    expected = centered_logits(z.astype(np.float64), np.eye(3))
    assert torch.equal(centered_logits(z, np.eye(3)), expected)


def test_arrays_that_cannot_be_written_to_and_tensors_with_gradient():
    z, W = space(6, 5, 3, 3)
    z.flags.writeable = (
        False  # as np.load(..., mmap_mode="r") gives; torch would warn, and warnings are errors
    )
    y = centered_logits(z, W)
    weights = torch.nn.Parameter(torch.from_numpy(W))
    assert torch.equal(centered_logits(torch.from_numpy(z.copy()).requires_grad_(), weights), y)
    assert not y.requires_grad


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_names_the_sample_or_class_that_is_not_finite(bad):
    z, W = space(7, 9, 3, 4)
    z[6, 1] = bad
    with pytest.raises(DataError, match="embeddings: sample 6 holds"):
        centered_logits(z, W)
    z, W = space(7, 9, 3, 4)
    W[2, 2] = bad
    with pytest.raises(DataError, match="class weights: class 2 holds"):
        centered_logits(z, W)


@pytest.mark.parametrize(
    ("z", "W", "message"),
    [
        (np.ones((4, 3)), np.ones((2, 5)), "3 channels but class weights 5"),
        (np.ones((4, 3)), np.ones((1, 3)), "1 class"),
        (np.ones(4), np.ones((2, 1)), r"embeddings have shape \(4,\)"),
        (np.ones((0, 3)), np.ones((2, 3)), r"embeddings have shape \(0, 3\)"),
        (np.ones((4, 3)), np.ones((2, 3)) * 1j, "class weights hold complex128"),
        (np.array([["a"], ["b"]]), np.ones((2, 1)), "embeddings hold <U1"),
    ],
)
def test_shapes_and_types_that_do_not_fit(z, W, message):
    with pytest.raises(UsageError, match=message) as caught:
        centered_logits(z, W)
    assert "\n" not in str(caught.value)


def test_samples_that_no_class_tells_apart_have_no_topology():
    """(1, -2) and (0, 0) have the same logits: what is left of their distance is rounding alone."""
    z, W = np.array([[0.0, 0.0], [1.0, -2.0], [0.0, 0.0]]), np.array([[1.0, 0.0], [-1.0, -1.0]])
    space = space_of(z, W, torch.device("cpu"), "")
    assert space.scale == 0.0
    assert not space.y_NR.any()
