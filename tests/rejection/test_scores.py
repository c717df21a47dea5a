import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pmal.errors import DataError, UsageError
from pmal.rejection import scores as module
from pmal.rejection.scores import (
    LOGIT_SCORES,
    Reference,
    ScoreScale,
    combined_score,
    distance_score,
    energy_score,
    logit_score,
    neighbor_score,
    probability_score,
    unknown_scores,
)
from pmal.reporting.metrics import auroc

INF, NAN = math.inf, math.nan
LOGITS = torch.tensor([[3.0, -1.0, 0.5], [0.2, 0.1, 0.0], [40.0, -2.0, 1.0]])

finite = st.floats(-1e3, 1e3)


def test_against_the_definitions_in_plain_python():
    for row, p, m, e in zip(
        LOGITS.tolist(), probability_score(LOGITS), logit_score(LOGITS), energy_score(LOGITS), strict=True
    ):
        total = sum(math.exp(v) for v in row)
        others = sum(math.exp(v) for v in sorted(row)[:-1])
        assert float(p) == pytest.approx(others / total, rel=1e-6)
        assert float(m) == pytest.approx(-max(row))
        assert float(e) == pytest.approx(-math.log(total), rel=1e-6)


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_direction_flat_logits_are_more_unknown_than_peaked_ones(name):
    """Fails when the sign of a score flips."""
    known, unknown = torch.tensor([[8.0, 0.0, 0.0]]), torch.tensor([[0.4, 0.3, 0.2]])
    assert LOGIT_SCORES[name](unknown) > LOGIT_SCORES[name](known)


def test_direction_far_samples_are_more_unknown_than_near_ones():
    """Fails when the sign of a score flips, or the smallest distance becomes the largest."""
    near, far = torch.tensor([[0.1, 1.9]]), torch.tensor([[0.9, 1.0]])
    assert distance_score(far) > distance_score(near)
    bank = torch.eye(3)[[0] * 5 + [1] * 5]
    assert neighbor_score(torch.tensor([[0.0, 0.0, 1.0]]), bank) > neighbor_score(bank[:1], bank)
    scale = ScoreScale.fit({"one": torch.arange(9.0), "two": torch.arange(9.0)})
    low, mixed, high = combined_score(
        {"one": torch.tensor([1.0, 7.0, 7.0]), "two": torch.tensor([1.0, 1.0, 7.0])}, scale
    )
    assert low < mixed < high


def test_certain_predictions_keep_their_order():
    """In float64, too, one minus the largest probability is 0 for both."""
    found = probability_score(torch.tensor([[40.0, 0.0], [90.0, 0.0]])).tolist()
    assert found == pytest.approx([math.exp(-40), math.exp(-90)], rel=1e-12, abs=0)


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_logits_that_are_broken_are_most_unknown(name):
    broken = [[NAN, 0.0], [0.0, NAN], [INF, 0.0], [INF, -INF], [-INF, -INF]]
    scores = LOGIT_SCORES[name](torch.tensor([*broken, [9.0, 1.0]]))
    assert (scores == INF).tolist() == [True] * 5 + [False]
    assert scores[-1] < INF


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_one_class_alone(name):
    """Its probability is always 1; that must not hide a broken sample."""
    scores = LOGIT_SCORES[name](torch.tensor([[2.0], [NAN], [INF]]))
    assert scores[0] < INF
    assert scores[1:].tolist() == [INF, INF]


@pytest.mark.parametrize("name", LOGIT_SCORES)
def test_a_class_masked_out_changes_nothing(name):
    masked = torch.tensor([[3.0, -INF, 1.0]])
    assert LOGIT_SCORES[name](masked) == pytest.approx(LOGIT_SCORES[name](torch.tensor([[3.0, 1.0]])))


def test_distance_is_that_of_the_nearest_class():
    distances = torch.tensor([[0.5, 0.25, 1.0], [INF, 0.75, INF], [NAN, 0.0, 0.1], [INF, INF, INF]])
    assert distance_score(distances).tolist() == [0.25, 0.75, INF, INF]


