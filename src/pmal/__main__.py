"""The `pmal` command: a user's mistake is told in one line, with the exit code of its kind."""

import contextlib
import io
import os
import signal
import sys
import traceback
from typing import NoReturn

from pmal._runtime.processes.launch import is_alone

INTERRUPTED = 128 + signal.SIGINT
NOTHING = "nothing was written"
NOT_BEGUN = f"error: interrupted: {NOTHING}"


def main() -> None:
    """Run the command line, and end the process with the exit code of what happened."""
    _open_streams()
    try:
        _command()
    except SystemExit as ended:
        sys.exit(_flush_output(ended.code))


def _open_streams() -> None:
    """Put the void if standard streams are closed: else a file opened next would take what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            void = os.open(os.devnull, os.O_RDWR)
            if void != number:
                os.dup2(void, number)
                os.close(void)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if type(sys.stderr) is io.TextIOWrapper:
        sys.stderr = _Unheard(io.BufferedWriter(io.FileIO(2, "w", closefd=False)), line_buffering=True)


class _Unheard(io.TextIOWrapper):
    """Standard error, which may be closed or on a full disk: the work goes on, and is no failure."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _command() -> None:
    from pmal._runtime.signals import raise_on_signals
    from pmal.errors import Interrupted, PmalError, out_of_memory

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Now, because Python's own handler interrupts imports, too, and some libraries abort at that.
        raise_on_signals(NOTHING)
    # A terminal that cannot show a letter gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _work()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer's word for Ctrl-C before a command has begun
            print(NOT_BEGUN, file=sys.stderr)
        _end_by_signals()
        raise
    except KeyboardInterrupt as error:
        _end(error, NOT_BEGUN, INTERRUPTED)
    except (PmalError, Interrupted) as error:
        _end(error, f"error: {error}", error.exit_code)
    except Exception as error:
        if message := out_of_memory(error):
            _end(error, f"error: {message}", PmalError.exit_code)
        _end_by_fault(error)


def _end_by_fault(error: Exception) -> NoReturn:
    from pmal.errors import PmalError

    if isinstance(error, OSError):
        # A full disk, a folder taken away: the system's reason and the file say it all.
        reason = f"{error.filename or 'input/output'}: {error.strerror or error}"
        _end(error, f"error: {reason}", PmalError.exit_code)
    if is_alone():
        raise error
    _end(error, traceback.format_exc(), PmalError.exit_code)


def _work() -> None:
    from pmal.cli import app  # takes long enough to be interrupted

    try:
        app()
    except SystemExit as ended:
        if not is_alone():
            from pmal._runtime.processes.torchrun import finish_rank

            finish_rank(int(ended.code or 0))  # waits for the others, and can be interrupted as well
        raise


def _flush_output(code: str | int | None) -> str | int | None:
    """Return the exit code, once what was printed last is out.

    At the interpreter's end a failure would be an ugly loss.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # who closes a pipe has read enough
            print(f"error: standard output: {error.strerror}", file=sys.stderr)
        return code or 1
    return code


def _end(error: BaseException, message: str, code: int) -> NoReturn:
    if not is_alone():  # the other processes must not wait for this one
        from pmal._runtime.processes.torchrun import fail_rank

        fail_rank(error, message, code)
    _end_by_signals()
    with contextlib.suppress(OSError):  # whoever has closed it does not want to know
        print(message, file=sys.stderr)
    _kill_workers()
    sys.exit(code)


def _end_by_signals() -> None:
    """Have signals end the process at once.

    The interpreter takes a second to end. Whoever does not wait for that gets no traceback.
    """
    from pmal._runtime.signals import STOPPING

    for number in STOPPING:
        signal.signal(number, signal.SIG_DFL)


def _kill_workers() -> None:
    """Kill the processes that decode images.

    They have nothing to save, and some would complain at their end.
    """
    if "torch" in sys.modules:
        from multiprocessing import active_children

        for worker in active_children():
            worker.kill()


if __name__ == "__main__":
    main()
