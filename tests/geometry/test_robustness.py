import warnings
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pmal.errors import DataError, UsageError
from pmal.geometry import robustness as module
from pmal.geometry import topology as gaps
from pmal.geometry import torch_kernel
from pmal.geometry.robustness import topology_distance, topology_robustness
from tests.reference import topology as reference

TOPOLOGIES = st.sampled_from(gaps.TOPOLOGIES)
TEMPERATURES = st.sampled_from(["median", 1.0, 7, 0.3])


@st.composite
def grids(draw, spaces=(2, 4)):
    """Spaces of whole numbers: duplicates, equal distances and collapsed spaces abound."""
    n, classes = draw(st.integers(2, 14)), draw(st.integers(2, 6))
    made = []
    for _ in range(draw(st.integers(*spaces))):
        channels = draw(st.integers(1, 5))
        numbers = st.integers(-2, 2)
        made.append(
            tuple(draw(hnp.arrays(np.int64, (rows, channels), elements=numbers)) for rows in (n, classes))
        )
    return made


def gaussians(seed, n=60, channels=(6, 4), classes=5, noise=0.3):
    """Views of the same samples in spaces of different width."""
    rng = np.random.default_rng(seed)
    z, W = rng.normal(size=(n, channels[0])), rng.normal(size=(classes, channels[0]))
    made = [(z, W)]
    for width in channels[1:]:
        bend = rng.normal(size=(channels[0], width))
        made.append((z @ bend + noise * rng.normal(size=(n, width)), W @ bend))
    return made


def quietly(spaces, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return topology_robustness(spaces, **options)


# -- Definition 1


@settings(deadline=None, max_examples=80)
@given(grids(spaces=(2, 2)), TOPOLOGIES)
def test_x_is_the_transcription_with_ties_and_duplicates(spaces, topology):
    found = topology_distance(*spaces, topology=topology)
    # The root of A A^T's rounding, 1e-8, is all that the transcription knows of a distance of zero.
    np.testing.assert_allclose(found.x, reference.distances(*spaces, topology), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(grids(), TOPOLOGIES, TEMPERATURES)
def test_log_r_is_the_transcription_with_ties_and_duplicates(spaces, topology, temperature):
    x = [topology_distance(a, b, topology=topology).x.tolist() for a, b in combinations(spaces, 2)]
    log_r = quietly(spaces, topology=topology, temperature=temperature)
    np.testing.assert_allclose(log_r, reference.log_robustness(x, temperature), rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 999), TOPOLOGIES, TEMPERATURES, st.sampled_from([(3, 3), (6, 1), (4, 7, 2), (2, 5, 3, 9)])
)
def test_is_the_transcription_on_continuous_spaces(seed, topology, temperature, channels):
    spaces = gaussians(seed, n=17, channels=channels)
    expected = reference.topology_robustness(spaces, topology, temperature)
    np.testing.assert_allclose(
        topology_robustness(spaces, topology=topology, temperature=temperature),
        expected,
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("topology", gaps.TOPOLOGIES)
def test_the_float32_way_of_large_sets_is_the_transcription_too(monkeypatch, topology):
    monkeypatch.setattr(gaps, "SMALL", 0)
    first, second = gaussians(5, n=150)
    found = topology_distance(first, second, topology=topology)
    np.testing.assert_allclose(found.x, reference.distances(first, second, topology), rtol=1e-5)
    assert not found.standard_error.any()


def test_only_exact_computes_samples_once_more(monkeypatch):
    monkeypatch.setattr(gaps, "SMALL", 0)
    again, spaces = [], gaussians(5, n=150)
    plain = gaps._repair
    monkeypatch.setattr(gaps, "_repair", lambda *args: again.append(1) or plain(*args))
    topology_robustness(spaces, precision="fast")
    assert not again
    topology_robustness(spaces, precision="exact")
    assert len(again) == 1


def test_r_of_more_than_two_spaces_is_the_mean_over_pairs():
    spaces = gaussians(6, channels=(4, 4, 4))
    pairs = [topology_robustness([spaces[u], spaces[v]]).exp() for u, v in [(0, 1), (0, 2), (1, 2)]]
    torch.testing.assert_close(topology_robustness(spaces).exp(), sum(pairs) / 3)


def test_the_median_sample_has_r_of_1_over_e():
    log_r = topology_robustness(gaussians(7, n=61))
    assert float(log_r.median()) == pytest.approx(-1.0)
    assert float(log_r.max()) < 0


@pytest.mark.parametrize("kind", [int, float, np.float32, np.float64, np.int64])
def test_a_temperature_is_a_number_of_any_kind(kind):
    spaces = gaussians(7)
    found = topology_robustness(spaces, temperature=kind(2))
    assert torch.equal(found, topology_robustness(spaces, temperature=2.0))


@pytest.mark.parametrize("temperature", [1e-100, 9e99])
def test_no_temperature_that_is_taken_loses_the_order(temperature):
    spaces = gaussians(7)
    found = topology_robustness(spaces, temperature=temperature)
    assert found.isfinite().all()
    assert torch.equal(found.argsort(), topology_robustness(spaces).argsort())


def test_log_r_does_not_underflow_where_r_does():
    spaces = [(100 * z, W) for z, W in gaussians(8, n=400)]
    log_r = topology_robustness(spaces, topology="literal", temperature=1.0)
    assert not log_r.exp().any()
    assert log_r.unique().numel() == 400


# -- what the result must not depend on


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 999), TOPOLOGIES, st.booleans())
def test_no_orthogonal_change_of_basis_matters(seed, topology, large):
    first, (z, W) = gaussians(seed, n=50)
    rotation = np.linalg.qr(np.random.default_rng(seed).normal(size=(4, 4)))[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "SMALL", 0 if large else 2048)
        plain = topology_distance(first, (z, W), topology=topology).x
        turned = topology_distance(first, (z @ rotation, W @ rotation), topology=topology).x
    torch.testing.assert_close(turned, plain, rtol=1e-5 if large else 1e-10, atol=0)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 999), TOPOLOGIES, st.booleans())
