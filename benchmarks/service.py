"""The service under load: python -m benchmarks.service RUN (the folder that `pmal fit` left)

    --clients 200 --seconds 60   good and bad requests mixed: every good answer against a single request's
    --rate-seconds 10            then good requests alone, with micro-batches and one image at a time
    --note TEXT                  what else the machine was doing
    --against SRC                alone: in turns with another version, whose `src` folder this is

Server and clients share the machine. Writes benchmarks/results/service/NAME.json. Fails where an answer was
wrong, a status was not the right one, or memory grew.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.service_load import Answer, Ask, Tally, exchange, good, mixed, run_clients
from pmal._runtime.files import make_folder, write_json
from pmal._runtime.manifest import describe_environment
from pmal.data.samples import evenly
from pmal.data.sources.readers import open_source
from pmal.errors import PmalError
from pmal.serving.http.served_model import model_loader

RESULTS = Path(__file__).parent / "results" / "service"
IMAGES, RATE_CLIENTS, WARM_SECONDS = 200, 32, 8.0
FLAT = 0.05
"""How much more memory at the end than after a third of the time still counts as flat."""


def sample_files() -> list[bytes]:
    """Test images of the embedded sample, of known and unknown digits."""
    test = open_source("sample", None).test
    return [test.store.encoded(int(test.ids[i])) for i in evenly(len(test), IMAGES)]


@contextmanager
def server(run: Path, *options: str, code: Path | None = None) -> Iterator[tuple[int, int]]:
    """Process number and port of a service, which must end with exit code 0.

    code: the `src` folder of another version of the program.
    """
    command = [sys.executable, "-m", "pmal", "serve", str(run), "--port", "0", "--json", *options]
    variables = os.environ | ({"PYTHONPATH": str(code)} if code else {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield process.pid, int(url.rstrip("/").rsplit(":", 1)[1])
        process.send_signal(signal.SIGTERM)
        if process.wait(40) != 0:
            raise PmalError(f"the service ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()


async def single_answers(port: int, files: list[bytes]) -> list[Answer]:
    """One request after the other, by one client."""
    found: list[Answer] = []
    for i in range(len(files)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        found += (await exchange(good(files, i), reader, writer))[1]
        writer.close()
    return found


async def watch_memory(process: int, seconds: float) -> list[float]:
    """Resident MB, once a second."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        found.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        await asyncio.sleep(1)
    return found


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure_load(run: Path, files: list[bytes], clients: int, seconds: float) -> dict[str, Any]:
    with server(run) as (process, port):
        expected = await single_answers(port, files)
        make = partial(mixed, files)
        await run_clients(port, make, expected, clients, WARM_SECONDS)
        memory_task = asyncio.create_task(watch_memory(process, seconds))
        tally = await run_clients(port, make, expected, clients, seconds)
        memory = await memory_task
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": sum(tally.statuses.values()),
        "statuses": dict(sorted(tally.statuses.items())),
        "good_images": tally.images,
        "wrong": len(tally.wrong),
        "first_wrong": tally.wrong[:5],
        **_latency(tally),
        "memory_mb": [round(value, 1) for value in memory],
        "memory_growth": max(memory[-3:]) / max(memory[: len(memory) // 3]) - 1,
    }


async def measure_rate(
    run: Path, files: list[bytes], seconds: float, *options: str, code: Path | None = None
) -> dict[str, Any]:
    """Good requests of one image. Per second of the server's processor time, other load hardly counts."""
    with server(run, *options, code=code) as (process, port):
        expected = await single_answers(port, files)

        def make(choose: random.Random) -> Ask:
            return good(files, choose.randrange(len(files)))

        await run_clients(port, make, expected, RATE_CLIENTS, 1.0)
        before = processor_seconds(process)
        tally = await run_clients(port, make, expected, RATE_CLIENTS, seconds)
        used = processor_seconds(process) - before
    return {
        "options": " ".join(options),
        "clients": RATE_CLIENTS,
        "requests_per_s": len(tally.seconds) / seconds,
        "requests_per_processor_s": len(tally.seconds) / used,
        "wrong": len(tally.wrong),
        **_latency(tally),
    }


def measure_calls(run: Path, files: list[bytes], seconds: float, batch: int) -> dict[str, Any]:
    """The same without HTTP: decoded, answered and described in this process, `batch` images at a time."""
    served, done = model_loader(run, torch.device("cpu"), batch)(), 0
    begin, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < seconds:
        chosen = [files[(done + i) % len(files)] for i in range(batch)]
        served.answer([(served.decode(file, 10**6), "", 3) for file in chosen])
        done += batch
    wall, used = time.perf_counter() - begin, time.process_time() - used
    return {"batch": batch, "images_per_s": done / wall, "images_per_processor_s": done / used}


def _latency(tally: Tally) -> dict[str, float]:
    seconds = tally.seconds or [float("nan")]
    tail = float(np.quantile(seconds, 0.99, method="inverted_cdf"))
    return {"median_ms": 1e3 * statistics.median(seconds), "p99_ms": 1e3 * tail}


def compare(run: Path, files: list[bytes], seconds: float, other: Path, turns: int = 2) -> dict[str, Any]:
    """Good requests to this version and to another, in turns, so that both meet the same other load."""
    found: dict[str, list[dict[str, Any]]] = {"other": [], "this": []}
    for _ in range(turns):
        for name, code in (("other", other), ("this", None)):
            found[name].append(asyncio.run(measure_rate(run, files, seconds, code=code)))
    ratios = {}
    for figure in ("requests_per_s", "requests_per_processor_s", "median_ms", "p99_ms"):
        this, before = (statistics.median(turn[figure] for turn in found[name]) for name in ("this", "other"))
        ratios[figure] = {"other": before, "this": this, "ratio": this / before}
    return {"medians": ratios, "turns": found}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="cpu")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate-seconds", type=float, default=10)
    parser.add_argument("--note", default="")
    parser.add_argument("--against", type=Path)
    return parser.parse_args()


