import math
import typing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.config import OptimizationConfig
from pmal.errors import UsageError
from pmal.optimization.distances import DISTANCES, attention_weights, nearest_distance, point_to_set_distance
from tests.reference import optimization as reference

BOTH = pytest.mark.parametrize("distance", DISTANCES.values(), ids=DISTANCES)
REFERENCES = {point_to_set_distance: reference.point_to_set, nearest_distance: reference.nearest}


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@st.composite
def problems(draw):
    """Embeddings, prototypes and a mask: of ordinary size, with zeros, repeated and masked vectors."""
    B, K, T, D = (draw(st.integers(1, high)) for high in (4, 4, 5, 6))
    numbers = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([0.1, 1.0, 30.0]))
    z = numbers.normal(size=(B, D)) * scale
    prototypes = numbers.normal(size=(K, T, D)) * scale
    mask = numbers.random((K, T)) < draw(st.sampled_from([0.3, 0.8, 1.0]))
    if draw(st.booleans()):
        z[0] = 0.0
    if draw(st.booleans()):
        prototypes[:, -1] = prototypes[:, 0]
    if scale <= 1 and draw(st.booleans()):  # sharper attention to it would leave an answer of length zero
        prototypes[0, 0] = 0.0
    return z, prototypes, mask


@BOTH
@settings(deadline=None)
@given(problem=problems())
def test_is_the_transcription(distance, problem):
    z, prototypes, mask = problem
    expected = [
        [REFERENCES[distance](z_i, P_k[m].tolist()) for P_k, m in zip(prototypes, mask, strict=True)]
        for z_i in z.tolist()
    ]
    found = distance(z, prototypes, mask)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)


@settings(deadline=None)
@given(problem=problems())
def test_attention_is_the_transcription_and_sums_to_one(problem):
    z, prototypes, mask = problem
    found = attention_weights(z, prototypes, mask)
    for i, z_i in enumerate(z.tolist()):
        for k, m in enumerate(mask):
            assert (found[i, k][~torch.from_numpy(m)] == 0).all()
            if m.any():
                expected = reference.attention(z_i, prototypes[k][m].tolist())
                assert found[i, k][torch.from_numpy(m)].tolist() == pytest.approx(expected, abs=1e-12)


@BOTH
def test_one_prototype_is_the_cosine_distance(distance):
    z, prototypes = random(5, 7), random(3, 1, 7, seed=1)
    cosine = torch.nn.functional.cosine_similarity(z[:, None], prototypes[:, 0], dim=2)
    torch.testing.assert_close(distance(z, prototypes), 1 - cosine)


@BOTH
def test_neither_the_order_of_prototypes_nor_of_classes_counts(distance):
    z, prototypes, mask = random(4, 6), random(3, 5, 6, seed=1), random(3, 5, seed=2) > -0.5
    order = torch.tensor([3, 0, 4, 1, 2])
    expected = distance(z, prototypes, mask)
    torch.testing.assert_close(distance(z, prototypes[:, order], mask[:, order]), expected)
    torch.testing.assert_close(distance(z, prototypes.flip(0), mask.flip(0)), expected.flip(1))


@BOTH
@pytest.mark.parametrize("junk", [0.0, 1e6, math.inf, math.nan])
def test_masked_prototypes_are_as_if_dropped(distance, junk):
    z, prototypes = random(4, 6), random(2, 5, 6, seed=1)
    padded = torch.cat([prototypes, torch.full((2, 2, 6), junk, dtype=torch.float64)], dim=1)
    mask = torch.tensor([[True] * 5 + [False] * 2] * 2)
    for leaf in (z, padded):
        leaf.requires_grad_()
    found = distance(z, padded, mask)
    torch.testing.assert_close(found, distance(z, prototypes))
    found.sum().backward()
    assert z.grad.isfinite().all()
    assert (padded.grad[:, 5:] == 0).all()
    assert (padded.grad[:, :5] != 0).any()


@BOTH
def test_a_class_without_prototypes_is_farthest_and_has_no_gradient(distance):
    z, prototypes = random(4, 6).requires_grad_(), random(3, 5, 6, seed=1).requires_grad_()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    with torch.autograd.set_detect_anomaly(True):  # not even a NaN that is thrown away
        found = distance(z, prototypes, mask)
        found[:, 1].sum().backward()
    assert (found[:, 1] == 2).all()
    assert (found[:, [0, 2]] < 2).all()
    assert (z.grad == 0).all()
    assert (prototypes.grad == 0).all()
    assert (attention_weights(z, prototypes, mask)[:, 1] == 0).all()


@BOTH
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(distance, masked):
    z, prototypes = random(3, 4).requires_grad_(), random(3, 3, 4, seed=1).requires_grad_()
    mask = torch.tensor([[True] * 3, [True, False, True], [False] * 3]) if masked else None
    assert torch.autograd.gradcheck(lambda z, p: distance(z, p, mask), (z, prototypes))


