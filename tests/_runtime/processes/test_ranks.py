"""Exchanges between processes: alone they give back what they are given, together what the others have."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pmal._runtime.processes import torchrun
from pmal._runtime.processes.launch import Launch, read_launch, refuse_ranks
from pmal._runtime.processes.ranks import ALONE, Lost, RankGroup, _exchange
from pmal._runtime.processes.torchrun import local_device, open_ranks
from pmal.errors import PmalError, UsageError
from tests.support.processes import run_processes

MEETING = import_module("torch.distributed.rendezvous")
SCRIPT = Path(__file__).with_name("exchanges.py")


@pytest.fixture(scope="module")
def results():
    ended = run_processes(SCRIPT)
    assert [one.code for one in ended] == [0, 0], ended
    return [json.loads(one.out) for one in ended]


@pytest.mark.slow
def test_what_comes_from_all_is_the_same_on_all(results):
    for found in results:
        assert found["for_all"] == [10]
        assert found["by_first"] == {"rank": 0, "text": "äää"}
        assert found["error"] == ["first.json: damaged", 3]
        assert found["interruption"] == ["interrupted: go on", 143]
        assert found["gather"] == [[], [1]]
        assert found["largest"] == 7
        assert found["sum"] == [[1.0, 4.0], [1.0, 6.0]]
        assert found["first"] == [[0.0] * 3] * 2
        assert found["laid_out"]
        assert found["means"] == [[[1.5, 1.5]] * 2, 0.5]
        assert found["rows"] == [[0, 0], [0, 0], [0, 0], [1, 1]]
        assert found["tensors"] == [
            ["torch.bool", [True, False]],
            ["torch.float32", []],
            ["torch.float64", 2.5],
            ["torch.int64", [[0, 3], [1, 4], [2, 5]]],
        ]
        assert found["about"] == {"step": 3}
    assert [found["share"] for found in results] == [[0, 1, 2], [3, 4]]


@pytest.mark.slow
def test_the_gradient_of_gathered_rows_is_that_of_all_losses(results):
    for rank, found in enumerate(results):
        gathered, gradient = found["gradient"]
        assert gathered == [[1.0, 2.0], [2.0, 2.0]]
        assert gradient == [2 * (1 + 2) * (1.0 + rank), 2 * (1 + 2) * 2.0]
        assert found["beside"] == [1.0 + rank] * 2


def test_alone_everything_stays_as_it_is():
    tensor = torch.arange(3.0)
    assert (ALONE.rank, ALONE.size, ALONE.first, ALONE.part) == (0, 1, True, (0, 1))
    assert ALONE.sum(tensor) is ALONE.gather_rows(tensor, [3]) is tensor
    assert ALONE.by_first(lambda: tensor) is tensor
    assert ALONE.gather(tensor) == [tensor]
    assert ALONE.largest(3) == 3
    assert ALONE.gather_alike(tensor).shape == (1, 3)
    assert ALONE.for_all(print) is print
    ALONE.average([tensor])
    ALONE.copy_first([tensor])
    assert tensor.tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 3, 8])
def test_shares_are_even_and_leave_nothing_out(size):
    for count in (0, 1, 5, 7, 100):
        shares = [list(range(count)[RankGroup(rank, size).share(count)]) for rank in range(size)]
        assert [thing for share in shares for thing in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert len(shares[0]) == max(map(len, shares))


def test_a_failed_exchange_means_that_somebody_has_gone_unless_a_graph_is_captured(monkeypatch):
    def fail(*_):
        raise RuntimeError("connection closed")

    monkeypatch.setattr(torch.distributed, "all_gather", fail)
    with pytest.raises(Lost, match="run the same command again"):
        _exchange("all_gather", [torch.zeros(1)], torch.zeros(1))
    with pytest.raises(RuntimeError, match="connection closed"):
        _exchange("all_gather", [SimpleNamespace(is_cuda=True)], torch.zeros(1))


@pytest.fixture
def launched(monkeypatch):
    def set_environment(**values):
        for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", **values}.items():
            monkeypatch.setenv(name, str(value))

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    return set_environment


def test_without_torchrun_or_with_one_process_it_is_alone(launched):
    assert read_launch() == Launch()
    assert open_ranks("cpu") is ALONE
    launched(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
    assert open_ranks("cpu") is ALONE
    refuse_ranks()


def test_the_environment_is_read_or_refused(launched, monkeypatch):
    launched(RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
    assert read_launch() == Launch(5, 8, 1, 4)
    with pytest.raises(UsageError, match="start others without torchrun"):
        refuse_ranks()
    launched(LOCAL_RANK="x")
    with pytest.raises(UsageError, match=r"LOCAL_RANK=x.*start several processes with torchrun"):
        read_launch()
    launched(LOCAL_RANK=1)
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(UsageError, match="MASTER_PORT are not: start it with torchrun"):
        read_launch()


def test_gpus_meet_by_nccl_and_their_cpus_by_gloo(launched, monkeypatch):
    met, chosen, store = {}, [], torch.distributed.HashStore()
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(MEETING, "rendezvous", lambda *_, **__: iter([(store, 5, 8)]))
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **about: met.update(about, backend=backend)
    )
    found = torchrun._join(Launch(5, 8, 1, 4), torch.device("cuda:1"))
    assert (found["ranks"].rank, found["ranks"].size) == (5, 8)
    assert found["store"] is met["store"]
    assert met["backend"] == "cpu:gloo,cuda:nccl"
    assert chosen == [met["device_id"]] == [torch.device("cuda:1")]
    torchrun._join(Launch(5, 8, 1, 4), torch.device("cpu"))
    assert (met["backend"], met["device_id"]) == ("gloo", None)


def test_those_that_cannot_meet_say_where(launched, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no route\nand a trace")

    launched(MASTER_ADDR="node0", MASTER_PORT=29500)
    monkeypatch.setattr(MEETING, "rendezvous", fail)
    with pytest.raises(PmalError, match=r"8 processes could not meet at node0:29500: no route$"):
        torchrun._join(Launch(5, 8, 1, 4), torch.device("cpu"))


def test_every_process_of_a_machine_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    launch = Launch(rank=6, size=8, local_rank=2, local_size=4)
    assert local_device("auto", launch) == local_device("cuda", launch) == torch.device("cuda:2")
    assert local_device("cpu", launch) == torch.device("cpu")
    assert local_device("cuda:1", Launch()) == torch.device("cuda:1")
    with pytest.raises(UsageError, match="cuda:1 with 8 processes: use --device cuda"):
        local_device("cuda:1", launch)
    with pytest.raises(UsageError, match="--nproc-per-node=8, but 4 GPUs are seen"):
        local_device("auto", launch._replace(local_size=8))
