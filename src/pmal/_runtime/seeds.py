"""Independent random streams from one seed, by name, the same on every machine."""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def stream(seed: int, *path: str | int) -> int:
    """The seed of the stream with this name, such as ("classifier", 0, "order", 12).

    Hashing keeps streams apart: neighboring seeds or indices share nothing, and a stream never depends on how
    much another one was used.

    >>> stream(0, "classifier", 0) == stream(0, "classifier", 0) != stream(0, "classifier", 1)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's default generators inside the block and give the caller's state back after it."""
    with torch.random.fork_rng(devices=_cuda_indices(device)):
        torch.manual_seed(seed)
        yield


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of the default generators, for a checkpoint."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _cuda_indices(device: torch.device) -> list[int]:
    if device.type != "cuda":
        return []
    return [device.index if device.index is not None else torch.cuda.current_device()]