def main() -> None:
    args, files = parse_arguments(), sample_files()
    if args.against:
        found = compare(args.run, files, args.rate_seconds, args.against)
        print(json.dumps(found["medians"], indent=2))
        about = {"command": "python -m benchmarks.service RUN --against SRC", "note": args.note}
        manifest = {"manifest": describe_environment(torch.device("cpu"))}
        write_json(make_folder(RESULTS) / f"{args.name}.json", about | found | manifest)
        return
    load = asyncio.run(measure_load(args.run, files, args.clients, args.seconds))
    print(json.dumps({name: value for name, value in load.items() if name != "memory_mb"}, indent=2))
    rates = {
        "micro-batches": asyncio.run(measure_rate(args.run, files, args.rate_seconds)),
        "one at a time": asyncio.run(measure_rate(args.run, files, args.rate_seconds, "--batch", "1")),
    }
    calls = {str(batch): measure_calls(args.run, files, args.rate_seconds / 4, batch) for batch in (1, 8)}
    found = {
        "command": f"python -m benchmarks.service RUN --clients {args.clients} --seconds {args.seconds:g}",
        "note": args.note,
        "load": load,
        "rates": rates,
        "without_http": calls,
        "manifest": describe_environment(torch.device("cpu")),
    }
    print(json.dumps({"rates": rates, "without_http": calls}, indent=2))
    write_json(make_folder(RESULTS) / f"{args.name}.json", found)
    failures = [f"wrong: {load['first_wrong']}"] if load["wrong"] else []
    failures += [f"memory grew by {load['memory_growth']:.1%}"] if load["memory_growth"] > FLAT else []
    if failures:
        raise SystemExit("; ".join(failures))


if __name__ == "__main__":
    main()
