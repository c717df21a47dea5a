import contextlib
import os

import pytest
import torch

from pmal._runtime.devices import PRECISIONS, autocast, choose_device, convolutions, describe_hardware
from pmal.errors import UsageError

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are so many."""

    def pretend(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return pretend


def product_type(precision):
    with autocast(CPU, precision):
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


def test_auto_takes_a_gpu_where_there_is_one(gpus):
    gpus(0)
    assert choose_device("auto") == CPU
    gpus(1)
    assert choose_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(("name", "count"), [("cpu", 0), ("cuda", 1), ("cuda:0", 1), ("cuda:1", 2)])
def test_a_named_device_that_is_there(gpus, name, count):
    gpus(count)
    assert choose_device(name) == torch.device(name)


@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("cuda:77", 2)])
def test_a_gpu_that_is_missing_is_told_with_the_fix(gpus, name, count):
    gpus(count)
    with pytest.raises(UsageError) as caught:
        choose_device(name)
    assert str(caught.value) == f"device '{name}' is not there ({count} GPUs seen): use device cpu"


@pytest.mark.parametrize(
    ("name", "nearest"), [("cudda", "cuda"), ("CPU", "cpu"), ("mps", None), ("meta", None), ("", None)]
)
def test_names_that_are_no_device(name, nearest):
    with pytest.raises(UsageError) as caught:
        choose_device(name)
    assert str(caught.value).startswith(f"unknown device '{name}'")
    assert str(caught.value).endswith("Valid: auto, cpu, cuda, cuda:0")
    assert nearest is None or f"did you mean '{nearest}'?" in str(caught.value)


def test_precision_decides_what_the_cpu_multiplies_in():
    assert {precision: product_type(precision) for precision in PRECISIONS} == {
        "auto": torch.float32,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
    }
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32, "it ends with the block"


@pytest.mark.parametrize(
    ("precision", "supported", "mixed"),
    [("auto", True, True), ("auto", False, False), ("float32", True, False), ("bfloat16", True, True)],
)
def test_on_a_gpu_auto_asks_whether_it_has_bfloat16(monkeypatch, precision, supported, mixed):
    asked = []

    def record(kind, dtype):
        asked.append((kind, dtype))
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    monkeypatch.setattr(torch, "autocast", record)
    with autocast(torch.device("cuda", 1), precision):
        pass
    assert asked == ([("cuda", torch.bfloat16)] if mixed else [])


def test_a_misspelled_precision_gets_the_nearest_one():
    with pytest.raises(UsageError, match=r"unknown precision 'bfloat': did you mean 'bfloat16'\?"):
        autocast(CPU, "bfloat")


def flags():
    now = torch.backends.cudnn
    return now.enabled, now.benchmark, now.deterministic, now.allow_tf32


@pytest.mark.parametrize("before", [True, False])
def test_convolutions_change_what_is_named_and_put_it_back(before):
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=before, deterministic=not before, allow_tf32=before
    ):
        outside = flags()
        with convolutions(benchmark=not before):
            assert flags() == (True, not before, not before, before)
        with convolutions(tf32=not before):
            assert flags() == (True, before, not before, not before)
        with convolutions():
            assert flags() == outside
        assert flags() == outside


def test_the_hardware_of_a_cpu():
    about = describe_hardware(CPU)
    assert about["device"] == "cpu"
    assert about["machine"] == os.uname().machine
    assert about["threads"] == torch.get_num_threads()
    assert about["cpus"] == os.cpu_count()
    assert "gpu" not in about


def test_the_hardware_of_a_gpu_is_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"board {device.index}")
    about = describe_hardware(torch.device("cuda", 1))
    assert (about["device"], about["gpu"]) == ("cuda:1", "board 1")
    assert "threads" not in about