def test_neighbors_against_loops():
    rng = np.random.default_rng(0)
    z, bank = rng.normal(size=(7, 5)), rng.normal(size=(23, 5))
    for k in (1, 5, 23):
        for row, found in zip(z, neighbor_score(torch.tensor(z), torch.tensor(bank), k), strict=True):
            distances = [1 - math.fsum(row * b) / (math.hypot(*row) * math.hypot(*b)) for b in bank]
            assert float(found) == pytest.approx(sorted(distances)[k - 1], abs=1e-14)


def test_blocks_do_not_show(monkeypatch):
    generator = torch.Generator().manual_seed(1)
    z, bank = torch.randn(9, 4, generator=generator), torch.randn(31, 4, generator=generator)
    z[3, 1] = NAN
    whole = {k: neighbor_score(z, bank, k) for k in (1, 5, 31)}
    for rows, bank_rows in ((2, 3), (1, 1), (9, 31), (4, 30)):
        monkeypatch.setattr(module, "_QUERY_ROWS", rows)
        monkeypatch.setattr(module, "_BANK_ROWS", bank_rows)
        for k, expected in whole.items():
            torch.testing.assert_close(neighbor_score(z, bank, k), expected, rtol=0, atol=1e-15)


def test_close_neighbors_keep_their_order():
    """Angles of 1e-6 and 2e-6: their cosines are 1 in float32."""
    bank = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    z = torch.tensor([[1.0, 0.0], [1.0, 1e-6], [1.0, 2e-6]], dtype=torch.float64)
    same, near, less_near = neighbor_score(z, bank, k=1).tolist()
    assert same == 0
    assert near == pytest.approx(5e-13, rel=1e-3, abs=0)
    assert less_near == pytest.approx(2e-12, rel=1e-3, abs=0)


def test_no_distance_is_negative():
    """The cosine of a vector and itself may be rounded to more than 1."""
    z = torch.randn(300, 8, generator=torch.Generator().manual_seed(0))
    distance = neighbor_score(z, z, k=1)
    assert distance.min() == 0
    assert distance.max() < 1e-15


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 1e308])
def test_length_does_not_matter(size):
    """Squares of these sizes leave the range of float64."""
    z = size * torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    bank = torch.tensor([[1.0, 0.0], [-3.0, -3.0]], dtype=torch.float64)
    assert float(neighbor_score(z, bank, k=1)) == pytest.approx(1 - math.sqrt(0.5), rel=1e-9)
    assert float(neighbor_score(bank[:1], z, k=1)) == pytest.approx(1 - math.sqrt(0.5), rel=1e-9)


def test_broken_and_empty_embeddings():
    bank = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    z = torch.tensor([[NAN, 1.0], [INF, 1.0], [0.0, 0.0], [1.0, 0.0]])
    assert neighbor_score(z, bank, k=2).tolist() == [INF, INF, 1.0, 1.0]
    assert neighbor_score(z[:0], bank, k=2).tolist() == []


@pytest.mark.parametrize(
    ("z", "bank", "k", "error", "message"),
    [
        (torch.ones(2, 3), torch.ones(4, 3), 5, UsageError, "k is 5: the bank holds 4"),
        (torch.ones(2, 3), torch.ones(4, 3), 0, UsageError, "k is 0"),
        (torch.ones(2, 3), torch.ones(9, 4), 5, UsageError, r"\(2, 3\) and \(9, 4\)"),
        (torch.ones(3), torch.ones(9, 3), 5, UsageError, "two matrices"),
        (torch.ones(2, 3), torch.tensor([[1.0] * 3, [NAN] * 3]), 1, DataError, "embedding 1"),
    ],
)
def test_what_neighbors_refuse(z, bank, k, error, message):
    with pytest.raises(error, match=message):
        neighbor_score(z, bank, k)


def test_surprise_is_the_log_of_the_share_of_known_samples_as_unknown():
    """Of 4 known scores, 4, 3, 2 and 1 are as high as each in turn; the fifth is the new sample itself."""
    known = torch.tensor([0.3, -1.0, 7.0, 2.0])
    found = combined_score({"a": known.sort().values}, ScoreScale.fit({"a": known}))
    assert found.tolist() == pytest.approx([-math.log(share / 5) for share in (4, 3, 2, 1)])


