"""One score of two: what is unlike all training images is unknown, and known images pass as promised."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.rejection.calibration.held_out import Calibration, _folds
from pmal.rejection.calibration.thresholds import conformal_p_values, conformal_threshold, discoveries
from pmal.rejection.typicality.penalty import START, WEIGHT, Penalty


def reference(near, far, known_near, known_far):
    """The formula, number by number."""
    unit = (np.quantile(known_near, 0.95) - np.quantile(known_near, 0.5)) / math.log(10)
    spread = (np.quantile(known_far, 0.95) - np.quantile(known_far, 0.5)) / math.log(10)
    above = max(0.0, (far - np.quantile(known_far, 0.5)) / spread - START)
    return near + unit * WEIGHT * above**2


def joint_calibration(near, far, linear=False):
    """Return the calibration with the penalty in its score, and the penalty of new images."""
    classes = torch.zeros(len(near), dtype=torch.int64)
    penalty = Penalty.fit(near, far, linear)
    held = Calibration({"logit": near, "typicality": far}, classes, None)
    return held.with_penalty(penalty, "logit", "typicality"), penalty


def test_the_joint_score_is_that_of_the_formula():
    rng = np.random.default_rng(0)
    known_near, known_far = rng.normal(size=81), rng.gamma(3.0, size=81)
    penalty = Penalty.fit(torch.from_numpy(known_near), torch.from_numpy(known_far))
    for near, far in zip(rng.normal(size=20), rng.gamma(8.0, size=20), strict=True):
        found = near + float(penalty(torch.tensor([far])))
        assert found == pytest.approx(reference(near, far, known_near, known_far), rel=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=30), st.floats(0.1, 100), st.floats(-50, 50))
def test_it_is_never_negative_rises_and_follows_the_units(values, factor, shift):
    """Another unit of either score leaves the ranking as it is; fails where the sign of a score flips."""
    known = torch.linspace(0, 10, 60).double()
    far = torch.tensor(values).double().sort().values
    penalty = Penalty.fit(known, known)
    found = penalty(far)
    assert (found >= 0).all()
    assert (found.diff() >= 0).all()
    assert (found[far <= 9.5] == 0).all()  # the 95 % quantile
    moved = Penalty.fit(factor * known + shift, known)
    torch.testing.assert_close(moved(far), factor * found, rtol=1e-6, atol=1e-6)
    other = Penalty.fit(known, factor * known + shift)
    torch.testing.assert_close(other(factor * far + shift), found, rtol=1e-5, atol=1e-5)


def test_what_breaks_the_network_is_as_far_as_can_be():
    penalty = Penalty(1.0, 1.0, 1.0)
    assert penalty(torch.tensor([math.inf])).item() == math.inf
    assert penalty(torch.tensor([-math.inf])).item() == 0


def test_the_far_limit_is_where_the_penalty_takes_all_the_room():
    penalty = Penalty(3.0, 0.5, 2.0)
    for room in (0.0, 0.1, 7.0):
        limit = penalty.far_limit(torch.tensor(room))
        assert float(penalty(limit[None])) == pytest.approx(room)
    assert penalty.far_limit(torch.tensor(math.inf)) == math.inf
    assert penalty.far_limit(torch.tensor(-1.0)) == pytest.approx(3.0 + 0.5 * START)


def test_scores_that_are_too_few_or_all_alike_give_no_scale():
    many, alike = torch.arange(30.0), torch.ones(30)
    assert Penalty.fit(many, alike) is None
    assert Penalty.fit(alike, many) is None
    assert Penalty.fit(many[:1], many[:1]) is None
    assert Penalty.fit(many, many[:29]) is None
    saturated = torch.cat([torch.zeros(29), torch.ones(1)])
    assert Penalty.fit(saturated, many).unit == pytest.approx(1 / math.log(10))


def test_each_held_out_image_has_the_penalty_by_the_scale_of_the_others():
    rng = np.random.default_rng(0)
    near, far = rng.normal(size=57), rng.gamma(3.0, size=57)
    found = joint_calibration(torch.from_numpy(near), torch.from_numpy(far))[0].of("logit")
    for fold in _folds(57):
        mine, rest = fold.numpy(), np.setdiff1d(np.arange(57), fold.numpy())
        expected = [reference(near[i], far[i], near[rest], far[rest]) for i in mine]
        np.testing.assert_allclose(found[fold].numpy(), expected, rtol=1e-9)


def test_folds_without_a_scale_have_that_of_all():
    near, far = torch.arange(3.0).double(), torch.tensor([0.0, 0.0, 5.0], dtype=torch.float64)
    found, penalty = joint_calibration(near, far)  # without the last image, all are equally typical
    torch.testing.assert_close(found.of("logit")[2], (near + penalty(far))[2])


KINDS = [(related, heavy) for related in (0.0, 1.0, -1.0) for heavy in (False, True)]


@pytest.mark.slow
def test_10_000_calibrations_accept_as_promised_and_bound_the_false_discoveries():
    """Twenty held-out images, few enough that an image on a scale of its own would break the promise.

    The two scores of an image are alike, opposed or independent, and typicality may have a long tail. The
    last third of each batch is unknown.
    """
    rng, accept, fdr, n, batch, known = np.random.default_rng(0), 0.9, 0.2, 20, 30, 20
    shares, false = {}, []
    for i in range(10_000):
        related, heavy = KINDS[i % len(KINDS)]
        near = rng.normal(size=n + batch)
        far = related * near + (1 - abs(related)) * rng.normal(size=n + batch)
        far = np.exp(far) if heavy else far
        near[n + known :] += 3
        far[n + known :] += 5
        near, far = torch.from_numpy(near), torch.from_numpy(far)
        calibration, penalty = joint_calibration(near[:n], far[:n], linear=i % 4 > 1)
        held, new = calibration.of("logit").numpy(), (near[n:] + penalty(far[n:])).numpy()
        p_values, threshold = conformal_p_values(held, new), conformal_threshold(held, accept).value
        assert ((p_values <= round(1 - accept, 12)) == (new > threshold)).all()
        shares.setdefault((related, heavy, i % 4 > 1), []).append((new[:known] <= threshold).mean())
        called = discoveries(p_values, fdr)
        false.append(called[:known].sum() / max(called.sum(), 1))
    assert len(shares) == 2 * len(KINDS)
    for kind, share in shares.items():
        error = np.std(share) / math.sqrt(len(share))
        assert accept - 3 * error <= np.mean(share) <= accept + 0.02, kind
    assert 0.02 < np.mean(false) <= fdr  # and not by calling nothing unknown


def test_the_typicality_of_features_counts_from_the_first_unit_on_and_below():
    rng = np.random.default_rng(0)
    near, far = torch.from_numpy(rng.normal(size=81)), torch.from_numpy(rng.gamma(3.0, size=81))
    penalty = Penalty.fit(near, far, linear=True)
    unit, usual, spread = penalty.unit, penalty.usual, penalty.spread
    asked = torch.tensor(
        [usual - spread, usual, usual + 2 * spread, math.inf, -math.inf], dtype=torch.float64
    )
    assert penalty(asked).tolist() == pytest.approx([-unit, 0.0, 2 * unit, math.inf, 0.0])
    assert float(penalty.far_limit(torch.tensor(3 * unit))) == pytest.approx(usual + 3 * spread)
