"""Makes the n-th call of each kind fail, in every command that writes, and looks at what is left.

    python -m benchmarks.failures --out benchmarks/results/failures/cpu.json
    python -m benchmarks.failures --only export --kinds write,rename --most 3

A small C library (failing.c) is preloaded. A process that has run every command once forks a child for every
n, which runs the command with the failure; then the command is run again without one. A file that is there
already is added to, if it is of the same revision. What must hold:

- the command succeeds all the same, or ends with one line that begins with "error:" and no traceback;
- what was there before is there still, or the new in its place, whole;
- the second run succeeds, with the same bits as a run that nothing has happened to.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("open", "write", "fsync", "rename", "unlink", "mmap", "memory")
"""As in failing.c: the number of each is its place."""
SHORT = [
    *("--set", "data.limit=20", "--set", "data.image_size=12", "--set", "data.augmentation=none"),
    *("--set", "training.batch_size=32", "--set", "mining.per_class=2", "--set", "encoder.name=small"),
    *("--set", "data.held_out=0.25"),
]
FIT = ["fit", "--epochs", "1", "--checkpoint-seconds", "0", "--no-report", *SHORT]
PATIENCE = 300
TIMES = ("log.jsonl", "manifest.json", "version.json", ".lock")
OLD = "what was there before"
ABORTED = "ended by a library"
"""safetensors and others abort the process where they get no memory: no line, and all else must hold."""

Digest = dict[str, str]


@dataclass(frozen=True)
class Job:
    """A command, what lies in its folder before, and what it leaves that must be the same every time."""

    words: Callable[[Path], list[str]]
    prepare: Callable[[Path, Path], None]
    """(folder of the case, a finished run)."""
    results: Callable[[Path], Digest]
    lines: int = 1
    """Of errors, at most."""
    less: str = ""
    """How a line begins that tells of a result with less in it."""


@dataclass(frozen=True)
class Ended:
    code: int
    error: str
    counts: tuple[int, ...] = ()


def digest(folder: Path) -> Digest:
    # One version more in the history of a model may stay of a change that failed, and of one that did not
    # what it replaced: the next change deletes it.
    files = [f.relative_to(folder) for f in sorted(folder.rglob("*")) if f.is_file() and f.name not in TIMES]
    kept = [name for name in files if name.parts[0] not in ("versions", ".model.old")]
    return {str(name): hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in kept}


def _figures(folder: Path) -> Digest:
    """Of a ledger: what is no time."""
    found = {}
    for path in sorted((folder / "ledger").rglob("*.json")):
        record = json.loads(path.read_text())
        kept = {name: record.get(name) for name in ("cell", "accuracy", "scores", "passes", "settings")}
        found[path.name] = hashlib.sha256(json.dumps(kept).encode()).hexdigest()
    return found


def _copy(folder: Path, run: Path) -> None:
    shutil.copytree(run, folder / "run")


def _with_old_files(folder: Path, run: Path) -> None:
    _copy(folder, run)
    for name in ("model.onnx", "model.md", "report.html"):
        (folder / "run" / name).write_text(OLD)


def _with_images(folder: Path, run: Path) -> None:
    import numpy as np
    from PIL import Image

    _copy(folder, run)
    (folder / "images").mkdir()
    for i in range(6):
        pixels = np.random.default_rng(i).integers(0, 256, (12, 12), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")


def _benchmark(folder: Path) -> list[str]:
    places = ["--out", str(folder / "ledger"), "--work", str(folder / "work")]
    return ["benchmark", "--methods", "softmax", "--epochs", "1", "--encoder", "small", *places, *SHORT[:6]]


JOBS = {
    "fit": Job(
        lambda folder: [*FIT, "--out", str(folder / "run")],
        lambda folder, run: None,
        lambda f: digest(f / "run"),
    ),
    "report": Job(
        lambda folder: ["report", str(folder / "run")], _with_old_files, lambda folder: digest(folder / "run")
    ),
    "export": Job(
        lambda folder: ["export", str(folder / "run"), "--force"],
        _with_old_files,
        lambda f: digest(f / "run"),
        less="not compared on the images of the run",
    ),
    "add-class": Job(
        lambda folder: ["add-class", str(folder / "run"), "new", str(folder / "images")],
        _with_images,
        lambda folder: digest(folder / "run"),
    ),
    "benchmark": Job(_benchmark, lambda folder, run: None, _figures, lines=2),
}


def run_command(words: list[str], kind: int = -1, n: int = 0) -> Ended:
    """Run `pmal WORDS` in a fork of this process, in which the n-th call of a kind fails."""
    with tempfile.TemporaryDirectory() as notes:
        child = os.fork()
        if child == 0:
            os._exit(_in_child(words, kind, n, Path(notes)))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
        signal.alarm(PATIENCE)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        signal.alarm(0)
        counts = Path(notes) / "counts"
        found = tuple(json.loads(counts.read_text())) if counts.exists() else ()
        return Ended(code, (Path(notes) / "error").read_text(errors="replace"), found)


def _in_child(words: list[str], kind: int, n: int, notes: Path) -> int:
    from pmal.__main__ import main

    library = ctypes.CDLL(None)
    library.failing_count.restype = ctypes.c_long
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(notes / name, os.O_CREAT | os.O_WRONLY), number)
    sys.argv, code = ["pmal", *words], 0
    library.failing_arm(kind, ctypes.c_long(n))
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    library.failing_stop()
    sys.stderr.flush()
    (notes / "counts").write_text(json.dumps([library.failing_count(i) for i in range(len(KINDS))]))
    return code


def warm_up(words: list[str]) -> None:
    """Import and compile, in this process, what the command needs: no child has to do it again."""
    from pmal.cli import app

    with open(os.devnull, "w") as void, contextlib.redirect_stdout(void), contextlib.redirect_stderr(void):
        app(words, standalone_mode=False)


def faults(job: Job, folder: Path, before: Digest, after: Digest, failed: Ended) -> list[str]:
    """Return what is wrong after a failure; the command is run again."""
    found, whole = [], after
    lines = [line for line in failed.error.splitlines() if line.startswith("error: ")]
    if not failed.code and job.less and f"\n{job.less}" in f"\n{failed.error}":
        after = job.results(folder)  # done with less, and it was said; the second run does all of it
    if failed.code > 0 and (not 1 <= len(lines) <= job.lines or "Traceback" in failed.error):
        found.append(f"no clear line: {failed.error[-600:]}")
    elif not failed.code and job.results(folder) != after:
        found.append("called done, with another result")
    left = job.results(folder)
    for name, total in left.items():
        if name in before and total not in (before[name], after.get(name)):
            found.append(f"{name} is neither the old one nor the new one")
    if gone := [name for name in before if name in after and name not in left]:
        found.append(f"{gone[0]} is gone")
    again = run_command(job.words(folder))
    after = whole
    if again.code and job.results(folder) != after:  # a class that is there already is not added again
        found.append(f"cannot go on: {again.error[-300:]}")
    elif job.results(folder) != after:
        differ = {
            name
            for name in {**after, **job.results(folder)}
            if after.get(name) != job.results(folder).get(name)
        }
        found.append(f"goes on to other bits: {sorted(differ)[:3]}")
    return found


def try_job(name: str, kinds: list[str], most: int, case: Path, run: Path) -> dict[str, object]:
    """Return for each kind how many calls there are, how many were made to fail, and how that ended."""
    job, about = JOBS[name], {}

    def begin() -> Path:
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        job.prepare(case, run)
        return case

    warm_up(job.words(begin()))
    before = job.results(begin())
    whole = run_command(job.words(case))
    if whole.code:
        raise SystemExit(f"{name} fails by itself: {whole.error}")
    after = job.results(case)
    for kind in kinds:
        number = KINDS.index(kind)
        count = whole.counts[number]
        some = min(most, count)
        chosen = sorted({1 + round(i * (count - 1) / max(1, some - 1)) for i in range(some)})
        ends: Counter[str] = Counter()
        listed = []
        for n in chosen:
            failed = run_command(job.words(begin()), number, n)
            wrong = faults(job, case, before, after, failed)
            end = "one line" if failed.code else "done all the same"
            ends["fault" if wrong else ABORTED if failed.code < 0 else end] += 1
            listed += [f"{kind} {n}: {text}".replace(str(case), "CASE") for text in wrong]
            for text in wrong:
                print(f"{name} {kind} {n}: {text}", flush=True)
        about[kind] = {
            "calls": count,
            "failed": len(chosen),
            **ends,
            **({"faults": listed} if listed else {}),
        }
        print(
            f"{name} {kind}: {json.dumps({k: v for k, v in about[kind].items() if k != 'faults'})}",
            flush=True,
        )
    return about


def preloaded(library: Path, under: Path) -> dict[str, str]:
    """Compile failing.c, and return the environment in which it is preloaded."""
    source = Path(__file__).with_name("failing.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    own = {"LD_PRELOAD": str(library), "FAILING_UNDER": str(under), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(JOBS), help="Commands, by commas.")
    parser.add_argument("--kinds", default=",".join(KINDS), help="By commas.")
    parser.add_argument("--most", type=int, default=10_000, help="Of each kind, evenly spaced.")
    parser.add_argument("--out", type=Path, help="A JSON file of the counts.")
    asked = parser.parse_args()
    if "FAILING_UNDER" not in os.environ:
        with tempfile.TemporaryDirectory(prefix="pmal-failures-") as folder:
            environment = preloaded(Path(folder) / "failing.so", Path(folder) / "case")
            words = [sys.executable, "-m", "benchmarks.failures", *sys.argv[1:]]
            raise SystemExit(subprocess.run(words, env=environment, check=False).returncode)
    raise SystemExit(_try_all(asked))


def _try_all(asked: argparse.Namespace) -> int:
    import onnxscript  # noqa: F401
    import torch

    import pmal.benchmark.cells.running
    import pmal.pipeline
    import pmal.reporting.page.run_report
    import pmal.serving.onnx.exporting  # noqa: F401
    from pmal._runtime.files import make_folder, write_json
    from pmal._runtime.manifest import code_revision, describe_environment

    case, start = Path(os.environ["FAILING_UNDER"]), time.monotonic()
    run = case.with_name("run")
    made = run_command([*FIT, "--out", str(run)])
    if made.code:
        raise SystemExit(made.error)
    jobs: dict[str, dict[str, Any]] = {}
    for name in asked.only.split(","):
        tried = try_job(name, asked.kinds.split(","), asked.most, case, run)
        known = _earlier(asked.out, code_revision())  # now, because another process may have added to it
        jobs = known.get("commands", {})
        kinds = {**jobs.get(name, {}), **tried}
        jobs[name] = {kind: kinds[kind] for kind in KINDS if kind in kinds}
        if asked.out:
            seconds = round(time.monotonic() - start) + known.get("seconds", 0)
            start = time.monotonic()
            about = {"revision": code_revision(), "seconds": seconds}
            hardware = describe_environment(torch.device("cpu"))["hardware"]
            make_folder(asked.out.parent)
            in_order = {command: jobs[command] for command in JOBS if command in jobs}
            write_json(asked.out, {**about, "hardware": hardware, "commands": in_order})
    return int(any("fault" in kind for job in jobs.values() for kind in job.values()))


def _earlier(out: Path | None, revision: str | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.read_text()) if out and out.is_file() else {}
    return found if found.get("revision") == revision else {}


if __name__ == "__main__":
    main()
