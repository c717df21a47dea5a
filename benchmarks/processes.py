"""Worker processes beside what stood in their place: python -m benchmarks.processes --json RESULT.json

Start: seconds until 16 of them have begun with a set of as many names as ImageNet-LT, and have ended; each a
new interpreter (spawned), or forked from one process that has torch imported, the first time and later.
Verification: images per second in threads, and in processes, their start and end counted in.

In a file of its own: a new process imports the main module, and those of other benchmarks import more than
the command line's does.
"""

import argparse
import itertools
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.synthetic import write_pictures
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal.data.decoding.fitting import ImageShape
from pmal.data.decoding.loading import MANY_IMAGES, SampleDataset, verify_images
from pmal.data.feeding.workers import Workers
from pmal.data.samples import Samples
from pmal.data.sources.folder import FileStore, PathTable

PROCESSES, NAMES, DISTINCT = 16, 115_562, 64
VERIFIED = 4 * MANY_IMAGES


def samples_of(folder: str, files: list[str], count: int) -> Samples:
    """Photographs under many names: a few files again and again."""
    names = itertools.islice(itertools.cycle(files), count)
    return Samples.whole(FileStore(folder, PathTable(names)), np.zeros(count, np.int64), ("all",))


def measure(folder: str) -> dict[str, float]:
    files = write_pictures(folder, DISTINCT)
    dataset = SampleDataset(samples_of(folder, files, NAMES), ImageShape(224, 3))
    plan = torch.arange(PROCESSES).split(1)
    verified = samples_of(folder, files, VERIFIED)

    def start() -> None:
        workers = Workers(dataset, PROCESSES)
        list(workers.results(plan))
        workers.end()

    def verify(many: int) -> None:
        with mock.patch("pmal.data.decoding.loading.MANY_IMAGES", many):
            verify_images(verified)

    spawn = multiprocessing.get_context("spawn")
    spawning = mock.patch("pmal.data.feeding.workers._starter", return_value=spawn)
    found: dict[str, float] = {"started": PROCESSES, "names": NAMES, "verified": VERIFIED}
    found |= {"start_forked_first_s": seconds_of(start), "start_forked_s": seconds_of(start)}
    with spawning:
        found["start_spawned_s"] = seconds_of(start)
    for name, many in (("threads", VERIFIED + 1), ("processes", VERIFIED)):
        found[f"verified_in_{name}_per_s"] = VERIFIED / seconds_of(lambda many=many: verify(many))
    return found


def seconds_of(work: Callable[[], None]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(folder)
    print(json.dumps(found, indent=2))
    if options.json:
        make_folder(options.json.parent)
        about = describe_environment(torch.device("cpu"))
        write_json(options.json, {"processes": found, "manifest": about})


if __name__ == "__main__":
    main()
