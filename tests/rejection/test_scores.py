import math

import pytest
import torch

from pmal.rejection.scores import LOGIT_SCORES, energy_score, logit_score, probability_score

LOGITS = torch.tensor([[3.0, -1.0, 0.5], [0.2, 0.1, 0.0], [40.0, -2.0, 1.0]])


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


def test_certain_predictions_keep_their_order():
    """In float32, one minus the largest probability is 0 for both."""
    certain, more_certain = probability_score(torch.tensor([[30.0, 0.0], [35.0, 0.0]]))
    assert 0 < more_certain < certain