def test_tied_known_samples_share_their_mean_rank():
    scale = ScoreScale.fit({"a": torch.tensor([1.0, 1.0, 1.0, 2.0])})
    found = combined_score({"a": torch.tensor([1.0, 2.0])}, scale)
    assert found.tolist() == pytest.approx([-math.log(3 / 5), -math.log(1 / 5)])


def test_beyond_the_known_samples_order_goes_on_upward_alone():
    scale = ScoreScale.fit({"a": torch.linspace(0, 1, 50)})
    low = combined_score({"a": torch.tensor([-INF, -9.0, 0.0])}, scale)
    assert low[0] == low[1] == low[2]
    high = combined_score({"a": torch.tensor([1.0, 1.01, 1.5, 1e9, INF, NAN])}, scale).tolist()
    assert high == sorted(high)
    assert len(set(high)) == 5
    assert high[-2:] == [INF, INF]


def test_beyond_the_known_samples_the_line_from_the_first_to_the_last_goes_on():
    found = combined_score(
        {"a": torch.tensor([2.0, 5.0])}, ScoreScale.fit({"a": torch.tensor([0.0, 0.5, 2.0])})
    )
    first, last = -math.log(3 / 4), -math.log(1 / 4)
    assert found.tolist() == pytest.approx([last, last + 3 / 2 * (last - first)])


def test_one_nan_among_the_scores_is_most_unknown():
    scale = ScoreScale.fit({"a": torch.arange(9.0), "b": torch.arange(9.0)})
    found = combined_score({"a": torch.tensor([0.0, NAN]), "b": torch.tensor([0.0, 0.0])}, scale)
    assert found.tolist() == [pytest.approx(-math.log(0.9)), INF]


@given(st.lists(st.integers(-50, 50), min_size=2, unique=True), st.lists(finite, min_size=2, max_size=20))
def test_units_do_not_matter_and_order_is_kept(known, new):
    reference, scores = torch.tensor(known, dtype=torch.float64), torch.tensor(new, dtype=torch.float64)
    found = combined_score({"a": scores}, ScoreScale.fit({"a": reference}))
    scaled = combined_score({"a": 4 * scores - 32}, ScoreScale.fit({"a": 4 * reference - 32}))
    torch.testing.assert_close(found, scaled, rtol=1e-9, atol=1e-9)
    assert (found[scores.argsort()].diff() >= -1e-12).all()


@given(st.permutations(list(range(12))))
def test_order_of_the_known_samples_does_not_matter(order):
    values = torch.linspace(-1, 1, 12).square()
    assert ScoreScale.fit({"a": values[order]}).to_lists() == ScoreScale.fit({"a": values}).to_lists()


def test_two_scores_that_err_apart_are_better_together():
    """Each sees half of the unknown samples; the units differ by a million."""
    generator = torch.Generator().manual_seed(0)
    known, test, unknown = (torch.randn(2, 400, generator=generator) for _ in range(3))
    unknown[0, :200] += 4
    unknown[1, 200:] += 4

    def scores(x_2N):
        return {"a": x_2N[0], "b": 1e6 * x_2N[1]}

    scale = ScoreScale.fit(scores(known))
    together = auroc(combined_score(scores(test), scale), combined_score(scores(unknown), scale))
    apart = [auroc(scores(test)[name], scores(unknown)[name]) for name in "ab"]
    assert together > max(apart) + 0.1


def test_a_large_held_out_set_is_kept_as_quantiles():
    known = torch.randn(30_000, generator=torch.Generator().manual_seed(0))
    scale = ScoreScale.fit({"a": known})
    assert len(scale.quantiles["a"]) == len(ScoreScale.fit({"a": known[:1002]}).quantiles["a"]) == 1001
    middle = combined_score({"a": known.quantile(torch.tensor([0.5, 0.9, 0.99]))}, scale)
    assert middle.tolist() == pytest.approx([-math.log(share) for share in (0.5, 0.1, 0.01)], abs=0.1)
    assert scale.quantiles["a"][[0, -1]].tolist() == [float(known.min()), float(known.max())]


