"""SIGINT and SIGTERM become a request that work looks at where it is safe to stop."""

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
    """Set by a signal, looked at between two steps of a training."""

    signal_number: int | None = None

    def check(self, done: str) -> None:
        """Raise `Interrupted` if a signal came; `done` says what is safe on disk."""
        number, self.signal_number = self.signal_number, None
        if number is not None:
            raise Interrupted(number, f"interrupted: {done}; run the same command again to go on")


@contextlib.contextmanager
def deferred_signals(patient: bool = False) -> Iterator[StopRequest]:
    """Hold SIGINT and SIGTERM back as a request. A second signal stops at once, as it would have without us.

    Not so if `patient`: batch systems signal every process, and torchrun its own ones once more. It kills
    those that take too long. Outside the main thread signals cannot be caught, and the request simply never
    comes.
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
        # It came after the last look at the request: now it acts as it would have without us.
        signal.raise_signal(request.signal_number)


@contextlib.contextmanager
def uninterrupted_starts() -> Iterator[None]:
    """Processes started meanwhile do not see a signal to the whole group, as Ctrl-C is, until they say so.

    For this one it comes afterwards: half-started workers cannot be ended in order, and who hands a dead one
    what it works on waits for ever.
    """
    with deferred_signals(patient=True):
        resource_tracker.ensure_running()  # its start lets signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_interrupts_to_parent(worker: int = 0) -> None:
    """In a process started so, such as a worker of a DataLoader: the parent saves first and then ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def stop_with_parent() -> None:
    """In a process started by `multiprocessing`: stop as if asked to, when the one that started it is gone.

    Killed, that one stops nobody. torch's workers look for another parent themselves, but those that are
    forked from a process between keep that one alive, and it them.
    """
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def raise_on_signals(advice: str) -> None:
    """From now on, outside `deferred_signals`, a signal raises `Interrupted` wherever the program is.

    Every file is written atomically, so stopping anywhere is safe. `advice` says how to go on.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _in_destructor(frame):
            again = threading.Timer(0.05, os.kill, [os.getpid(), number])
            again.daemon = True
            again.start()
            return
        raise Interrupted(number, f"interrupted: {advice}")

    for number in STOPPING:
        signal.signal(number, interrupt)


def _in_destructor(frame: FrameType | None) -> bool:
    """Where Python prints an error and goes on, as if nothing had come: workers of a DataLoader end so."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
