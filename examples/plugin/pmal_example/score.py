"""A score: how near the second class comes to the first."""

import pmal


@pmal.register_score("gap")
def gap_score(z, logits):
    first, second = logits.topk(2, dim=1).values.unbind(dim=1)
    return second - first
