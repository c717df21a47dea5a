"""Processes that do what a plan asks for, batch by batch and in its order: decode images, or check them."""

import contextlib
import multiprocessing
import signal
import sys
import warnings
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from pmal._runtime.processes.launch import environment, usable_cores
from pmal._runtime.signals import leave_interrupts_to_parent, stop_with_parent, uninterrupted_starts
from pmal.errors import DataError, PmalError

Plan = Sequence[torch.Tensor]
"""Which positions make up each batch, in order."""

Result = TypeVar("Result")


class Workers(Generic[Result]):
    """What `dataset.__getitems__` gives for each batch of a plan. The processes wait for the next plan."""

    _latest: "ClassVar[weakref.ref[Workers[Any]] | None]" = None
    """The workers that run. If each part of a data set had a process per core, they would fill the memory."""

    def __init__(self, dataset: Dataset[Result], count: int = 0, pinned: bool = False) -> None:
        """Start nothing yet; remember how to.

        Args:
            dataset: what workers read from.
            count: 0 for one per usable core.
            pinned: tensors, in memory that a GPU can copy from.
        """
        self.dataset, self.count, self.pinned = dataset, count or usable_cores(), pinned
        self._plan: list[list[int]] = []
        self._loader: DataLoader[Result] | None = None

    def results(self, plan: Plan) -> Iterator[Result]:
        """Yield the results in the order of the plan, in the CPU's memory."""
        if not plan:
            return
        try:
            yield from self._start(plan)
            return
        except DataError as error:
            # torch hands a worker's error on with its traceback; the last line is the message itself.
            last = str(error).strip().splitlines()[-1]
            lost: Exception = DataError(last.partition("DataError: ")[2] or last)
            error.__traceback__ = None
        except RuntimeError as error:
            lost = worker_died(error)
            error.__traceback__ = None if lost is not error else error.__traceback__
        # torch's error refers to itself and, by its traceback, to the workers: they would live on until the
        # garbage collector finds them, and then be waited for, 5 s each.
        self._loader = None
        raise lost

    def end(self) -> None:
        """End the workers that wait; a new plan starts others."""
        self._loader = None

    def _start(self, plan: Plan) -> Iterator[Result]:
        """Hand the plan to the processes, new or waiting. Others end, unless they are still asked."""
        former = Workers._latest() if Workers._latest else None
        if former is not None and former is not self:
            former.end()
        Workers._latest = weakref.ref(self)
        self._plan[:] = [positions.tolist() for positions in plan]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more than cores, as was asked
            self._loader = self._loader or self._make_loader()
            try:
                # From a thread, torch sets no handler of SIGCHLD. It would raise an error wherever the
                # program is when a worker dies, as all do by a signal to the process group. Who waits for a
                # batch of a dead worker is told all the same, within 5 s.
                with uninterrupted_starts(), ThreadPoolExecutor(max_workers=1) as aside:
                    return aside.submit(iter, self._loader).result()
            except (OSError, EOFError) as error:
                self._loader = None
                raise _no_start(error) from None

    def _make_loader(self) -> DataLoader[Result]:
        # Some sets are copied to disk for workers. Now, when Ctrl-C is still heard: it may take long.
        ForkingPickler.dumps(self.dataset)
        return DataLoader(
            self.dataset,
            batch_sampler=self._plan,
            collate_fn=_as_it_is,
            num_workers=self.count,
            multiprocessing_context=_starter(),
            persistent_workers=True,  # the plan is exchanged between epochs instead
            worker_init_fn=_begin,
            pin_memory=self.pinned,
            generator=torch.Generator(),  # or else it draws from the one that trainings repeat by
        )


def _starter() -> BaseContext:
    """Return how workers start: never by a fork of this process, which can hang after torch used threads.

    A new interpreter each takes seconds to import torch. On Linux multiprocessing's fork server imports it
    once: workers start quickly, and share its memory.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pmal.data.decoding.loading"])
    with _server_settings():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _server_settings() -> Iterator[None]:
    """Have a fork server that starts in the block import nothing from the current folder, nor have threads.

    Its workers do not see Ctrl-C until they say so. SIGTERM stays as it is: the program may fork processes of
    its own from that server, and end them.
    """
    resource_tracker.ensure_running()  # the server starts it otherwise, and that would unblock signals
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with environment({"PYTHONSAFEPATH": "1", "OPENBLAS_NUM_THREADS": "1"}):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _no_start(error: OSError | EOFError) -> PmalError:
    if isinstance(error, EOFError):
        reason, fix = "the one they are forked from has ended", "try fewer --workers"
    elif "AF_UNIX" in str(error):
        reason, fix = str(error), "set TMPDIR to a shorter path"
    else:
        reason, fix = error.strerror or str(error), "try fewer --workers"
    return PmalError(f"processes that decode images cannot start ({reason}): {fix}")


def worker_died(error: Exception) -> Exception:
    """Return an error of ours for torch's error about a lost worker; any other error as it is."""
    if "DataLoader worker" not in str(error):
        return error
    fix = "give it more shared memory (/dev/shm) or" if "shared memory" in str(error) else "try"
    return PmalError(f"a process that decodes images died: {fix} fewer --workers")


def _begin(worker: int) -> None:
    leave_interrupts_to_parent()
    stop_with_parent()


def _as_it_is(batch: Any) -> Any:
    """Return what `__getitems__` gave, which is a batch already."""
    return batch
