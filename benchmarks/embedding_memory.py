"""Peak memory of `pmal fit` with a frozen network, for few and for many photographs.

    python -m benchmarks.embedding_memory [--counts 1000,20000]

Images are decoded and embedded in blocks. What should grow is what is kept of an image alone: 1,280 features,
its digest and its name. Every count runs in a process of its own, in a folder of
generated photographs of 320 x 240 px. Writes benchmarks/results/photos/memory.json.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pmal._runtime.files import write_json
from pmal._runtime.manifest import describe_environment

OUT = Path(__file__).parent / "results" / "photos" / "memory.json"
CLASSES = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", default="1000,20000")
    counts = [int(count) for count in parser.parse_args().counts.split(",")]
    manifest = describe_environment(torch.device("cpu"))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    rows = [measure(count) for count in counts]
    write_json(OUT, {"rows": rows, "manifest": manifest})
    for row in rows:
        print(row)


def measure(count: int) -> dict[str, Any]:
    """Return the peak of the process that embeds so many images and trains the classifiers on them."""
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder) / "photos", count)
        words = ["fit", f"{folder}/photos", "--encoder", "efficientnet_lite0", "--only", "classifiers"]
        start = time.perf_counter()
        child = subprocess.Popen([sys.executable, "-m", "pmal", *words, "--out", f"{folder}/run"])
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"pmal fit ended with {os.waitstatus_to_exitcode(status)}")
        seconds = time.perf_counter() - start
    return {"images": count, "peak_mib": usage.ru_maxrss / 1024, "seconds": seconds}


def write_photos(folder: Path, count: int) -> None:
    """Write smooth random pictures, no two of them alike."""
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
    for number in range(count):
        small = Image.fromarray(random.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        photo = small.resize((320, 240), Image.Resampling.BICUBIC)
        photo.save(folder / f"class{number % CLASSES}" / f"{number}.jpg")


if __name__ == "__main__":
    main()
