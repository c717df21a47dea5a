"""Commands in README and docs: what bash makes of them, and the folder that they are run in.

Each `sh` block is run by bash, with stand-ins in the place of programs: they note their words and do
nothing. So quotes, loops and redirections are bash's own, and a program without a stand-in fails the block.
"""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from pmal.data.decoding.decode import encode_png
from pmal.data.samples import ArrayStore, Samples
from pmal.data.sources.parquet import write_parquet
from pmal.data.sources.readers import open_source
from tests.support.hanging import HANGING

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTED = ("pmal", "torchrun", "curl", "make", "pip")
"""Programs that note their words. What is done with each is said in test_documented_commands.py."""
REAL = ("bash", "head")
SLURM = {"SLURM_JOB_NODELIST": "node0", "SLURM_NNODES": "4", "SLURM_NODEID": "0"}
STAND_IN = r"""#!/bin/bash
case ${0##*/} in
  srun) exec "$@" ;;
  scontrol) echo node0 ;;
  *) printf '%s\0' "$#" "${0##*/}" "$@" >> "$CALLS" ;;
esac
"""
MADE_UP = {
    "mnist": (10, 1),
    "cifar10": (10, 3),
    "cifar100": (100, 3),
    "tinyimagenet": (200, 3),
    "imagenet": (1000, 3),
}
"""Stand-ins of the public sets: classes, channels."""
SINGLE_IMAGES = ("new.jpg", "a.jpg", "b.png", "holiday/1.jpg", "holiday/2.jpg")
CLASSES = ("cat", "dog", "owl", "fox", "wolf")


@dataclass(frozen=True)
class Block:
    """A fenced part of a page: sh, python or text."""

    kind: str
    text: str
    line: int


def blocks_of(text):
    """The fenced parts of a page, in order."""
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)
    return [Block(part[1], part[2], text[: part.start()].count("\n") + 1) for part in found]


def calls_of(script, folder):
    """The programs that a block starts, each as its list of words."""
    tools = folder / "stand-ins"
    if not tools.exists():
        tools.mkdir()
        (tools / "stand-in").write_text(STAND_IN)
        (tools / "stand-in").chmod(0o755)
        for name in (*NOTED, "srun", "scontrol"):
            (tools / name).symlink_to("stand-in")
        for name in REAL:
            (tools / name).symlink_to(shutil.which(name))
    calls = folder / "calls"
    calls.write_bytes(b"")
    environment = {"PATH": str(tools), "CALLS": str(calls), "HOME": str(folder), **SLURM}
    words = [str(tools / "bash"), "-eu", "-o", "pipefail", "-c", script]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    noted = iter(calls.read_bytes().decode().split("\0")[:-1])
    return [list(islice(noted, int(count) + 1)) for count in noted]


def make_sandbox(folder):
    """What the pages take for granted: photographs by class, embeddings, public data sets, a ledger."""
    digits = open_source("sample", None).train
    images = [[digits.read(i) for i in np.flatnonzero(digits.labels == k)[:70]] for k in range(len(CLASSES))]
    for name, pictures in zip(CLASSES, images, strict=True):
        for i, picture in enumerate(pictures[:64]):
            _write(folder / "photos" / name / f"{name}-{i:02d}.png", picture)
    for name, picture in zip(SINGLE_IMAGES, images[0][64:], strict=False):
        _write(folder / name, picture)
    _write_embeddings(folder / "features.npz")
    random = np.random.default_rng(0)
    np.savez(folder / "otter.npz", embeddings=random.normal(3.0, size=(20, 32)).astype("float32"))
    (folder / "names.csv").write_text(_table("fox"))
    (folder / "corrections.csv").write_text(_table("cat"))
    (folder / "monday.json").write_text(json.dumps({"answers": [{"p_value": 1.0}]}))
    (folder / "rows.json").write_text(json.dumps({"embeddings": random.normal(size=(2, 32)).tolist()}))
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    for name, (classes, channels) in MADE_UP.items():
        write_parquet(folder / "data" / name / "all.parquet", _made_up_set(classes, channels))
    for cell in (ROOT / "benchmarks" / "results").glob("*/sample-arpl0-small-sample*-seed0.json"):
        target = folder / "benchmarks" / "results" / cell.parent.name / cell.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(cell.read_bytes())


def _table(name):
    """Images of one class as a page gives them back; of no class that a run was trained on by this name."""
    rows = [f"photos/{name}/{name}-{i:02d}.png,1,{name}" for i in range(6)]
    return "\n".join(["file,group,name", *rows]) + "\n"


def _write(path, picture):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_png(picture))


def _write_embeddings(path, classes=4, count=120, channels=8):
    random = np.random.default_rng(0)
    labels = np.arange(count) % classes
    spaces = {f"W_{u}": random.normal(size=(classes, channels)).astype("float32") for u in (0, 1)}
    noise = random.normal(size=(2, count, channels)).astype("float32")
    spaces |= {f"z_{u}": spaces[f"W_{u}"][labels] * 3 + noise[u] for u in (0, 1)}
    np.savez(path, labels=labels, **spaces)


def _made_up_set(classes, channels):
    """A public set's classes and parts, with noise for images."""
    names = tuple(f"class {k:03d}" for k in range(classes))
    random = np.random.default_rng(0)

    def part(origin, per_class):
        labels = np.repeat(np.arange(classes), per_class)
        pixels = random.integers(0, 256, (len(labels), 8, 8, channels), dtype=np.uint8)
        return Samples.whole(ArrayStore(origin, pixels), labels, names)

    return {"train": part("train", 3 if classes > 10 else 12), "test": part("test", 1 if classes > 10 else 3)}
