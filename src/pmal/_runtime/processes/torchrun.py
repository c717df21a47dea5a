"""How a process joins the others that torchrun started, and how it leaves them without hanging."""

import atexit
import contextlib
import datetime
import hashlib
import os
import signal
import sys
from typing import Any, NoReturn

import torch

from pmal._runtime.devices import choose_device
from pmal._runtime.processes.launch import Launch, read_launch
from pmal._runtime.processes.ranks import ALONE, Lost, RankGroup, Ranks
from pmal._runtime.signals import STOPPING
from pmal.errors import PmalError, UsageError, first_line

PATIENCE = datetime.timedelta(hours=1)
"""How long one process may work alone while the others wait for it. A dead process is noticed at once."""

_opened: dict[str, Any] = {}


def open_ranks(device: str = "auto") -> Ranks:
    """Join the other processes. Each takes the GPU with its local number, or the CPU."""
    launch = read_launch()
    if launch.size == 1:
        return ALONE
    if "ranks" not in _opened:
        _opened.update(_join(launch, local_device(device, launch)))
        atexit.register(_leave)
    ranks: Ranks = _opened["ranks"]
    return ranks


def local_device(name: str, launch: Launch) -> torch.device:
    """Return the device of this process.

    Raises:
        UsageError: several processes would have to share one GPU.
    """
    device = choose_device(name)
    if launch.size == 1 or device.type == "cpu":
        return device
    if device.index is not None:
        raise UsageError(f"--device {name} with {launch.size} processes: use --device cuda, one GPU for each")
    if launch.local_size > torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} GPUs are seen"
        raise UsageError(f"--nproc-per-node={launch.local_size}, but {seen}: start one process for each")
    return torch.device("cuda", launch.local_rank)


def _join(launch: Launch, device: torch.device) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    try:
        shared, rank, size = next(rendezvous("env://", timeout=datetime.timedelta(minutes=5)))
        # torchrun may restart all processes (--max-restarts): the new ones must not meet the old ones.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"pmal/{attempt}", shared)  # type: ignore[attr-defined]
        dist.init_process_group(
            # CPU tensors always go through gloo: NCCL notices a dead peer late.
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=store,
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
            device_id=device if on_gpu else None,
        )
    except (RuntimeError, ValueError) as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise PmalError(f"{launch.size} processes could not meet at {place}: {first_line(error)}") from None
    return {"ranks": RankGroup(rank, size), "store": store}


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def finish_rank(code: int) -> None:
    """End the process after its work, if it is one of several, once the others have finished.

    It exits at once: at interpreter shutdown, running threads of torch.distributed can abort the process.
    """
    if "ranks" in _opened:
        with contextlib.suppress(Lost):
            _opened["ranks"].largest(0)
        atexit.unregister(_leave)
        atexit._run_exitfuncs()  # these end the processes that decode images
        _exit(code)


def fail_rank(error: BaseException, message: str, code: int) -> NoReturn:
    """Print the error, once for all processes, and exit at once.

    A normal shutdown would wait for exchanges that no process answers any more.
    """
    for number in STOPPING:  # torchrun ends the others as soon as one has ended
        signal.signal(number, signal.SIG_IGN)
    if _first_to_say(error, message):
        print(message, file=sys.stderr)
    _exit(code)


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _first_to_say(error: BaseException, message: str) -> bool:
    """Return whether no other process has printed this message or the error that caused it."""
    if "store" not in _opened:  # before they meet, all processes of a machine fail in the same way
        return not isinstance(error, UsageError) or os.environ.get("LOCAL_RANK", "0") == "0"
    store = _opened["store"]
    digest = hashlib.sha256(message.encode()).hexdigest()
    try:
        if isinstance(error, Lost) and store.check(["pmal/said"]):
            return False
        store.set("pmal/said", "1")
        return bool(store.add(f"pmal/said/{digest}", 1) == 1)
    except RuntimeError:  # the process that kept the store is gone
        return True
