"""The folder that a run leaves: one writer at a time, one configuration, files with checksums."""

import contextlib
import fcntl
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pmal._runtime.files import append_line, make_folder, read_json, sha256, write_json, write_text
from pmal._runtime.processes.ranks import ALONE, Ranks
from pmal.config import RunConfig, build, parse_toml, to_settings, to_toml
from pmal.errors import DataError, UsageError
from pmal.methods import METHODS
from pmal.run.stages import discard, stage_named

CONFIG = "config.toml"
MANIFEST = "manifest.json"
REDOING = ".redoing"


class RunFolder:
    """Paths and records of one run, which is done again from the stage `start` on if that is given.

    Of several processes, only the first touches the folder.
    """

    def __init__(self, path: Path, config: RunConfig, start: str | None = None, ranks: Ranks = ALONE) -> None:
        self.path, self.config, self.start, self.ranks = path, config, start, ranks

    def begin(self, stage: str) -> None:
        """Drop what is there if the run is done again from this stage on, once what it needs is there.

        A mark says that this has happened: the same command again, after an interruption, resumes. Without
        the mark, whenever the process dies, the old settings are next to nothing but their own results.
        """
        if stage == self.start:
            self.ranks.by_first(lambda: self._drop_from(stage))

    def _drop_from(self, stage: str) -> None:
        mark, wanted = self.path / REDOING, f"{stage}\n{to_toml(to_settings(self.config))}"
        if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
            return
        mark.unlink(missing_ok=True)
        discard(self.path, stage)
        write_text(self.path / CONFIG, to_toml(to_settings(self.config)))
        write_text(mark, wanted)

    def log(self, **event: Any) -> None:
        if self.ranks.first:
            append_line(self.path / "log.jsonl", json.dumps(event))

    def write(self, name: str, content: Any) -> None:
        """Write a JSON file of the run."""
        self.ranks.by_first(lambda: write_json(self.path / name, content))

    def seal(self, about: Mapping[str, Any]) -> None:
        """Write the manifest: what the run is, and the checksum of every file that is final."""
        path = self.path
        self.ranks.by_first(lambda: write_json(path / MANIFEST, {**about, "sha256": _sums(path, path)}))


def seal_again(run: Path, folder: str) -> None:
    """Replace the checksums of the files in one folder of a finished run, which has changed since."""
    path = run / MANIFEST
    if path.is_file():
        manifest = read_json(path)
        kept = {name: total for name, total in manifest["sha256"].items() if Path(name).parts[0] != folder}
        sums = kept | _sums(run, run / folder)
        write_json(path, {**manifest, "sha256": dict(sorted(sums.items()))})


def check_sums(run: Path) -> None:
    """Refuse a finished run if a file is not what its manifest says; a missing one is reported later."""
    path = run / MANIFEST
    sums = read_json(path).get("sha256", {}) if path.is_file() else {}
    for name, digest in sums.items():
        file = run / name
        if _is_final(Path(name)) and file.is_file() and sha256(file) != digest:
            fix = "restore it, or make it again by `pmal fit --from` its stage"
            raise DataError(
                f"{file}: not the file that the run has left (its sum in {MANIFEST} differs): {fix}"
            )


def _is_final(name: Path) -> bool:
    """Return whether only the run itself writes a file; `pmal report`, `export` and `audit` come later."""
    later = (MANIFEST, "log.jsonl", "report.html", "model.onnx", "model.md")
    return name.parts[0] != "audit" and not (len(name.parts) == 1 and name.name in later)


def _sums(run: Path, folder: Path) -> dict[str, str]:
    """Return checksums of what is final in a folder of a run, by the path from there."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and not f.name.startswith("."))
    final = [f for f in files if _is_final(f.relative_to(run))]
    return {str(f.relative_to(run)): sha256(f) for f in final}


@contextlib.contextmanager
def open_run(
    path: Path, config: RunConfig, start: str | None = None, ranks: Ranks = ALONE
) -> Iterator[RunFolder]:
    """Make the folder, or resume the run in it.

    Its settings must be the same, or concern only what is done again, from the stage `start` on.
    """
    with contextlib.ExitStack() as held:
        ranks.by_first(lambda: _take(path, config, stage_named(start).may_change if start else (), held))
        yield RunFolder(path, config, start, ranks)
        if ranks.first:
            (path / REDOING).unlink(missing_ok=True)


def _take(path: Path, config: RunConfig, may_change: Collection[str], held: contextlib.ExitStack) -> None:
    make_folder(path)
    if not (path / CONFIG).exists() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise UsageError(f"{path} is not empty and holds no run: choose another folder (out)")
    held.enter_context(only_writer(path))
    if (path / CONFIG).exists():
        _check_settings(path, config, may_change)
    else:
        write_text(path / CONFIG, to_toml(to_settings(config)))
    for pattern in (".*.tmp", ".tmp??????"):  # ours, and those of safetensors
        for left_by_a_killed_process in path.rglob(pattern):
            left_by_a_killed_process.unlink()


def read_config(path: Path) -> RunConfig:
    """Return the settings of a run that exists."""
    try:
        text = (path / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        fix = "name the folder that `pmal fit` left"
        raise DataError(f"{path}: not a run folder (no readable {CONFIG} in it): {fix}") from None
    try:
        config = build(RunConfig, parse_toml(text, CONFIG))
    except UsageError as error:  # nobody typed it: the file is damaged, or of another version
        raise DataError(f"{path}: {error}: restore its {CONFIG}, or fit a new run") from None
    if config.method not in METHODS:
        fix = "install the plugin that it comes from, or name it with --plugin"
        raise DataError(f"{path}: its method '{config.method}' is unknown here: {fix}")
    return config


def _check_settings(path: Path, config: RunConfig, may_change: Collection[str]) -> None:
    for name, old, new in changed_settings(path, config):
        if name.partition(".")[0] in may_change:
            continue
        fix = "choose another folder (out), delete the folder, or `pmal fit --from` the stage that it changes"
        raise UsageError(f"{path} was started with {name} = {old!r}, not {new!r}: {fix}")


def changed_settings(path: Path, config: RunConfig) -> Iterator[tuple[str, Any, Any]]:
    """Yield how an existing run's settings differ: the name for `--set`, the run's value, the new one."""
    return _differences(to_settings(read_config(path)), to_settings(config))


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    for name in {**old, **new}:
        a, b = old.get(name), new.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differences(a, b, f"{prefix}{name}.")
        elif a != b:
            yield f"{prefix}{name}", a, b


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep every other process out of a run's folder; fail if one is in it."""
    # The kernel drops the lock when the process ends, however it ends.
    with open(path / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"another process is working in {path}: wait for it, or choose another folder (out)"
            ) from None
        yield
