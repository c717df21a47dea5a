"""pmal, but one process misbehaves at a step of the first training: RANK ACTION STEP, and pmal's words."""

import os
import signal
import sys

import torch

from pmal.__main__ import main
from pmal._engine import loop as training
from pmal.errors import DataError


def misbehave(loop, action):
    if action == "nan":
        next(loop.model.parameters()).data.fill_(torch.nan)
    elif action == "raise":
        raise DataError("sample 7: gone")
    elif action == "crash":
        raise ZeroDivisionError("a bug")
    else:
        os.kill(os.getpid(), getattr(signal, action))


if __name__ == "__main__":
    rank, action, at, *words = sys.argv[1:]
    run_step = training._Loop.run_step

    def step(loop, *batch):
        if loop.step == int(at) and os.environ.get("RANK", "0") == rank:
            misbehave(loop, action)
        run_step(loop, *batch)

    training._Loop.run_step = step
    sys.argv[1:] = words
    main()
