"""From what a user types to a `Source`: the name of a known set, or a path.

A named set is looked for under the data root, first in its official files, then as Parquet shards. A known
name, also that of a plugin, always means that set; a folder of the same name is written `./mnist`.
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pmal.data.rows.table import holds_embeddings
from pmal.data.samples import Samples, Source
from pmal.data.sources.embedding_files import open_embeddings
from pmal.data.sources.folder import holds_samples_at, list_droppings, open_folder, read_folder
from pmal.data.sources.npz import open_npz
from pmal.data.sources.parquet import open_parquet
from pmal.data.sources.published._named import NAMED, NamedSet
from pmal.data.sources.published.cifar import read_cifar100_test
from pmal.errors import DataError, MissingFileError, UsageError, did_you_mean
from pmal.plugins import Registry

DATA_ROOT_VARIABLE = "PMAL_DATA"
SAMPLE = "sample"
Opener = Callable[[Path | None], Source]
SOURCES: Registry[Opener] = Registry("source")
"""Named sets of plugins."""
_OPENERS = {".parquet": open_parquet, ".npz": open_npz, ".safetensors": open_embeddings}


@dataclass(frozen=True)
class SourceInfo:
    """A set that has a name, as `pmal data list` shows it."""

    name: str
    description: str
    files: tuple[str, ...]
    """What it is recognized by, below the data root; other customary folders are looked at as well."""
    plugin: str = ""
    """The module that registered it; it finds its files by itself."""


def register_source(name: str) -> Callable[[Opener], Opener]:
    """Return a decorator that makes a function the data set `name`, for every SOURCE.

    The function gets the data root (None if nobody named one) and returns a `Source`.

    Args:
        name: what a SOURCE calls it.

    Returns:
        A decorator, which returns what it decorates.

    Raises:
        UsageError: The name is taken, or looks like a path.
    """

    def register(opener: Opener) -> Opener:
        if name == SAMPLE or name in NAMED or Path(name).suffix in _OPENERS:
            raise UsageError(f"source '{name}' means something already: choose another name")
        SOURCES.register(name, opener, getattr(opener, "__module__", None))
        return opener

    return register


def list_sources() -> list[SourceInfo]:
    """Return every named set, with what it is looked for as.

    >>> [info.name for info in list_sources()][:3]
    ['sample', 'mnist', 'fashion-mnist']
    """
    sample = SourceInfo(SAMPLE, "600 MNIST images of each digit, embedded", ())
    ours = (SourceInfo(name, known.description, _tells(known)) for name, known in NAMED.items())
    return [sample, *ours, *(_about_plugin(name, opener) for name, opener in SOURCES.items())]


def _about_plugin(name: str, opener: Opener) -> SourceInfo:
    about = (opener.__doc__ or "").strip().partition("\n")[0]
    return SourceInfo(name, about, (), SOURCES.origin(name) or "")


def is_named(source: str) -> bool:
    """Return whether this is the name of a set rather than a path."""
    return source == SAMPLE or source in NAMED or source in SOURCES


def find_source(name: str, data_root: str | Path | None) -> Path | None:
    """Return where a named set lies; None if it is not found, or is one of a plugin. Nothing is read."""
    if name == SAMPLE:
        return _sample_path()
    if name not in NAMED:
        return None
    root = _root(data_root)
    found = _locate(name, root)
    if found is None or (NAMED[name].cifar100_unknown and _locate("cifar100", root) is None):
        return None
    return found[0]


def missing_root(data_root: str | Path | None) -> Path | None:
    """Return the data root that was named if it is no folder, else None."""
    root = _root(data_root)
    return root if root and not root.is_dir() else None


def open_source(source: str, data_root: str | Path | None) -> Source:
    """Return a named set from below the data root (default $PMAL_DATA), or the folder or file at a path."""
    if source == SAMPLE:
        return dataclasses.replace(open_parquet(_sample_path()), name=SAMPLE, digits=True)
    if source in NAMED:
        return _open_named(source, _root(data_root))
    if source in SOURCES:
        return dataclasses.replace(SOURCES[source](_root(data_root)), name=source)
    path = Path(os.path.expanduser(source))
    if source and os.path.exists(path):
        return _open_path(path)
    if any(mark in source for mark in "/\\") or source.startswith(("~", ".")) or path.suffix in _OPENERS:
        raise MissingFileError(f"no such file or folder: {source}")
    names = (SAMPLE, *NAMED, *SOURCES)
    # Most words are meant as folders: only a name that is near is worth suggesting.
    hint = did_you_mean(source, names, cutoff=0.6)
    raise UsageError(
        f"'{source}': no such folder, and no data set of that name:{hint} Valid: {', '.join(names)}"
    )


def open_to_check(source: str, data_root: str | Path | None) -> Source:
    """Return what `open_source` does, but open a folder also with empty classes or an unusable test part."""
    path = Path(os.path.expanduser(source))
    if source and not is_named(source) and path.is_dir() and not _holds_parquet(path):
        return dataclasses.replace(read_folder(path), ignored=list_droppings(path))
    return open_source(source, data_root)


def open_test_samples(source: str, data_root: str | Path | None) -> Samples:
    """Return the test part of a source, or all of one that has a single part.

    Of CIFAR-100, that part suffices.
    """
    if source == "cifar100":
        return _read_cifar100_test(_root(data_root))
    found = open_source(source, data_root)
    return found.train if found.test is None else found.test


def check_outside(out: Path, source: str) -> None:
    """Refuse to write results among the images: the next time they would be read as a class."""
    folder = Path(os.path.expanduser(source))
    if not is_named(source) and not _holds_parquet(folder) and holds_samples_at(folder, out):
        raise UsageError(
            f"--out {out} is in the data {folder}, where it would be read as a class: choose another --out"
        )


def _holds_parquet(folder: Path) -> bool:
    """Return whether a folder holds Parquet files: it is then read by its files, not by class folders."""
    return any(folder.glob("*.parquet"))


def _open_path(path: Path) -> Source:
    if path.is_dir():
        source = open_parquet(path) if _holds_parquet(path) else open_folder(path)
    elif path.suffix in _OPENERS:
        source = (open_embeddings if holds_embeddings(path) else _OPENERS[path.suffix])(path)
    else:
        raise DataError(
            f"{path}: neither a folder nor a .parquet, .npz or .safetensors file: name one of these, "
            "such as the folder that holds one folder of images per class"
        )
    # The name decides which published splits apply: one's own `mnist.npz` is not MNIST.
    own = not is_named(source.name)
    return source if own else dataclasses.replace(source, name=f"{path.parent}{os.sep}{path.name}")


def _open_named(name: str, root: Path | None) -> Source:
    known = NAMED[name]
    path, opener = _locate_or_fail(name, root)
    source = dataclasses.replace(opener(path), name=name, digits=known.digits)
    _check_count(source.train, known.num_classes, path)
    if source.test is None:
        # Figures on a share of the training images would pass for those of the published split.
        raise DataError(
            f"{path}: no test part of '{name}' in it: add test-*.parquet, or a column 'split' in one file"
        )
    if known.cifar100_unknown:
        source = dataclasses.replace(source, foreign=_read_cifar100_test(root))
    return source


def _read_cifar100_test(root: Path | None) -> Samples:
    path, opener = _locate_or_fail("cifar100", root)
    if opener is not open_parquet:
        return read_cifar100_test(path)
    shards = sorted(path.glob("test-*.parquet"))
    # Without a training part the folder is no source of its own, but its one test file is.
    alone = len(shards) == 1 and not any(path.glob("train-*.parquet"))
    source = open_parquet(shards[0] if alone else path)
    samples = source.train if alone else source.test
    if samples is None:
        raise DataError(f"{path}: holds no test part of CIFAR-100; add test-*.parquet")
    _check_count(samples, 100, path)
    return samples


def _check_count(samples: Samples, expected: int, path: Path) -> None:
    if len(samples.class_names) != expected:
        raise DataError(f"{path}: {len(samples.class_names)} classes, but the set has {expected}")


def _root(data_root: str | Path | None) -> Path | None:
    named = data_root or os.environ.get(DATA_ROOT_VARIABLE)
    return Path(os.path.expanduser(named)) if named else None


def _locate_or_fail(name: str, root: Path | None) -> tuple[Path, Callable[[Path], Source]]:
    found = _locate(name, root)
    if found is not None:
        return found
    known, fix = (
        NAMED[name],
        f"name its folder by --data-root, data_root= in Python, or ${DATA_ROOT_VARIABLE}",
    )
    if root is None:
        raise DataError(
            f"data set '{name}' needs a data root: {fix} (looked for: {', '.join(_tells(known))})"
        )
    if not root.is_dir():
        raise MissingFileError(f"data root {root}: no such folder; {fix}")
    files, folders = (", ".join(names) for names in ((*known.files, "*.parquet"), known.folders))
    raise DataError(f"data set '{name}' is not under {root}: no {files} in its folders {folders}; {fix}")


def _locate(name: str, root: Path | None) -> tuple[Path, Callable[[Path], Source]] | None:
    known = NAMED[name]
    folders = [root / folder for folder in known.folders] if root else []
    official = _find_official(folders, known.files)
    # Shards in the data root itself could be of any set.
    shards = _find_shards([folder for folder in folders if folder != root])
    if official is None and shards is not None:
        return shards, open_parquet
    if official is None:
        official = _find_official([Path(folder) for folder in known.fallback], known.files)
    return (official, known.open) if official else None


def _find_official(folders: list[Path], files: tuple[str, ...]) -> Path | None:
    for folder in folders:
        for file in files:
            is_there = os.path.isdir if file.endswith("/") else os.path.isfile
            if is_there(folder / file):
                return folder / file if file.endswith(".tar.gz") else (folder / file).parent
    return None


def _find_shards(folders: list[Path]) -> Path | None:
    """Return the folder of shards, if any.

    Hugging Face's repositories keep them in a folder called `data`.
    """
    places = [place for folder in folders for place in (folder, folder / "data")]
    return next((place for place in places if any(place.glob("*.parquet"))), None)


def _sample_path() -> Path:
    return Path(str(resources.files("pmal") / "data" / "sample" / "mnist-sample.parquet"))


def _tells(known: NamedSet) -> tuple[str, ...]:
    tells = [f"{known.folders[0]}/{file}" for file in (*known.files, "*.parquet")]
    return tuple(tells) + (_tells(NAMED["cifar100"]) if known.cifar100_unknown else ())


def absolute_source(source: str) -> str:
    """Return a path that stays right when it is used from another folder; names stay names."""
    if not source:  # as a path it would be the current folder
        raise UsageError("the SOURCE is empty: name a data set, a folder or a file")
    try:
        source.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{source!r}: the path is not valid UTF-8: rename the folder") from None
    path = os.path.abspath(os.path.expanduser(source))
    return source if is_named(source) or not os.path.exists(path) else path
