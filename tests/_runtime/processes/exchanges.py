"""What each of several processes does in test_ranks.py: every exchange once, its results as JSON."""

import json
import sys

import torch

from pmal._runtime.processes.ranks import RankGroup
from pmal._runtime.processes.torchrun import finish_rank, open_ranks
from pmal.errors import DataError, Interrupted


def shared_error(ranks):
    def fail():
        raise DataError("first.json: damaged")

    try:
        ranks.by_first(fail)
    except Exception as error:
        return [str(error), error.exit_code]


def shared_interruption(ranks):
    def stop():
        raise Interrupted(15, "interrupted: go on")

    try:
        ranks.by_first(stop)
    except Interrupted as error:
        return [str(error), error.exit_code]


def gradient(ranks):
    """Each rank's loss weighs all rows by its own number plus one."""
    own = torch.tensor([1.0 + ranks.rank, 9.0, 2.0, 9.0])[
        ::2
    ].requires_grad_()  # with gaps between its numbers
    gathered = ranks.gather_alike(own)
    ((ranks.rank + 1) * gathered.square()).sum().backward()
    return gathered.tolist(), own.grad.tolist()


def gradient_beside(ranks):
    """Of a tensor that is added to gathered ones: this process's own, though autograd hands both the same."""
    leaf = torch.zeros(2, 1).requires_grad_()
    beside = 1.0 * leaf
    gathered = ranks.gather_alike(torch.ones(1).requires_grad_())
    ((ranks.rank + 1) * (gathered + beside)).sum().backward()
    return leaf.grad.flatten().tolist()


def exchanges(ranks):
    r = ranks.rank
    first = torch.full((2, 3), r, dtype=torch.bfloat16)
    laid_out = torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last) * (1 - r)
    ranks.copy_first([first, laid_out])
    means = [torch.full((2, 2), 1.0 + r).T, torch.tensor(float(r))]
    ranks.average(means)
    stored = {"a": torch.tensor([True, False]), "b": torch.empty(0, 3), "c": torch.tensor(2.5).double()}
    stored["d"] = torch.arange(6).view(2, 3).T
    received, about = ranks.tensors_of_first(lambda: (stored, {"step": 3}))
    done = []
    ranks.for_all(done.append)(5)
    return {
        "share": list(range(10)[ranks.share(5)]),
        "for_all": done,
        "by_first": ranks.by_first(lambda: {"rank": r, "text": "ä" * 3}),
        "error": shared_error(ranks),
        "interruption": shared_interruption(ranks),
        "gather": ranks.gather([r] * r),
        "largest": ranks.largest(7 - r),
        "sum": ranks.sum(torch.tensor([[0.5, r], [2.0, 3.0]], dtype=torch.float64).T).tolist(),
        "first": first.tolist(),
        "laid_out": bool((laid_out == torch.arange(24.0).view(1, 2, 3, 4)).all()),
        "means": [tensor.tolist() for tensor in means],
        "rows": ranks.gather_rows(torch.full((3 - 2 * r, 2), r), [3, 1]).tolist(),
        "tensors": [[str(t.dtype), t.tolist()] for t in received.values()],
        "about": about,
        "gradient": gradient(ranks),
        "beside": gradient_beside(ranks),
    }


if __name__ == "__main__":
    ranks = open_ranks("cpu")
    assert isinstance(ranks, RankGroup)
    assert open_ranks("cpu") is ranks
    json.dump(exchanges(ranks), sys.stdout)
    finish_rank(0)
