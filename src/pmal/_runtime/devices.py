"""Where the tensors live, and in which precision the device multiplies."""

import contextlib
import os
import platform

import torch

from pmal.errors import UsageError, unknown_name

PRECISIONS = ("auto", "float32", "bfloat16")


def choose_device(name: str = "auto") -> torch.device:
    """Return the named device, or the fastest one there is. Fail before any work if the device is missing."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise unknown_name("device", name, ["auto", "cpu", "cuda", "cuda:0"]) from None
    if device.type not in ("cpu", "cuda"):
        raise unknown_name("device", name, ["auto", "cpu", "cuda", "cuda:0"])
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"device '{name}' is not there ({torch.cuda.device_count()} GPUs seen): use device cpu"
        )
    return device


def choose_precision(device: torch.device, precision: str) -> str:
    """Return float32 or bfloat16. `auto` is bfloat16 on GPUs that have it, float32 elsewhere."""
    if precision not in PRECISIONS:
        raise unknown_name("precision", precision, PRECISIONS)
    if precision == "auto":
        return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return precision


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Return a context of mixed precision for the forward pass, or one that does nothing."""
    if choose_precision(device, precision) == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


def convolutions(
    *, benchmark: bool | None = None, tf32: bool | None = None
) -> contextlib.AbstractContextManager[object]:
    """Set how cuDNN convolves inside the block; what is not named stays as the caller has it."""
    now = torch.backends.cudnn
    return now.flags(
        enabled=now.enabled,
        benchmark=now.benchmark if benchmark is None else benchmark,
        deterministic=now.deterministic,
        allow_tf32=now.allow_tf32 if tf32 is None else tf32,
    )


def full_precision() -> contextlib.AbstractContextManager[object]:
    """Return a context for convolutions of finished networks: GPUs otherwise round float32 to 10 bits."""
    return convolutions(tf32=False)


def describe_kernels(device: torch.device) -> dict[str, str | int]:
    """Return what decides the last bits of a result, next to the numbers themselves."""
    about: dict[str, str | int] = {"torch": str(torch.__version__), "device": device.type}
    if device.type == "cuda":
        return {**about, "gpu": torch.cuda.get_device_name(device)}
    capability = torch.backends.cpu.get_cpu_capability()
    return {**about, "threads": torch.get_num_threads(), "instructions": capability}


def describe_hardware(device: torch.device) -> dict[str, str | int]:
    """Return, for the manifest, what a figure was measured on."""
    about: dict[str, str | int] = {
        "device": str(device),
        "machine": platform.machine(),
        "cpus": os.cpu_count() or 0,
    }
    if device.type == "cuda":
        about["gpu"] = torch.cuda.get_device_name(device)
    else:
        about["threads"] = torch.get_num_threads()
    return about
