"""Several processes of one run, started as torchrun starts them: the starter keeps the store they meet at."""

import os
import signal
import subprocess
import sys
from collections import namedtuple
from datetime import timedelta

from torch.distributed import TCPStore

from tests.support.hanging import HANGING

Ended = namedtuple("Ended", ["code", "out", "err"])


def environment(rank, size, port):
    about = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": True}
    return {**os.environ, **{k: str(v) for k, v in {**about, **where}.items()}}


def run_processes(*words, size=2, folders=(None, None)):
    """`python WORDS` in every process, in its own folder, to its end: one that hangs fails the test.

    So does one that waits for another that is gone: it would for an hour.
    """
    patience = timedelta(seconds=HANGING)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    command = [sys.executable, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(command, env=environment(rank, size, store.port), cwd=folders[rank], **pipes)
        for rank in range(size)
    ]
    try:
        texts = [process.communicate(timeout=HANGING) for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    return [Ended(process.returncode, *text) for process, text in zip(started, texts, strict=True)]
