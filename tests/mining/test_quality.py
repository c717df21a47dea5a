import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmal.config import MiningConfig
from pmal.errors import UsageError
from pmal.geometry.robustness import topology_robustness
from pmal.mining import quality as module
from pmal.mining._arrays import Space
from pmal.mining.quality import (
    QUALITY_RULES,
    QualityOptions,
    count_pairs,
    dropout_variance,
    exponent,
    log_odds_against,
)

DEFAULTS = QualityOptions()


def _space(seed, samples=60, classes=4, channels=5, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    normal = [torch.randn(shape, generator=rng) for shape in ((samples, channels), (classes, channels))]
    return Space(scale * normal[0], normal[1], torch.randn(classes, generator=rng))


def _labels(samples=60, classes=4):
    return torch.arange(samples) % classes


def _own_probability(space, labels):
    logits = space.z.double().numpy() @ space.weight.double().numpy().T + space.bias.double().numpy()
    odds = np.exp(logits)
    return (odds / odds.sum(axis=1, keepdims=True))[np.arange(len(labels)), labels.numpy()]


def _rule(name, spaces, labels, options=DEFAULTS):
    return QUALITY_RULES[name](spaces, labels, options)


# -- all rules


@pytest.mark.parametrize("name", QUALITY_RULES)
def test_every_rule_gives_the_log_of_a_quality_up_to_one(name):
    log_quality = _rule(name, [_space(0), _space(1)], _labels())
    assert log_quality.dtype == torch.float64
    assert log_quality.shape == (60,)
    assert ((log_quality <= 0) & log_quality.isfinite()).all()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_exponent_keeps_the_order_and_scales_by_the_median(x):
    log_quality = exponent(torch.tensor(x, dtype=torch.float64))
    assert ((log_quality <= 0) & ~log_quality.isnan()).all()
    order = np.argsort(x)
    assert (np.diff(log_quality.numpy()[order]) <= 0).all()
    median = np.median(x)
    if median > 1e-6:
        np.testing.assert_allclose(log_quality, -np.array(x) / median, rtol=1e-12)


def test_exponent_without_a_median_takes_the_mean():
    assert exponent(torch.tensor([0.0, 0.0, 0.0, 4.0]).double()).tolist() == [0.0, 0.0, 0.0, -4.0]
    assert exponent(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    tiny = torch.tensor([0.0, 0.0, 1e-309, 1.0, 1.0], dtype=torch.float64)
    assert exponent(tiny).tolist()[3:] == [-2.5, -2.5]


# -- topology


def test_topology_is_the_robustness_of_all_spaces():
    spaces = [_space(0), _space(1, channels=7), _space(2)]
    pairs = [(space.z, space.weight) for space in spaces]
    assert torch.equal(_rule("topology", spaces, _labels()), topology_robustness(pairs))
    options = QualityOptions(MiningConfig(topology="rms", temperature=2.0))
    expected = topology_robustness(pairs, topology="rms", temperature=2.0)
    assert torch.equal(_rule("topology", spaces, _labels(), options), expected)


def test_topology_goes_by_the_precision_of_the_settings(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "topology_robustness", lambda _, precision, **__: asked.append(precision))
    for precision in ("exact", "fast"):
        _rule("topology", [_space(0)] * 2, _labels(), QualityOptions(MiningConfig(precision=precision)))
    assert asked == ["exact", "fast"]


@pytest.mark.parametrize("landmarks", [0, 20, 60, 99])
def test_all_pairs_that_are_counted_are_reported(landmarks):
    heard, options = [], MiningConfig(landmarks=landmarks)
    spaces = [_space(0), _space(1), _space(2)]
    _rule("topology", spaces, _labels(), QualityOptions(options, report=heard.append))
    assert sum(heard) == count_pairs(60, 3, options)


# -- probability


def test_probability_is_the_mean_softmax_of_the_own_class():
    spaces, labels = [_space(0), _space(1), _space(2)], _labels()
    expected = np.mean([_own_probability(space, labels) for space in spaces], axis=0)
    np.testing.assert_allclose(_rule("probability", spaces, labels).exp(), expected, rtol=1e-12)


def test_probability_tells_saturated_and_hopeless_samples_apart():
    # p = 1 / (1 + exp(-margin)): 1.0 to the last digit for margins of 40 and more, 0.0 below -745
    margins = torch.tensor([30.0, 40.0, 50.0, -700.0, -800.0, -900.0]).double()
    space = Space(margins[:, None], torch.tensor([[1.0], [0.0]]).double(), torch.zeros(2).double())
    for spaces in ([space], [space, space]):
        log_p = _rule("probability", spaces, torch.zeros(6, dtype=torch.int64))
        expected = [-math.exp(-30), -math.exp(-40), -math.exp(-50), -700, -800, -900]
        np.testing.assert_allclose(log_p, expected, rtol=1e-12)


def test_a_head_of_one_class_is_always_certain():
    space = Space(torch.randn(5, 3), torch.randn(1, 3), torch.zeros(1))
    labels = torch.zeros(5, dtype=torch.int64)
    assert log_odds_against(space, labels).tolist() == [-math.inf] * 5
    for name in ("probability", "ensemble", "mc-dropout"):
        assert _rule(name, [space, space], labels).tolist() == [0.0] * 5


# -- deep ensembles


def test_ensemble_is_the_variance_between_models():
    spaces, labels = [_space(0), _space(1), _space(2)], _labels()
    variance = np.var([_own_probability(space, labels) for space in spaces], axis=0)
    expected = -variance / np.median(variance)
    np.testing.assert_allclose(_rule("ensemble", spaces, labels), expected, rtol=1e-9)


def test_ensemble_prefers_samples_on_which_the_models_agree():
    space, labels = _space(0), _labels()
    other = space._replace(z=space.z.clone())
    other.z[::3] *= -1.0
    log_quality = _rule("ensemble", [space, other], labels)
    assert (log_quality[1::3] == 0).all()
    assert (log_quality[2::3] == 0).all()
    assert (log_quality[::3] < 0).all()


def test_ensemble_of_one_is_refused():
    with pytest.raises(UsageError, match="needs two spaces"):
        _rule("ensemble", [_space(0)], _labels())


# -- MC-dropout


def test_dropout_variance_is_that_over_all_masks():
    space, labels = _space(3, samples=40, channels=3), _labels(40)
    all_masks = [torch.tensor(mask) for mask in itertools.product([0.0, 2.0], repeat=3)]
    passes = [_own_probability(space._replace(z=space.z * mask), labels) for mask in all_masks]
    estimate = dropout_variance(space, labels, passes=4000, seed=0)
    np.testing.assert_allclose(estimate, np.var(passes, axis=0), rtol=0.1, atol=1e-4)


def test_samples_near_the_boundary_are_less_certain_under_dropout():
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 64, generator=rng)
    weight = torch.stack([torch.ones(64), -torch.ones(64)]) / 8
    far = torch.arange(200) < 100
    z = noise + torch.where(far, 3.0, 0.1)[:, None]
    log_quality = _rule("mc-dropout", [Space(z, weight, torch.zeros(2))], torch.zeros(200).long())
    assert log_quality[far].min() > log_quality[~far].max()


def test_dropout_follows_the_seed_and_not_the_other_samples():
    space, labels = _space(0, samples=5000), _labels(5000)
    whole = dropout_variance(space, labels, passes=4, seed=1)
    assert torch.equal(dropout_variance(space, labels, passes=4, seed=1), whole)
    assert (dropout_variance(space, labels, passes=4, seed=2) != whole).float().mean() > 0.9
    first = space._replace(z=space.z[:4096])
    assert torch.equal(dropout_variance(first, labels[:4096], passes=4, seed=1), whole[:4096])


def test_dropout_variance_is_over_the_passes_that_were_made():
    """One channel is kept or dropped: of n passes with k kept, the variance is k (n - k) / n^2 of the gap."""
    space = Space(torch.full((50, 1), 2.0), torch.tensor([[1.0], [-1.0]]), torch.zeros(2))
    gap = 1 / (1 + math.exp(-8.0)) - 0.5
    kept = (dropout_variance(space, torch.zeros(50).long(), passes=3, seed=0) / gap**2 * 9).tolist()
    assert kept == pytest.approx([round(number) for number in kept], rel=1e-9)
    assert {round(number) for number in kept} == {0, 2}


def test_dropout_of_a_later_block_is_not_that_of_the_first(monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 20)
    space, labels = _space(0, samples=20), _labels(20)
    twice = space._replace(z=torch.cat([space.z, space.z]))
    first, second = dropout_variance(twice, torch.cat([labels, labels]), passes=4, seed=1).chunk(2)
    assert (first != second).float().mean() > 0.9


def test_one_pass_has_no_variance():
    with pytest.raises(UsageError, match="passes=1"):
        _rule("mc-dropout", [_space(0)], _labels(), QualityOptions(passes=1))


# -- logit


def test_logit_ranks_by_the_own_logit_and_the_best_of_a_class_has_quality_one():
    spaces, labels = [_space(0), _space(1)], _labels()
    logits = sum(s.z.double() @ s.weight.double().T + s.bias.double() for s in spaces) / 2
    own = logits[torch.arange(60), labels].numpy()
    log_quality = _rule("logit", spaces, labels).numpy()
    for k in range(4):
        group = labels.numpy() == k
        assert (np.argsort(log_quality[group]) == np.argsort(own[group])).all()
        assert log_quality[group].max() == 0.0
    behind = np.array([own[labels.numpy() == k].max() for k in range(4)])[labels.numpy()] - own
    np.testing.assert_allclose(log_quality, -behind / np.median(behind), rtol=1e-9)


def test_none_makes_all_alike():
    assert _rule("none", [_space(0)], _labels()).tolist() == [0.0] * 60