EXTREMES = {
    "zero sample": (torch.zeros(2, 4), random(3, 2, 4, dtype=torch.float32)),
    "zero prototypes": (random(2, 4, dtype=torch.float32), torch.zeros(3, 2, 4)),
    "all zero": (torch.zeros(2, 4), torch.zeros(3, 2, 4)),
    "identical": (torch.ones(2, 4), torch.ones(3, 2, 4)),
    "balanced": (torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[[0.0, 1.0], [0.0, -1.0]]] * 3)),
    "huge": (random(2, 4, dtype=torch.float32) * 1e36, random(3, 2, 4, dtype=torch.float32) * 1e36),
    "huge sample": (random(2, 4, dtype=torch.float32) * 1e36, random(3, 2, 4, dtype=torch.float32)),
    "tiny": (random(2, 4, dtype=torch.float32) * 1e-36, random(3, 2, 4, dtype=torch.float32) * 1e-36),
    "subnormal": (random(2, 4, dtype=torch.float32) * 1e-42, random(3, 2, 4, dtype=torch.float32)),
    "short": (random(2, 4, dtype=torch.float32) * 1e-18, random(3, 2, 4, dtype=torch.float32) * 1e-18),
}


@BOTH
@pytest.mark.parametrize(("z", "prototypes"), EXTREMES.values(), ids=EXTREMES)
def test_finite_with_finite_gradients_at_the_extremes(distance, z, prototypes):
    z, prototypes = z.clone().requires_grad_(), prototypes.clone().requires_grad_()
    found = distance(z, prototypes)
    found.sum().backward()
    assert ((found >= 0) & (found <= 2)).all()
    assert z.grad.isfinite().all()
    assert prototypes.grad.isfinite().all()


@BOTH
def test_rounding_takes_no_distance_out_of_its_range(distance):
    z = random(200, 7, dtype=torch.float32)
    found = distance(z, torch.cat([z, -z])[:, None])
    assert ((found >= 0) & (found <= 2)).all()


def test_what_has_no_direction_is_at_distance_one():
    for name in ("zero sample", "zero prototypes", "balanced"):
        assert (point_to_set_distance(*EXTREMES[name]) == 1).all()
    assert (point_to_set_distance(*EXTREMES["identical"]) < 1e-6).all()


@BOTH
@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-36, 1e-22])
def test_a_sample_too_short_for_a_direction_has_no_gradient(distance, scale):
    z = (random(2, 4, dtype=torch.float32) * scale).requires_grad_()
    found = distance(z, random(3, 2, 4, seed=1, dtype=torch.float32))
    found.sum().backward()
    assert (found == 1).all()
    assert (z.grad == 0).all()


@BOTH
@pytest.mark.parametrize("scale", [1e-15, 1e15, 1e30])
def test_a_common_scale_of_one_prototype_changes_nothing(distance, scale):
    """A cosine has no scale, so neither overflow nor underflow may show."""
    z, prototypes = random(3, 4, dtype=torch.float32), random(2, 1, 4, seed=1, dtype=torch.float32)
    torch.testing.assert_close(distance(z * scale, prototypes * scale), distance(z, prototypes))


def test_a_huge_embedding_asks_for_its_best_prototype_alone():
    z, prototypes = random(3, 4, dtype=torch.float32), random(2, 5, 4, seed=1, dtype=torch.float32)
    best = (z @ prototypes.flatten(0, 1).T).view(3, 2, 5).argmax(dim=2)
    expected = torch.nn.functional.one_hot(best, 5).float()
    assert torch.equal(attention_weights(z * 1e30, prototypes * 1e30), expected)


@BOTH
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_embedding_does_not_pass_for_a_good_one(distance, bad):
    z, prototypes = random(2, 4), random(3, 2, 4, seed=1)
    z[1, 2] = bad
    found = distance(z, prototypes)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


def test_no_tensor_of_all_four_dimensions_is_kept():
    B, K, T, D = 7, 5, 11, 13
    z, prototypes = random(B, D).requires_grad_(), random(K, T, D).requires_grad_()
    sizes = []

    def pack(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        point_to_set_distance(z, prototypes).sum().backward()
    assert max(sizes) <= max(B * K * T, B * K * D, K * T * D)


def test_arrays_and_half_precision_are_taken():
    z, prototypes = random(3, 4, dtype=torch.float32), random(2, 5, 4, dtype=torch.float32)
    array = z.numpy().copy()
    array.setflags(write=False)
    expected = point_to_set_distance(z, prototypes)
    assert torch.equal(point_to_set_distance(array, prototypes.numpy()), expected)
    half = point_to_set_distance(z.bfloat16(), prototypes.bfloat16())
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=0, atol=0.02)


@BOTH
def test_shapes_that_do_not_fit_are_named(distance):
    z, prototypes = random(3, 4), random(2, 5, 4)
    with pytest.raises(UsageError, match=r"shapes \(3, 4\) and \(2, 5, 3\): pass \(B, D\) and \(K, T, D\)"):
        distance(z, prototypes[:, :, :3])
    with pytest.raises(UsageError, match=r"\(2, 0, 4\)"):
        distance(z, prototypes[:, :0])
    with pytest.raises(UsageError, match=r"bool of shape \(5, 2\): pass bool of shape \(2, 5\)"):
        distance(z, prototypes, torch.ones(5, 2, dtype=torch.bool))
    with pytest.raises(UsageError, match=r"the mask is torch.float32"):
        distance(z, prototypes, torch.ones(2, 5))


def test_every_distance_can_be_set():
    hint = typing.get_type_hints(OptimizationConfig, include_extras=True)["distance"]
    assert str(hint.__metadata__[0]) == " or ".join(DISTANCES)
    with pytest.raises(UsageError, match="distance = 'nearst': must be point-to-set or nearest"):
        OptimizationConfig(distance="nearst")