def test_round_trip_through_json():
    generator = torch.Generator().manual_seed(0)
    known = {"a": torch.rand(50, generator=generator), "b": torch.tensor([NAN, 0.1, 5.0, INF])}
    scale = ScoreScale.fit(known, {"b": 3.0})
    again = ScoreScale.from_lists(json.loads(json.dumps(scale.to_lists(), allow_nan=False)))
    assert again.to_lists() == scale.to_lists()
    assert len(again.quantiles["b"]) == 2
    new = {name: torch.rand(20, generator=generator) for name in "ab"}
    assert combined_score(new, again).equal(combined_score(new, scale))


def test_other_scores_are_ignored_and_missing_ones_named():
    scale = ScoreScale.fit({"a": torch.arange(9.0)})
    one = combined_score({"a": torch.tensor([3.0])}, scale)
    assert combined_score({"b": torch.tensor([9.0]), "a": torch.tensor([3.0])}, scale).equal(one)
    with pytest.raises(UsageError, match="score 'a'"):
        combined_score({"b": torch.tensor([9.0])}, scale)


def test_scores_of_other_samples_are_refused():
    scale = ScoreScale.fit({"a": torch.arange(9.0), "b": torch.arange(9.0)})
    with pytest.raises(DataError, match="'a' 3, 'b' 2"):
        combined_score({"a": torch.zeros(3), "b": torch.zeros(2)}, scale)


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ([], "at least 2 known samples"),
        ([1.0, NAN, INF], "at least 2 known samples"),
        ([2.0, 2.0, NAN], "the same for all known samples"),
    ],
)
def test_what_a_scale_cannot_be_fitted_to(known, message):
    with pytest.raises(DataError, match=f"score 'a'.*{message}"):
        ScoreScale.fit({"a": torch.tensor(known)})


def test_a_scale_needs_a_score():
    with pytest.raises(UsageError, match="at least one"):
        ScoreScale.fit({})


@pytest.mark.parametrize("quantiles", [["x"], [1.0, 0.0], [0.0, NAN], [[0.0], [1.0]], 1.0])
def test_foreign_quantiles_are_refused(quantiles):
    with pytest.raises(DataError, match="score"):
        ScoreScale.from_lists({"a": {"weight": 1.0, "quantiles": quantiles}})


@pytest.mark.parametrize("weight", [0.0, -1.0, NAN, INF, "x", None])
def test_foreign_weights_are_refused(weight):
    with pytest.raises(DataError, match="score"):
        ScoreScale.from_lists({"a": {"weight": weight, "quantiles": [0.0, 1.0]}})


@pytest.mark.parametrize("lists", [[0.0, 1.0], {"a": [0.0, 1.0]}, {"a": {"weight": 1.0}}])
def test_foreign_scales_are_refused(lists):
    with pytest.raises(DataError, match="pass a weight and a list of quantiles"):
        ScoreScale.from_lists(lists)


def test_a_weight_of_two_is_the_same_score_twice():
    known = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)).double()
    new = dict(
        zip("abc", torch.rand(3, 20, generator=torch.Generator().manual_seed(1)).double(), strict=True)
    )
    twice = ScoreScale.fit({"a": known[0], "b": known[1], "c": known[1]})
    weighted = ScoreScale.fit({"a": known[0], "b": known[1]}, {"b": 2.0, "foreign": 9.0})
    torch.testing.assert_close(combined_score(new, weighted), combined_score(new | {"c": new["b"]}, twice))


def test_a_bank_of_fewer_samples_than_neighbors_counts_its_farthest():
    z_ND = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    reference = Reference(z_ND[None], torch.ones(1, 3, dtype=torch.bool), "point-to-set", z_ND)
    found = unknown_scores(z_ND, torch.zeros(3, 2), reference)["neighbors"]
    assert torch.equal(found, neighbor_score(z_ND, z_ND, k=3))
