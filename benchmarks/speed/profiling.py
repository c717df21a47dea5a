"""Where the time of a training step goes: kernels by kind, the longest of them, and how long none runs."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.speed.variants import use_variant
from pmal._runtime.devices import convolutions
from pmal._runtime.seeds import seeded
from pmal._runtime.session import Session
from pmal.speed.contestants import Case, Contestant, Plan, plain_training, pmal_training, set_up

# The first that matches counts. Fused kernels carry the names of all they do.
KINDS = {
    "optimizer": r"sgd|adam|multi_tensor",
    "batch norm": r"batch_?norm|bn_(fw|bw)|\bbn\b|bnorm",
    "layout": r"nchwtonhwc|nhwctonchw|tensor_transform|transpose|permute",
    "convolution": r"conv|xmma_(fprop|dgrad|wgrad)|fprop|dgrad|wgrad|implicit_gemm|cudnn",
    "matrix product": r"gemm|nvjet|cutlass|cublas|::mm|addmm|bmm|matmul|splitk",
    "copy": r"memcpy|memset|copy_|::copy|::clone|::_to_copy",
    "elementwise": r"elementwise|vectorized|triton|reduce|softmax|nll|gather|index|scatter|cat|fill|random"
    r"|distribution|aten::",
}
TOP = 12


@dataclass(frozen=True)
class Kernel:
    """One piece of work of the device, in microseconds."""

    name: str
    start: float
    end: float


def kind_of(name: str) -> str:
    """Which part of a step a kernel belongs to, by its name.

    >>> kind_of("sm90_xmma_dgrad_implicit_gemm_bf16bf16_nhwc")
    'convolution'
    >>> kind_of("triton_red_fused_native_batch_norm_backward_3")
    'batch norm'
    """
    lower = name.lower()
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, lower)), "other")


def summarize(kernels: Iterable[Kernel]) -> dict[str, Any]:
    """Shares of the time from the first kernel to the end of the last; what no kernel covers is idle."""
    ordered = sorted(kernels, key=lambda kernel: kernel.start)
    span = max(kernel.end for kernel in ordered) - ordered[0].start
    busy, reached = 0.0, ordered[0].start
    by_kind: dict[str, float] = defaultdict(float)
    by_name: dict[str, list[float]] = defaultdict(list)
    for kernel in ordered:
        busy += max(kernel.end - max(kernel.start, reached), 0.0)
        reached = max(reached, kernel.end)
        by_kind[kind_of(kernel.name)] += kernel.end - kernel.start
        by_name[kernel.name].append(kernel.end - kernel.start)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:TOP]
    return {
        "microseconds": span,
        "idle": 1 - busy / span,
        "kinds": {kind: total / span for kind, total in sorted(by_kind.items(), key=lambda item: -item[1])},
        "top": [
            {"name": name[:120], "kind": kind_of(name), "share": sum(taken) / span, "calls": len(taken)}
            for name, taken in longest
        ],
    }


def profile_step(case: Case, phase: str, variant: str, session: Session) -> dict[str, Any]:
    """An epoch of the first phase (`plain`) or of the second (`pmal`), after one that does not count."""
    make = plain_training if phase == "plain" else pmal_training
    plan, device = Plan(), session.device
    with seeded(0, device), convolutions(benchmark=device.type == "cuda"):
        contestant = set_up(
            lambda: make(case, case.pictures(), plan, session, partial(use_variant, variant)), device
        )
        kernels = record(contestant, device)
    found = summarize(kernels)
    step = {"microseconds_per_step": found.pop("microseconds") / case.steps}
    return {**case.describe(), "phase": phase, "variant": variant, **step, **found}


def record(contestant: Contestant, device: torch.device) -> list[Kernel]:
    """The kernels of an epoch; on a CPU the operations, without those inside of them, one after another."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    contestant.epoch()
    with profile(activities=activities) as profiler:
        contestant.epoch()
        if on_gpu:
            torch.cuda.synchronize(device)
    events = profiler.events() or []
    if on_gpu:
        # Ranges that people or torch have named lie over the kernels in them.
        own = [e for e in events if e.device_type == DeviceType.CUDA and "#" not in e.name]
        own = [e for e in own if not getattr(e, "is_user_annotation", False)]
        return [Kernel(e.name, e.time_range.start, e.time_range.end) for e in own]
    kernels, now = [], 0.0
    for event in events:
        kernels.append(Kernel(event.name, now, now + event.self_cpu_time_total))
        now += event.self_cpu_time_total
    return kernels


def profile_text(row: dict[str, Any]) -> str:
    kinds = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in row["kinds"].items())
    head = (
        f"{row['encoder']}, {row['phase']}, {row['variant']}: {row['microseconds_per_step']:,.0f} us per step"
    )
    lines = [f"{head}; {kinds}; idle {100 * row['idle']:.0f} %"]
    lines += [
        f"  {100 * k['share']:5.1f} %  {k['calls']:6d} x  {k['kind']:14s} {k['name']}" for k in row["top"]
    ]
    return "\n".join(lines)
