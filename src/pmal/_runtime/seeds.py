"""Independent random streams from one seed, by name, identical on every machine."""

import contextlib
import hashlib
from collections.abc import Iterator

import torch


def stream(seed: int, *path: str | int) -> int:
    """Return the seed of the stream with this name, such as ("classifier", 0, "order", 12).

    Hashing keeps streams independent: neighboring seeds or indices share nothing, and a stream never depends
    on how much another one was used.

    >>> stream(0, "classifier", 0) == stream(0, "classifier", 0) != stream(0, "classifier", 1)
    True
    """
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's default generators inside the block and restore the caller's state after it."""
    with torch.random.fork_rng(devices=_cuda_indices(device)):
        torch.manual_seed(seed)
        yield


class OwnRandomness:
    """A separate state of the default generators, for work that takes turns with other work.

    On a GPU it is a separate object, not only a value: a CUDA graph reads its offset from memory that belongs
    to the state it was captured with, so graphs that run at the same time cannot share a state.
    """

    def __init__(self, seed: int, device: torch.device) -> None:
        self._cpu = torch.Generator().manual_seed(seed).get_state()
        self._default = [torch.cuda.default_generators[index] for index in _cuda_indices(device)]
        self._own = [generator.clone_state().manual_seed(seed) for generator in self._default]

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Continue the last block's random numbers inside this one; restore the caller's state after it."""
        before = torch.get_rng_state(), [generator.graphsafe_get_state() for generator in self._default]
        self._use(self._cpu, self._own)
        try:
            yield
        finally:
            self._cpu = torch.get_rng_state()
            self._own = [generator.graphsafe_get_state() for generator in self._default]
            self._use(*before)

    def _use(self, cpu: torch.Tensor, states: list[torch.Generator]) -> None:
        torch.set_rng_state(cpu)
        for generator, state in zip(self._default, states, strict=True):
            generator.graphsafe_set_state(state)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the state of the default generators, for a checkpoint."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Set the default generators to a state that `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def renew_random_state(device: torch.device) -> None:
    """Replace the default generators' state by a copy.

    A failed capture leaves the state in a mode in which torch refuses to draw.
    """
    for index in _cuda_indices(device):
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())


def _cuda_indices(device: torch.device) -> list[int]:
    if device.type != "cuda":
        return []
    return [device.index if device.index is not None else torch.cuda.current_device()]
