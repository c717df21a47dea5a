"""What would make a GPU wait for the host, seen on a CPU: a CUDA graph can hold none of it."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "lift_fresh", "equal")
"""Operations whose result the host has to know, or that bring something from it."""


class Watch(TorchDispatchMode):
    """Which of the operations would make a GPU wait."""

    def __init__(self):
        super().__init__()
        self.waiting = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        indices = args[1] if name.startswith("index") and len(args) > 1 else ()
        masked = any(getattr(index, "dtype", None) == torch.bool for index in indices or ())
        if masked or any(word in name for word in WAITING):
            self.waiting.append(name)
        return func(*args, **(kwargs or {}))
