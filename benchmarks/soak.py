"""The service for a while, with all that can go wrong in turn: python -m benchmarks.soak RUN --minutes 60

    --clients 50     good and bad requests mixed, all the time, on loopback addresses
    --note TEXT      what else the machine was doing

Every 5 s one event, in turn: a reload, a damaged model at a reload, a full disk, idle connections; and twice
in all a kill of the process, with a new one in its place. A full disk is a limit of 0 bytes on every file
that the process writes. Writes benchmarks/results/service/soak.json. Fails where an answer was wrong, or
memory grew.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.service import RESULTS, sample_files, single_answers
from benchmarks.service_load import Tally, mixed, run_clients
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment

MOST_MINUTES, EVENT_SECONDS, IDLE = 240.0, 5.0, 300
LIVES = 3
SETTLED_SECONDS, FLAT = 600, 0.05
"""After so long, or half the life of a process if that is less, its memory may grow by this share."""


class Soaked:
    """A service whose process is replaced when it is killed."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.model, self.log = folder / "model", (folder / "log").open("w+")
        shutil.copytree(run / "model", self.model)
        self.events: Counter[str] = Counter()
        self.memory: list[list[float]] = []
        self.port = 0
        self.process = self.start()

    def start(self) -> subprocess.Popen[str]:
        words = ("serve", str(self.model), "--port", str(self.port), "--json", "--client-queue", "512")
        command = [sys.executable, "-m", "pmal", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        assert process.stdout is not None
        self.port = int(json.loads(process.stdout.readline())["url"].rstrip("/").rsplit(":", 1)[1])
        self.memory.append([])
        return process

    async def watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):  # between a kill and the next process
                pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
                self.memory[-1].append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
            await asyncio.sleep(1)

    async def reload(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    async def reload_damaged(self) -> None:
        """The old model goes on answering."""
        record = self.model / "model.json"
        whole = record.read_bytes()
        record.write_bytes(whole[: len(whole) // 2])
        self.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(EVENT_SECONDS / 2)
        record.write_bytes(whole)

    async def fill_disk(self) -> None:
        limits = resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
        await asyncio.sleep(EVENT_SECONDS / 2)
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, limits)

    async def stay_idle(self) -> None:
        opened = [
            await asyncio.open_connection("127.0.0.1", self.port, local_addr=("127.0.0.2", 0))
            for _ in range(IDLE)
        ]
        await asyncio.sleep(EVENT_SECONDS / 2)
        for _, writer in opened:
            writer.close()

    async def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = await asyncio.to_thread(self.start)

    def growth(self) -> float:
        """The largest growth of a process after it had settled; there is a figure for each second."""
        found = []
        for life in self.memory:
            settled = min(SETTLED_SECONDS, len(life) // 2)
            found += [max(life[settled:]) / max(life[:settled]) - 1] if settled else []
        return max(found, default=0.0)


async def soak(service: Soaked, files: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Load and events side by side, until the time is over."""
    expected = await single_answers(service.port, files)
    tally, end = Tally(), time.monotonic() + seconds
    load = asyncio.create_task(keep_asking(service, files, expected, clients, end, tally))
    plan = (service.reload, service.reload_damaged, service.fill_disk, service.stay_idle)
    watch = asyncio.create_task(service.watch())
    turns = int(seconds / EVENT_SECONDS)
    for turn in range(turns):
        is_last = turn % max(1, turns // LIVES) == turns // LIVES - 1 and turn < turns - turns // LIVES
        event = service.kill if is_last else plan[turn % len(plan)]
        begin = time.monotonic()
        await event()
        service.events[event.__name__] += 1
        await asyncio.sleep(max(0.0, min(begin + EVENT_SECONDS, end) - time.monotonic()))
        if time.monotonic() >= end:
            break
    await load
    watch.cancel()
    again = await single_answers(service.port, files)
    tally.wrong += ["after the load, another answer"] if again != expected else []
    return {
        "clients": clients,
        "seconds": seconds,
        "events": dict(service.events),
        "requests": sum(tally.statuses.values()),
        "statuses": dict(sorted(tally.statuses.items())),
        "answers_compared": tally.images,
        "wrong": len(tally.wrong),
        "first_wrong": tally.wrong[:5],
        "memory_mb": [
            [round(life[0], 1), round(max(life), 1), round(life[-1], 1)] for life in service.memory
        ],
        "memory_growth": service.growth(),
    }


async def keep_asking(
    service: Soaked, files: list[bytes], expected: list[Any], clients: int, end: float, tally: Tally
) -> None:
    """Clients that come back after a kill."""
    make = partial(mixed, files)
    while (left := end - time.monotonic()) > 0:
        try:
            found = await run_clients(service.port, make, expected, clients, min(left, EVENT_SECONDS))
        except OSError:  # nobody listens while a new process starts
            service.events["no service"] += 1
            await asyncio.sleep(0.5)
            continue
        # A connection that a kill cut off is no wrong answer.
        tally.wrong += [text for text in found.wrong if not text.endswith("status 0")]
        tally.statuses += found.statuses
        tally.seconds += found.seconds
        tally.images += found.images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    seconds = 60 * min(args.minutes, MOST_MINUTES)
    with tempfile.TemporaryDirectory() as folder:
        service = Soaked(args.run, Path(folder))
        try:
            found = asyncio.run(soak(service, sample_files(), args.clients, seconds))
            service.process.send_signal(signal.SIGTERM)
            found["exit_code"] = service.process.wait(60)
        finally:
            service.process.kill()
            service.process.wait()
        service.log.seek(0)
        lines = service.log.read().splitlines()
        found["log_lines"], found["tracebacks"] = len(lines), sum("Traceback" in line for line in lines)
        service.log.close()
    print(json.dumps(found, indent=2))
    about = {"command": f"python -m benchmarks.soak RUN --minutes {seconds / 60:g}", "note": args.note}
    manifest = {"manifest": describe_environment(torch.device("cpu"))}
    write_json(make_folder(RESULTS) / "soak.json", about | found | manifest)
    if found["wrong"] or found["memory_growth"] > FLAT or found["exit_code"]:
        raise SystemExit("wrong answers, growing memory, or no orderly end: see above")


if __name__ == "__main__":
    main()
