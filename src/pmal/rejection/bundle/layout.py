"""A folder whose files appear together or not at all, and are read against their checksums.

Everything is written to `.NAME.new` next to it; then an older folder moves aside to `.NAME.old`, the new one
takes its name, and the old one is deleted. A process that dies leaves the old folder or the new one, whole;
if it dies between the two moves, both lie next to the name, and the next save, or a person, moves
`.NAME.old` back.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pmal._runtime.files import flush_folder, make_folder
from pmal.errors import DataError, MissingFileError, PmalError, UsageError

FORMAT = "pmal-model"
RECORD, SUMS = "model.json", "sha256.json"
WEIGHTS, REFERENCE, CALIBRATION = "weights.safetensors", "reference.safetensors", "calibration.safetensors"
LAYERS = "typicality.safetensors"
FILES = (RECORD, WEIGHTS, REFERENCE, CALIBRATION, LAYERS, SUMS)

JSON_LIMIT = 64 << 20
"""Bytes of a JSON file at most: a thousand classes of ten prototypes take two million."""

_HALF_WRITTEN = re.compile(r"\..*\.tmp|\.tmp\w{6}")
"""Names of temporary files: ours, and those of safetensors."""
_SUM = re.compile("[0-9a-f]{64}")


@contextlib.contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give an empty folder, which takes the place of `folder` when the block ends without an error.

    What was there is replaced if it is a bundle, and never if it is anything else.
    """
    folder = folder.resolve()
    make_folder(folder.parent)
    try:
        with _only_writer(folder.parent):
            _tidy(folder)
            _check_replaceable(folder)
            new = _beside(folder, "new")
            new.mkdir()
            try:
                yield new
                _move_into_place(new, folder)
            finally:
                with contextlib.suppress(OSError):  # what cannot be deleted now is, by the next save
                    _tidy(folder)
    except OSError as error:
        raise PmalError(f"{folder}: cannot be written ({error.strerror or error})") from None


def read_sums(folder: Path) -> dict[str, str]:
    """Return the checksums of a bundle's files, by name."""
    _check_folder(folder)
    path = folder / SUMS
    sums = parse_json(path, _read(path, JSON_LIMIT))
    if not all(isinstance(digest, str) and _SUM.fullmatch(digest) for digest in sums.values()):
        raise DataError(f"{path}: not a list of checksums: copy or save the model again")
    return sums


def read_verified(folder: Path, name: str, sums: Mapping[str, str], limit: int | None = None) -> bytes:
    """Return the content of a file, checked by its checksum.

    It is hashed as it is in memory: nothing can change between the check and the use.
    """
    path = folder / name
    if name not in sums:
        raise DataError(f"{folder / SUMS}: has no checksum of {name}: copy or save the model again")
    data = _read(path, limit)
    if hashlib.sha256(data).hexdigest() != sums[name]:
        raise DataError(f"{path}: damaged (not the checksum in {SUMS}): copy or save the model again")
    return data


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """Return a JSON object; reject NaN and infinities, which only Python writes."""
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: not a JSON object: not written by pmal")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _read(path: Path, limit: int | None) -> bytes:
    if not os.path.isfile(path):
        reason = "not a file" if os.path.exists(path) else "missing"
        raise DataError(f"{path}: {reason}: copy or save the model again")
    try:
        if limit is not None and path.stat().st_size > limit:
            raise DataError(f"{path}: larger than {limit >> 20} MiB: not written by pmal")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: not readable ({error.strerror})") from None


def _check_folder(folder: Path) -> None:
    if os.path.isdir(folder):
        return
    if os.path.exists(folder):
        raise DataError(f"{folder}: not a folder: name the folder of a saved model")
    old = _beside(folder.resolve(), "old")
    if _is_bundle(old):
        raise DataError(f"{folder}: missing, because a save was interrupted: rename {old} to {folder.name}")
    raise MissingFileError(f"{folder}: no such folder")


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file: choose another folder")
    if any(folder.iterdir()) and not _is_bundle(folder):
        raise UsageError(f"{folder} is not empty and holds no model: choose another folder")
    _check_strangers(folder)


def _check_strangers(folder: Path) -> None:
    """Refuse to delete what we have not written."""
    for entry in folder.iterdir():
        half_written = _HALF_WRITTEN.fullmatch(entry.name) is not None
        if not entry.is_file() or not (entry.name in FILES or half_written):
            raise UsageError(f"{entry} is no part of a model: move it away, or choose another folder")


def _is_bundle(folder: Path) -> bool:
    try:
        path = folder / RECORD
        return parse_json(path, _read(path, JSON_LIMIT)).get("format") == FORMAT
    except DataError:
        return False


def _move_into_place(new: Path, folder: Path) -> None:
    if folder.exists():
        os.rename(folder, _beside(folder, "old"))
    os.rename(new, folder)
    flush_folder(folder.parent)


def _tidy(folder: Path) -> None:
    """Take back what was left half done, and delete what is no longer needed."""
    old, new = _beside(folder, "old"), _beside(folder, "new")
    if not folder.exists() and _is_bundle(old):
        os.rename(old, folder)
    for left in (old, new):
        if left.exists():
            _check_strangers(left)
            shutil.rmtree(left)


def _beside(folder: Path, kind: str) -> Path:
    return folder.with_name(f".{folder.name}.{kind}")


@contextlib.contextmanager
def _only_writer(folder: Path) -> Iterator[None]:
    # On the folder itself, which leaves no lock file; dropped by the kernel however the process ends.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
