"""SIGINT and SIGTERM become a request that work checks at points where it is safe to stop."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from types import FrameType

from pmal.errors import Interrupted

STOPPING = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A request to stop, set by a signal and checked between two training steps."""

    signal_number: int | None = None

    def check(self, done: str) -> None:
        """Raise `Interrupted` if a signal came; `done` says what is already saved on disk."""
        number, self.signal_number = self.signal_number, None
        if number is not None:
            raise Interrupted(number, f"interrupted: {done}; run the same command again to resume")


@contextlib.contextmanager
def deferred_signals(patient: bool = False) -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request inside the block. A second signal stops at once.

    Outside the main thread signals cannot be caught, and the request is never set.

    Args:
        patient: do not stop at a second signal. Batch systems signal every process, and torchrun signals its
            processes once more; it kills those that take too long.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def remember(number: int, frame: FrameType | None) -> None:
        if request.signal_number is not None and not patient:
            request.signal_number = None
            raise Interrupted(number, "interrupted twice: stopped at once; the last checkpoint stays")
        request.signal_number = number

    before = {number: signal.signal(number, remember) for number in STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if request.signal_number is not None:
            # The signal came after the last check of the request: now it acts as it would have without us.
            # It is also why the block failed, if it did: other processes of the group got it as well.
            signal.raise_signal(request.signal_number)


@contextlib.contextmanager
def uninterrupted_starts() -> Iterator[None]:
    """Hide signals from processes started inside the block until they unblock them.

    Ctrl-C goes to the whole process group. This process gets the signal afterwards: half-started workers
    cannot be ended in order, and handing work to a dead worker waits forever.
    """
    with deferred_signals(patient=True):
        resource_tracker.ensure_running()  # starting it later would unblock signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts_to_parent(worker: int = 0) -> None:
    """Ignore SIGINT in a worker process, such as a DataLoader's: the parent saves first, then ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def stop_with_parent() -> None:
    """Stop this `multiprocessing` process, as if by SIGTERM, when its parent is gone.

    A killed parent stops nobody. torch's workers watch their parent themselves, but workers that are forked
    from a process in between keep that process alive, and it keeps them alive.
    """
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def raise_on_signals(advice: str) -> None:
    """Make a signal raise `Interrupted` wherever the program is, outside `deferred_signals`.

    Every file is written atomically, so stopping is safe anywhere.

    Args:
        advice: how to continue; part of the message.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _must_finish(frame):
            again = threading.Timer(0.05, os.kill, [os.getpid(), number])
            again.daemon = True
            again.start()
            return
        raise Interrupted(number, f"interrupted: {advice}")

    for number in STOPPING:
        signal.signal(number, interrupt)


def _must_finish(frame: FrameType | None) -> bool:
    """Return whether a destructor or an import runs, which an exception would not end in order.

    Python prints the errors of a destructor and continues, so a signal would be lost. A library in C++ that
    is being imported aborts the process.
    """
    while frame is not None and frame.f_code.co_name != "__del__" and not _imports(frame):
        frame = frame.f_back
    return frame is not None


def _imports(frame: FrameType) -> bool:
    return frame.f_code.co_filename == "<frozen importlib._bootstrap>"
