"""Every version of a model that is changed in place, and its history.

    RUN/model          the model in use
    RUN/versions/2     model/ (a bundle of its own), version.json: what was changed, when, from which version

A version appears as a whole, before the model in use is replaced by it; which one is in use is told by the
checksums of its files. So a process that dies leaves the old model in use, and at most one version more in
the history. Files of versions and model are hard links of each other if the file system has them.
"""

import datetime
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pmal._runtime.files import atomic_path, flush_folder, make_folder, read_json, write_json
from pmal.errors import DataError, PmalError, UsageError
from pmal.rejection.bundle.layout import FILES, RECORD, SUMS, read_sums, replaced_folder
from pmal.rejection.bundle.saving import save_model
from pmal.rejection.model import OpenSetModel

ABOUT, MODEL = "version.json", "model"
_FOUND = "as it was before the first change on record"


@dataclass(frozen=True)
class Version:
    """One line of a model's history."""

    version: int
    source: int | None
    """The version that it was made from; None: it was found."""
    change: str
    when: str
    """Time in UTC, in the form of ISO 8601."""
    digest: str
    """SHA-256 of the list of checksums of its files."""


def versions_folder(folder: Path) -> Path:
    """Return where the versions of the model in `folder` lie: next to it."""
    folder = folder.resolve()
    return folder.with_name("versions" if folder.name == MODEL else f"{folder.name}.versions")


def digest_of(folder: Path) -> str:
    """Return what tells the files of one bundle from those of any other."""
    read_sums(folder)
    return hashlib.sha256((folder / SUMS).read_bytes()).hexdigest()


def list_versions(folder: Path) -> list[Version]:
    """Return the versions of the model in `folder`, the oldest first."""
    place = versions_folder(folder)
    numbers = sorted(int(entry.name) for entry in place.glob("*") if entry.name.isdecimal())
    return [_read(place / str(number)) for number in numbers]


def current_version(folder: Path) -> Version | None:
    """Return the version in use; None if the model in `folder` is none of its versions."""
    digest = digest_of(folder)
    return next((one for one in reversed(list_versions(folder)) if one.digest == digest), None)


def find_version(folder: Path, number: int) -> Path:
    """Return the folder of a version: a bundle, checked against the history."""
    known = {one.version: one for one in list_versions(folder)}
    if number not in known:
        listed = f"there are {', '.join(map(str, known))}" if known else "it was never changed"
        raise UsageError(f"{folder}: no version {number} of this model: {listed}")
    found = versions_folder(folder) / str(number) / MODEL
    if digest_of(found) != known[number].digest:
        raise DataError(f"{found}: not the files that {ABOUT} next to it names: restore them from a copy")
    return found


def check_changeable(folder: Path) -> None:
    """Refuse to change what is itself a version on record."""
    if (folder.resolve().parent / ABOUT).is_file():
        raise UsageError(f"{folder} is a version on record: restore it (pmal history RUN --restore N) first")


def save_version(
    folder: Path,
    model: OpenSetModel,
    change: str,
    before: str,
    beside: Mapping[str, Any] | None = None,
) -> Version:
    """Put a changed model in the place of the one in `folder`, and both into the history.

    Args:
        folder: of the bundle that the model was loaded from.
        model: the model as it is now.
        change: what was done, in words.
        before: `digest_of` the bundle when it was loaded: another process may have changed it since.
        beside: JSON files that belong to the model and lie next to its folder, by name.
    """
    return _renew(folder, change, before, lambda new: save_model(new, model), beside or {})


def restore_version(folder: Path, number: int) -> Version:
    """Put a version in use again: it becomes the newest one."""
    check_changeable(folder)
    found = find_version(folder, number)
    beside = {file.name: read_json(file) for file in _beside(found)}
    change = f"version {number} restored"
    return _renew(folder, change, digest_of(folder), lambda new: _copy_bundle(found, new), beside)


def _renew(
    folder: Path, change: str, before: str, write: Callable[[Path], None], beside: Mapping[str, Any]
) -> Version:
    check_changeable(folder)
    if digest_of(folder) != before:
        raise UsageError(f"{folder} was changed by another process in the meantime: run the command again")
    current = current_version(folder)
    if current is None:
        kept = {file.name: read_json(file) for file in _beside(folder) if file.name in beside}
        current = _record(folder, None, _FOUND, lambda new: _copy_bundle(folder, new), kept)
    made = _record(folder, current.version, change, write, beside)
    version = versions_folder(folder) / str(made.version)
    with replaced_folder(folder) as new:
        _copy_files(version / MODEL, new)
    for name, content in beside.items():
        write_json(folder.resolve().with_name(name), content)
    return made


def _record(
    folder: Path,
    source: int | None,
    change: str,
    write: Callable[[Path], None],
    beside: Mapping[str, Any],
) -> Version:
    """Write the next version, which appears under its number when it is whole."""
    place = make_folder(versions_folder(folder))
    for left in place.glob(".*.new"):  # by a process that was killed
        shutil.rmtree(left)
    number = max((one.version for one in list_versions(folder)), default=0) + 1
    new = place / f".{uuid.uuid4().hex[:8]}.new"
    new.mkdir()
    try:
        write(new / MODEL)
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        version = Version(number, source, change, when, digest_of(new / MODEL))
        for name, content in beside.items():
            write_json(new / name, content)
        write_json(new / ABOUT, asdict(version))
        os.rename(new, place / str(number))
    except OSError as error:
        raise PmalError(f"{place}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    flush_folder(place)
    return version


def _read(folder: Path) -> Version:
    found = read_json(folder / ABOUT)
    try:
        version = Version(**found)
    except TypeError:
        raise DataError(f"{folder / ABOUT}: not written by pmal: restore it from a copy") from None
    kinds = {"version": int, "source": int | None, "change": str, "when": str, "digest": str}
    if not all(isinstance(found[name], kind) for name, kind in kinds.items()):
        raise DataError(f"{folder / ABOUT}: a field is of another type: restore it from a copy")
    if version.version != int(folder.name):
        raise DataError(f"{folder / ABOUT}: of version {version.version}: restore it from a copy")
    return version


def _beside(folder: Path) -> list[Path]:
    """Return the JSON files next to the bundle of a version or a classifier."""
    return [file for file in sorted(folder.resolve().parent.glob("*.json")) if file.name != ABOUT]


def _copy_bundle(folder: Path, new: Path) -> None:
    new.mkdir()
    _copy_files(folder, new)


def _copy_files(folder: Path, new: Path) -> None:
    names = [name for name in FILES if name in (RECORD, SUMS, *read_sums(folder))]
    for name in names:
        try:
            os.link(folder / name, new / name)
        except OSError:  # a file system without hard links
            with atomic_path(new / name) as temporary:
                shutil.copyfile(folder / name, temporary)
    flush_folder(new)
