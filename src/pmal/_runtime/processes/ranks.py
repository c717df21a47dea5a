"""The processes that share a run: this one alone, or one per GPU as started by torchrun.

`Ranks` is a single process: every exchange returns what it was given, so that code written for several
processes needs no second path for one. `RankGroup` does the same through torch.distributed.

Tensors on a GPU go through NCCL and may be captured in a CUDA graph. JSON and tensors on the CPU go through
gloo, which notices at once if another process has died.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from pmal.errors import Interrupted, PmalError

Result = TypeVar("Result")
Named = dict[str, Tensor]

_CHUNK = 1 << 28
"""Bytes sent at a time, so that no backend has to hold a copy of a large tensor."""


class Lost(PmalError):
    """Another process of the run has died."""


class Ranks:
    """This process alone."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Return whether this process is the one that writes files and talks to the user."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """Return this process's number and the number of processes."""
        return self.rank, self.size

    def shares(self, count: int) -> list[slice]:
        """Return each process's share of `count` items: contiguous, and of equal sizes up to one item.

        >>> RankGroup(0, 3).shares(10)
        [slice(0, 4, None), slice(4, 7, None), slice(7, 10, None)]
        """
        edges = [-(-count * r // self.size) for r in range(self.size + 1)]
        return [slice(*both) for both in itertools.pairwise(edges)]

    def share(self, count: int) -> slice:
        """Return this process's share of `count` items."""
        return self.shares(count)[self.rank]

    def for_all(self, advance: Callable[[int], None]) -> Callable[[int], None]:
        """Return a progress callback that counts for all processes, assuming they are equally far."""
        return advance

    def by_first(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the first process; return its result (JSON), or raise its error, in every process."""
        return work()

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value (JSON), in order."""
        return [value]

    def largest(self, number: int) -> int:
        """Return the largest number of all processes."""
        return number

    def tensors_of_first(self, read: Callable[[], tuple[Named, Any]]) -> tuple[Named, Any]:
        """Return CPU tensors and JSON about them, read by the first process alone."""
        return read()

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors with those of the first process."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes; the input may be overwritten."""
        return values

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors of one data type with their means over all processes, in one exchange."""

    def gather_rows(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all processes, in order. `counts` is the number of rows of each."""
        return own

    def gather_alike(self, own: Tensor) -> Tensor:
        """Return tensors of one shape as (size, ...); gradients flow back to the process each came from."""
        return own[None]


ALONE = Ranks()


class RankGroup(Ranks):
    """One of several processes. All of them call the same methods in the same order."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def for_all(self, advance: Callable[[int], None]) -> Callable[[int], None]:
        return lambda own: advance(own * self.size)

    def by_first(self, work: Callable[[], Result]) -> Result:
        answer: dict[str, Any] = {}
        if self.first:
            try:
                answer = {"value": work()}
            except (PmalError, Interrupted) as error:
                self._tell({"error": str(error), "exit_code": error.exit_code}, 0)
                raise
        answer = self._tell(answer, 0)
        if "error" in answer:
            raise _error_of_first(answer["error"], answer["exit_code"])
        value: Result = answer["value"]
        return value

    def gather(self, value: Any) -> list[Any]:
        return [self._tell(value, source) for source in range(self.size)]

    def largest(self, number: int) -> int:
        from torch.distributed import ReduceOp

        numbers = torch.tensor([number])
        _exchange("all_reduce", numbers, op=ReduceOp.MAX)
        return int(numbers)

    def tensors_of_first(self, read: Callable[[], tuple[Named, Any]]) -> tuple[Named, Any]:
        tensors: Named = {}

        def describe() -> dict[str, Any]:
            found, about = read()
            tensors.update({name: tensor.contiguous() for name, tensor in found.items()})
            shapes = {name: [str(t.dtype).removeprefix("torch."), *t.shape] for name, t in tensors.items()}
            return {"shapes": shapes, "about": about}

        header = self.by_first(describe)
        for name, (dtype, *shape) in header["shapes"].items():
            tensors.setdefault(name, torch.empty(shape, dtype=getattr(torch, dtype)))
            _broadcast(tensors[name], 0)
        return tensors, header["about"]

    def copy_first(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            values = tensor.detach().contiguous()
            _broadcast(values, 0)
            tensor.detach().copy_(values)

    def sum(self, values: Tensor) -> Tensor:
        values = values.contiguous()
        _exchange("all_reduce", values)
        return values

    def average(self, tensors: Sequence[Tensor]) -> None:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        _exchange("all_reduce", flat)
        flat /= self.size
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        with torch.no_grad():
            torch._foreach_copy_(
                list(tensors), [part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
            )

    def gather_rows(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        rows = own.new_empty(sum(counts), *own.shape[1:])
        for source, part in enumerate(torch.split(rows, list(counts))):
            if source == self.rank:
                part.copy_(own)
            _broadcast(part, source)
        return rows

    def gather_alike(self, own: Tensor) -> Tensor:
        gathered: Tensor = _Gather.apply(own, self)  # type: ignore[no-untyped-call]
        return gathered

    def _tell(self, value: Any, source: int) -> Any:
        """Return the value of one process, sent as JSON: unlike a pickle, JSON cannot run code."""
        text = bytearray(json.dumps(value).encode() if self.rank == source else b"")
        length = torch.tensor([len(text)])
        _exchange("broadcast", length, source)
        letters = torch.frombuffer(text or bytearray(int(length)), dtype=torch.uint8)
        _broadcast(letters, source)
        return json.loads(letters.numpy().tobytes())


class _Gather(torch.autograd.Function):
    """Gather every rank's tensor on every rank. Each rank's loss depends on all of them: gradients add up."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, ranks: RankGroup) -> Tensor:
        ctx.ranks = ranks
        gathered = own.new_empty(ranks.size, *own.shape)
        _exchange("all_gather", list(gathered.unbind(0)), own.contiguous())
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradients[0].clone())[ctx.ranks.rank], None


def _error_of_first(message: str, exit_code: int) -> PmalError | Interrupted:
    """Return the first process's error for the other processes. A signal stays an `Interrupted`."""
    if exit_code > 128:
        return Interrupted(exit_code - 128, message)
    shared = PmalError(message)
    shared.exit_code = exit_code
    return shared


def _broadcast(values: Tensor, source: int) -> None:
    """Broadcast a contiguous tensor of any type, as bytes."""
    if values.numel():
        for chunk in torch.split(values.view(-1).view(torch.uint8), _CHUNK):
            _exchange("broadcast", chunk, source)


def _exchange(name: str, values: Tensor | list[Tensor], *arguments: Any, **options: Any) -> None:
    """Call a collective of torch.distributed. A failure on the CPU means that another process has died."""
    import torch.distributed as dist

    try:
        getattr(dist, name)(values, *arguments, **options)
    except RuntimeError as error:
        if (values if isinstance(values, Tensor) else values[0]).is_cuda:
            raise  # possibly a graph that cannot be captured
        raise Lost(
            "another process of this run has ended: see its message; what is saved stays, "
            "run the same command again to resume"
        ) from error
