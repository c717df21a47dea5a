"""First trainings that several cells need, done once.

A classifier is identified by the settings that decide it and by nothing else. A run of any method that
needs it finds it in its folder, as if it had been trained there. Files are hard links if the disk allows
it. Every writer in pmal replaces files and never changes them, so one run cannot change the files of
another.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pmal
from pmal._runtime.files import read_json, sha256, write_json
from pmal._runtime.tensors import has_tensors
from pmal.config import DataConfig, RunConfig, to_settings
from pmal.data.splits.protocols import get_split, list_families, list_sets
from pmal.ensemble.heads import first_head
from pmal.errors import DataError
from pmal.run.run_folder import open_run

_DECIDING = ("seed", "data", "encoder", "training")
_ABOUT = "training.json"

Key = tuple[str, int]
"""Digest of the settings, and which of the classifiers."""


def classifier_keys(config: RunConfig, device: str) -> list[Key]:
    """Return the keys of the classifiers that a run needs, in order."""
    return [(classifier_digest(config, device), index) for index in range(config.classifiers)]


def classifier_digest(config: RunConfig, device: str) -> str:
    """Return the digest of all settings that decide a classifier's weights.

    The device is part of it, because the precision "auto" depends on the device.
    """
    settings = {name: value for name, value in to_settings(config).items() if name in _DECIDING}
    settings["data"] |= _known_part(config.data)
    head = dataclasses.asdict(first_head(config))  # linear for softmax and for methods that start from it
    text = json.dumps([settings, head, device, pmal.__version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _known_part(config: DataConfig) -> dict[str, Any]:
    """Return what decides the known images. Splits with the same known classes share classifiers.

    >>> plus10, plus50 = (DataConfig(source, family="arpl", split=3) for source in ("cifar+10", "cifar+50"))
    >>> _known_part(plus10) == _known_part(plus50)
    True
    """
    if config.source not in list_sets() or config.family not in list_families(config.source):
        return {}
    split = get_split(config.source, config.family, config.split)
    source = "cifar10" if config.source.startswith("cifar+") else config.source
    return {"source": source, "family": "", "split": 0, "known": split.known}


class ClassifierStore:
    """A folder of trained classifiers, by key."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, device

    def place(self, key: Key) -> Path:
        """Return the folder of a classifier."""
        return self.folder / key[0] / str(key[1])

    def __contains__(self, key: Key) -> bool:
        return has_tensors(self.place(key) / "weights")

    def give(self, config: RunConfig, run: Path) -> None:
        """Put the stored classifiers into the folder of a run before it starts.

        Damaged classifiers are deleted from the store.
        """
        keys = classifier_keys(config, self.device)
        with open_run(run, config):
            for key in keys:
                target = run / "classifiers" / str(key[1])
                if key in self and not has_tensors(target / "weights") and self._is_whole(key):
                    _link_weights(self.place(key), target)

    def keep(self, config: RunConfig, run: Path, about: Mapping[int, Mapping[str, Any]]) -> None:
        """Store the classifiers that a run has trained since the last call.

        Args:
            config: settings of the run.
            run: its folder.
            about: how each classifier was trained, by index.
        """
        for key in classifier_keys(config, self.device):
            source = run / "classifiers" / str(key[1])
            if key in self or not has_tensors(source / "weights"):
                continue
            place = self.place(key)
            fresh = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}")
            _link_weights(source, fresh)
            write_json(fresh / _ABOUT, about.get(key[1], {}))
            try:
                os.rename(fresh, place)
            except OSError:  # another process was quicker
                shutil.rmtree(fresh)

    def about(self, key: Key) -> dict[str, Any]:
        """Return what is known about the training of a classifier; empty if nothing is known."""
        path = self.place(key) / _ABOUT
        with contextlib.suppress(DataError):
            return dict(read_json(path)) if path.exists() else {}
        return {}

    def _is_whole(self, key: Key) -> bool:
        place = self.place(key)
        with contextlib.suppress(DataError, KeyError, TypeError, OSError):
            entry = read_json(place / "weights.json")
            if sha256(place / Path(entry["tensors"]).name) == entry["sha256"]:
                return True
        shutil.rmtree(place)
        return False


def _link_weights(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    pointer = "weights.json"
    for name in (Path(read_json(source / pointer)["tensors"]).name, pointer):  # the pointer last
        (target / name).unlink(missing_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:  # another disk
            shutil.copyfile(source / name, target / name)
