"""What every head has in common, whatever its method."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from pmal.ensemble.heads import Head, HeadConfig, HeadShape, create_head, scores_of


class Doubtful(Head):
    """A head with a weight and a count, whose score of a broken embedding is NaN."""

    own_scores = ("doubt",)

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(1 / 3))
        self.register_buffer("count", torch.tensor(7))

    def unknown_scores(self, z_BD, logits_BK):
        assert z_BD.dtype == logits_BK.dtype == self.weight.dtype == torch.float64
        assert self.count.dtype == torch.int64
        return {"doubt": self.weight * z_BD[:, 0]}


def test_own_scores_are_computed_in_float64_and_what_broke_the_network_is_unknown():
    head = Doubtful()
    z_BD = torch.tensor([[3.0], [math.nan], [math.inf], [-math.inf]])
    found = scores_of(head, z_BD, torch.zeros(4, 2))["doubt"]
    assert found.tolist() == [3 * head.weight.item(), math.inf, math.inf, math.inf]
    assert head.weight.dtype == torch.float32


@pytest.mark.parametrize("name", ["linear", "cpn", "rpl", "rpl++", "arpl", "openhybrid"])
def test_labels_are_smoothed_in_the_cross_entropy_of_the_logits_and_nowhere_else(name):
    torch.manual_seed(0)
    head = create_head(HeadConfig(name), HeadShape(5, 4, 1, 28))
    z_BD, labels_B = torch.randn(7, 5), torch.arange(7) % 4
    losses = []
    for smoothing in (0.3, 0.0):
        torch.manual_seed(1)  # one of them adds noise
        plain = cross_entropy(head(z_BD), labels_B, label_smoothing=smoothing)
        losses.append(head.known_loss(z_BD, labels_B, smoothing) - plain)
    torch.testing.assert_close(losses[0], losses[1])
