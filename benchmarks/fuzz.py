"""Changes good files at random and reads them: a reader answers, or refuses in one line, and nothing else.

    python -m benchmarks.fuzz --minutes 30 --out benchmarks/results/fuzz/readers.json

A finding is any other exception, a process that ends, ten seconds without an answer, or more memory than the
files of this size need (two GiB). It is written to `--found`, from where it goes, made smaller by hand, to
tests/whole_runs/found/. Inputs that made a reader say something new are kept and changed further.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.fuzz_readers import READERS, seeds_of
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import code_revision

ROOM = 2 << 30
PATIENCE = 10
MOST_KEPT = 400
NUMBERS = [n.to_bytes(size, order) for size in (1, 2, 4, 8) for order in ("little", "big") for n in (
    0, 1, 127, 128, 2 ** (8 * size - 1) - 1, 2 ** (8 * size - 1), 2 ** (8 * size) - 1)]  # fmt: skip
TEXTS = [
    b"-1",
    b"1e999",
    b"NaN",
    b"null",
    b"9" * 400,
    b"[" * 2000,
    b"\xff\xfe",
    b"\0",
    b'"',
    b"{}",
    b"\xed\xa0\x80",
]


class Slow(BaseException):
    """No `Exception`: a reader that takes any of these for damage would hide it."""


def changed(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """Return a copy with one to four changes.

    >>> changed(b"abcdef", b"xyz", random.Random(1)) != b"abcdef"
    True
    """
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at, size = chance.randrange(len(found) + 1), chance.choice((1, 1, 2, 4, 8, 64))
        kind = chance.randrange(8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            found[at : at + size] = chance.randbytes(size)
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            number = chance.choice(NUMBERS)
            found[at : at + len(number)] = number
        elif kind == 4:
            found[at:at] = chance.choice(TEXTS)
        elif kind == 5:
            found[at:at] = found[at : at + size] * chance.randrange(1, 5)
        elif kind == 6:
            start = chance.randrange(len(other) + 1)
            found[at : at + size] = other[start : start + size]
        elif chance.random() < 0.3:
            del found[at:]
    return bytes(found)


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Slow

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)


def ask(name: str, data: bytes, folder: Path) -> tuple[str, bool]:
    """Return what a reader says to a file, and whether it may say so."""
    from pmal.errors import PmalError

    file, _, read = READERS[name]
    path = folder / file
    path.write_bytes(data)
    try:
        with impatient(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = read(path)
        return _kind(f"read {found}" if isinstance(found, str) else "read"), True
    except PmalError as error:
        return _kind(str(error).replace(str(folder), "")), "\n" not in str(error)
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"[:300], False


def _kind(said: str) -> str:
    return "".join(c for c in said if not c.isdigit())[:60]


def fuzz(name: str, seconds: float, seed: int, found: Path, state: Path) -> None:
    """Go on for so long; what was done stands in `state` at any time, the file at hand in `state`.input."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    chance, corpus = random.Random(seed), seeds_of(name)
    seen: dict[str, int] = {}
    counts = {"inputs": 0, "seeds": len(corpus), "answered": 0}
    with tempfile.TemporaryDirectory() as folder:
        for data in corpus:
            said, _ = ask(name, data, Path(folder))
            seen[said] = 0
        resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))
        end, last = time.monotonic() + seconds, 0.0
        while time.monotonic() < end:
            data = changed(chance.choice(corpus), chance.choice(corpus), chance)
            state.with_suffix(".input").write_bytes(data)
            said, sound = ask(name, data, Path(folder))
            counts["inputs"] += 1
            counts["answered"] += said.startswith("read")
            if said not in seen and len(corpus) < MOST_KEPT:
                corpus.append(data)
                if not sound:
                    (found / f"{name.replace(' ', '-')}-{seed}-{counts['inputs']}").write_bytes(data)
                    print(f"{name}: {said}", flush=True)
            seen[said] = seen.get(said, 0) + 1
            if time.monotonic() - last > 1:
                last = time.monotonic()
                about = {
                    **counts,
                    "corpus": len(corpus),
                    "corpus_bytes": sum(map(len, corpus)),
                    "said": len(seen),
                }
                state.write_text(json.dumps(about))


def run(name: str, seconds: float, seed: int, found: Path) -> dict[str, int]:
    """The same in processes of its own: one that ends before its time is a finding, and another goes on."""
    total: dict[str, int] = {}
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        while (left := end - time.monotonic()) > 1:
            state = Path(folder) / "state"
            words = ["--child", name, "--seconds", str(left), "--seed", str(seed), "--found", str(found)]
            done = subprocess.run([sys.executable, "-m", "benchmarks.fuzz", *words, "--state", str(state)])
            about = json.loads(state.read_text()) if state.exists() else {}
            for key, value in about.items():
                total[key] = total.get(key, 0) + value if key in ("inputs", "answered") else value
            if done.returncode:
                total["ended"] = total.get("ended", 0) + 1
                data = state.with_suffix(".input")
                if data.exists():
                    (found / f"{name.replace(' ', '-')}-{seed}-ended").write_bytes(data.read_bytes())
                print(f"{name}: the process ended with {done.returncode}", flush=True)
            seed += 1000
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="Of all readers together.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="A JSON file of the counts.")
    parser.add_argument("--found", type=Path, default=Path("runs/fuzz"), help="A folder for findings.")
    parser.add_argument("--only", help="One reader.")
    for hidden in ("--child", "--seconds", "--state"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    make_folder(asked.found)
    if asked.child:
        fuzz(asked.child, float(asked.seconds), asked.seed, asked.found, Path(asked.state))
        return
    names = [asked.only] if asked.only else list(READERS)
    readers = {name: run(name, 60 * asked.minutes / len(names), asked.seed, asked.found) for name in names}
    findings = len(os.listdir(asked.found))
    about = {"revision": code_revision(), "minutes": asked.minutes, "seed": asked.seed, "findings": findings}
    text = json.dumps({**about, "inputs": sum(one.get("inputs", 0) for one in readers.values())})
    print(text)
    if asked.out:
        make_folder(asked.out.parent)
        write_json(asked.out, {**about, "readers": readers})


if __name__ == "__main__":
    main()