def test_samples_take_their_r_along(seed, topology, large):
    spaces = gaussians(seed, n=300)
    order = np.random.default_rng(seed).permutation(300)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "SMALL", 0 if large else 2048)
        plain = topology_robustness(spaces, topology=topology)
        moved = topology_robustness([(z[order], W) for z, W in spaces], topology=topology)
    torch.testing.assert_close(moved, plain[order], rtol=1e-6 if large else 1e-10, atol=0)


def test_biases_translations_and_common_weights_cancel():
    (z, W), second = gaussians(9)
    plain = topology_robustness([(z, W), second])
    torch.testing.assert_close(topology_robustness([(z + 3.0, W - 5.0), second]), plain, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", [1e-20, 1e20, 1e200])
@pytest.mark.parametrize("topology", gaps.TOPOLOGIES)
def test_the_size_of_the_embeddings(size, topology):
    first, second = gaussians(10)
    scaled = [(size * z, W) for z, W in (first, second)]
    # The median takes any common size out again; `unit` takes out the size of each space.
    torch.testing.assert_close(
        topology_robustness(scaled, topology=topology),
        topology_robustness([first, second], topology=topology),
        rtol=1e-9,
        atol=0,
    )
    if topology == "unit":
        one = topology_distance(scaled[0], second).x
        torch.testing.assert_close(one, topology_distance(first, second).x, rtol=1e-9, atol=0)
    else:
        grown = topology_distance(*scaled, topology=topology).x / size
        torch.testing.assert_close(
            grown, topology_distance(first, second, topology=topology).x, rtol=1e-9, atol=0
        )


def test_without_numba_the_result_is_the_same(monkeypatch):
    spaces = gaussians(11, n=400)
    monkeypatch.setattr(gaps, "SMALL", 0)
    fast = topology_robustness(spaces)
    monkeypatch.setattr(module, "kernel_for", lambda device: torch_kernel)
    torch.testing.assert_close(topology_robustness(spaces), fast, rtol=1e-5, atol=0)


def test_arrays_and_tensors_of_any_precision_are_alike():
    spaces = [(z.astype(np.float32), W.astype(np.float32)) for z, W in gaussians(12)]
    tensors = [(torch.from_numpy(z), torch.from_numpy(W)) for z, W in spaces]
    assert torch.equal(topology_robustness(spaces), topology_robustness(tensors))
    assert torch.equal(topology_robustness(tensors, device="cpu"), topology_robustness(tensors))


# -- degenerate input

EXTREMES = st.sampled_from([0.0, 1.0, -1.0, 1e20, -1e20, 1e-20, 3e38, 1e-300, 1e300, np.pi])


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(st.data(), st.integers(2, 6), st.integers(2, 4), TOPOLOGIES, TEMPERATURES, st.sampled_from([None, 2]))
def test_never_nan(data, n, classes, topology, temperature, landmarks):
    spaces = [
        tuple(data.draw(hnp.arrays(np.float64, (rows, 2), elements=EXTREMES)) for rows in (n, classes))
        for _ in range(2)
    ]
    for small in (0, 2048):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gaps, "SMALL", small)
            log_r = quietly(spaces, topology=topology, temperature=temperature, landmarks=landmarks)
        assert not log_r.isnan().any()
        assert (log_r <= 0).all()


