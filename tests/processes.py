"""Several processes of one run, started as torchrun starts them, but without its own process beside them."""

import os
import signal
import socket
import subprocess
import sys
from collections import namedtuple

Ended = namedtuple("Ended", "code out err")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(rank, size, port):
    about = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    return {**os.environ, **{name: str(value) for name, value in {**about, **where}.items()}}


def run_processes(*words, size=2, timeout=60):
    """`python WORDS` in every process, to its end: one that hangs fails the test."""
    port, command = free_port(), [sys.executable, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=environment(rank, size, port), **pipes) for rank in range(size)]
    try:
        texts = [process.communicate(timeout=timeout) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    return [Ended(process.returncode, *text) for process, text in zip(started, texts, strict=True)]
