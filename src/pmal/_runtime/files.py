"""Files that are either whole or absent: written under a temporary name, flushed, renamed."""

import contextlib
import errno
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmal.errors import DataError, MissingFileError, UsageError

_PROBE = ".write-test-"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing may run into; the system does not say in which file."""


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path next to `path`; move it into place when the block ends without an error.

    A block that fails, or a process that dies, leaves the old file as it was.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingFileError(f"{path}: no such file") from None
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None


def append_line(path: Path, text: str) -> None:
    """Add one line; a line that a dying process wrote in part stays a line of its own."""
    with open(path, "ab+") as file:
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode("utf-8") + b"\n")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a log, one on each line.

    A line that a dying process wrote in part is left out.
    """
    events = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, RecursionError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict)]


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """Create the folder and make sure that it can be written to, before any work is done for it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{_PROBE}{uuid.uuid4().hex[:8]}").touch()
        for probe in path.glob(f"{_PROBE}*"):  # also one that could not be removed before
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {path} ({error.strerror}): choose another folder") from None
    return path


def _umask() -> int:
    # safetensors creates its files with mode 0600; everything we write follows the user's umask instead.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def flush_folder(folder: Path) -> None:
    # Without this a power cut can undo the rename although the file itself is on disk.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