@pytest.mark.parametrize("change", ["none", "rotated", "scaled", "collapsed"])
def test_spaces_without_a_difference_give_r_of_1_and_say_so(change):
    (z, W), _ = gaussians(13)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))[0]
    other = {
        "none": (z, W),
        "rotated": (z @ rotation, W @ rotation),
        "scaled": (5 * z, W),
        "collapsed": (np.ones_like(z), W),
    }[change]
    with pytest.warns(UserWarning, match="same topology") as caught:
        log_r = topology_robustness([(z, W), other])
    assert torch.equal(log_r, torch.zeros(60, dtype=torch.float64))
    assert caught[0].filename == __file__


def test_two_samples_have_but_one_topology():
    with pytest.warns(UserWarning, match="same topology"):
        log_r = topology_robustness(gaussians(14, n=2))
    assert log_r.tolist() == [0.0, 0.0]


def test_duplicates_share_their_r():
    spaces = [(np.repeat(z, 3, axis=0), W) for z, W in gaussians(15, n=40)]
    log_r = topology_robustness(spaces).view(40, 3)
    torch.testing.assert_close(log_r, log_r[:, :1].expand(40, 3), rtol=1e-12, atol=0)


# -- errors


def test_names_the_space_and_the_sample_that_is_not_finite():
    spaces = gaussians(16)
    spaces[1][0][41, 2] = np.nan
    with pytest.raises(DataError, match="space 1: embeddings: sample 41 holds a NaN"):
        topology_robustness(spaces)


Z, W = np.arange(12.0).reshape(4, 3), np.eye(3)


@pytest.mark.parametrize(
    ("error", "message", "spaces", "options"),
    [
        (UsageError, "spaces=1: a topology is compared between two", [(Z, W)], {}),
        (UsageError, "each must be a pair", [(Z, W), (Z, W, W)], {}),
        (UsageError, r"spaces hold \[4, 3\] samples", [(Z, W), (Z[:3], W)], {}),
        (UsageError, r"spaces have \[3, 2\] classes", [(Z, W), (Z, W[:2])], {}),
        (UsageError, "space 1: class weights hold 1 class", [(Z, W), (Z, W[:1])], {}),
        (UsageError, "space 1: embeddings have 2 channels", [(Z, W), (Z[:, :2], W)], {}),
        (DataError, "spaces hold 1 sample", [(Z[:1], W)] * 2, {}),
        (UsageError, "unknown topology 'units': did you mean 'unit'", [(Z, W)] * 2, {"topology": "units"}),
        (UsageError, "unknown precision 'Fast'", [(Z, W)] * 2, {"precision": "Fast"}),
        (UsageError, "temperature='mean'", [(Z, W)] * 2, {"temperature": "mean"}),
        (UsageError, "temperature=0", [(Z, W)] * 2, {"temperature": 0}),
        (UsageError, "temperature=nan", [(Z, W)] * 2, {"temperature": float("nan")}),
        (UsageError, "temperature=True", [(Z, W)] * 2, {"temperature": True}),
        (UsageError, "temperature=1e-320: .*1e-100 or more", [(Z, W)] * 2, {"temperature": 1e-320}),
        (UsageError, r"temperature=1e\+200: .*below 1e\+100", [(Z, W)] * 2, {"temperature": 1e200}),
        (UsageError, "unknown device 'gpu'", [(Z, W)] * 2, {"device": "gpu"}),
        (UsageError, "unknown device 'mps'", [(Z, W)] * 2, {"device": "mps"}),
    ],
)
def test_wrong_use_has_one_clear_line(error, message, spaces, options):
    with pytest.raises(error, match=message) as caught:
        topology_robustness(spaces, **options)
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UsageError, match="device 'cuda' is not there"):
        topology_robustness([(Z, W)] * 2, device="cuda")
