"""The kernels against numpy, over all pairs at once. Those of a GPU are in test_cuda_kernel.py."""

import importlib.util

import numpy as np
import pytest
import torch

from pmal.errors import UsageError
from pmal.geometry import cpu_kernel, cuda_kernel, kernels, torch_kernel

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")
KERNELS = [pytest.param(cpu_kernel, marks=needs_numba, id="cpu"), pytest.param(torch_kernel, id="torch")]


def points(seed, n, width):
    y = np.random.default_rng(seed).normal(size=(n, width))
    y -= y.mean(0)
    return torch.from_numpy(y / np.sqrt((y**2).sum(1).mean()))


def distances(y):
    y = np.asarray(y.numpy(), dtype=np.float64)
    return np.sqrt(((y[:, None] - y[None]) ** 2).sum(2))


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("n", "width_a", "width_b"),
    [(2, 1, 1), (255, 3, 3), (256, 4, 9), (257, 5, 1), (600, 17, 3), (1025, 2, 2)],
)
def test_sums_over_all_pairs(kernel, n, width_a, width_b):
    a, b = points(n, n, width_a), points(n + 1, n, width_b)
    done = []
    sums = kernel.pair_sums(a, b, fast=False, advance=done.append)
    d_a, d_b = distances(a), distances(b)
    np.testing.assert_allclose(sums.gap, ((d_a - d_b) ** 2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(sums.square_a, (d_a**2).sum(1), rtol=2e-7)
    np.testing.assert_allclose(sums.square_b, (d_b**2).sum(1), rtol=2e-7)
    assert sum(done) == n * n


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("n", "parts"), [(2, 3), (257, 8), (1500, 2)])
def test_parts_add_up_to_the_whole_to_the_bit(kernel, parts, n):
    a, b = points(n, n, 5), points(n + 1, n, 7)
    done = []
    whole = kernel.pair_sums(a, b, fast=False, advance=None)
    found = [
        kernel.pair_sums(a, b, fast=False, advance=done.append, part=(index, parts)) for index in range(parts)
    ]
    assert torch.equal(torch.stack([sums.gap for sums in found]).sum(0), whole.gap)
    assert torch.equal(torch.stack([sums.gap for sums in found[::-1]]).sum(0), whole.gap)
    assert all(torch.equal(sums.square_a, whole.square_a) for sums in found)
    assert sum(done) == n * n


@pytest.mark.parametrize(("tiles", "parts"), [(1, 1), (1, 8), (2, 3), (7, 2), (8, 8), (31, 1), (31, 3)])
def test_parts_of_the_tiles_are_even(tiles, parts):
    met = np.zeros((tiles, tiles), dtype=int)
    for index in range(parts):
        before = met.sum()
        for step, here in cpu_kernel._steps_of((index, parts), tiles):
            for tile in here:
                met[tile, (tile + step) % tiles] += 1
        assert abs((met.sum() - before) - tiles * (tiles + 1) / 2 / parts) < 1
    pairs = met + met.T - np.diag(met.diagonal())
    assert (pairs == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("chosen", [1, 15, 300])
def test_weighted_gaps_of_some_rows(kernel, chosen):
    a, b = points(1, 400, 6), points(2, 400, 3)
    rng = np.random.default_rng(3)
    rows, alpha, beta = rng.integers(0, 400, chosen), rng.random(chosen), rng.random(chosen)
    d_a, d_b = distances(a)[rows], distances(b)[rows]
    expected = ((alpha[:, None] * d_a - beta[:, None] * d_b) ** 2).sum(1)
    got = kernel.squared_gaps(a, b, *(torch.from_numpy(values) for values in (rows, alpha, beta)))
    np.testing.assert_allclose(got, expected, rtol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weighted_gaps_of_equal_topologies_vanish(kernel):
    y = points(4, 300, 5)
    rotation = torch.linalg.qr(points(5, 5, 5))[0]
    every, ones = torch.arange(300), torch.ones(300, dtype=torch.float64)
    gaps = kernel.squared_gaps(y, y @ rotation, every, ones, ones)
    assert 0 <= gaps.min() <= gaps.max() < 1e-26


@pytest.mark.parametrize("kernel", KERNELS)
def test_duplicates_have_no_distance(kernel):
    a = points(6, 50, 3).repeat(12, 1)
    sums = kernel.pair_sums(a, a * 2, fast=False, advance=None)
    assert torch.allclose(sums.gap, sums.square_a, rtol=1e-6)
    assert float(sums.gap.view(12, 50).std(0).max() / sums.gap.max()) < 1e-7


@needs_numba
def test_threads_change_no_bit(monkeypatch):
    a, b = points(7, 1500, 5), points(8, 1500, 5)
    results = []
    for threads in (1, 2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        results.append(cpu_kernel.pair_sums(a, b, fast=False, advance=None).gap)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("tile", [1, 77, 5000])
def test_the_tile_of_the_torch_kernel_does_not_matter(monkeypatch, tile):
    a, b = points(9, 90, 5), points(10, 90, 2)
    rows, ones = torch.arange(90), torch.ones(90, dtype=torch.float64)
    expected = torch_kernel.pair_sums(a, b, fast=False, advance=None).gap
    monkeypatch.setitem(torch_kernel.TILE_NUMBERS, "cpu", tile)
    torch.testing.assert_close(
        torch_kernel.pair_sums(a, b, fast=False, advance=None).gap, expected, rtol=1e-9, atol=0
    )
    torch.testing.assert_close(torch_kernel.squared_gaps(a, b, rows, ones, ones), expected, rtol=1e-9, atol=0)


def test_an_error_in_a_thread_reaches_the_caller(monkeypatch):
    def fail(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(cpu_kernel, "_gap_tiles", fail)
    with pytest.raises(MemoryError, match="no room"):
        cpu_kernel.pair_sums(points(1, 600, 2), points(2, 600, 2), fast=False, advance=None)


def test_the_kernel_is_the_one_whose_compiler_is_there(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert kernels.kernel_for(cpu) is cpu_kernel
    assert kernels.kernel_for(cuda) is cuda_kernel
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert kernels.kernel_for(cpu) is kernels.kernel_for(cuda) is torch_kernel
    with pytest.raises(UsageError, match="'mps' has no float64 kernel"):
        kernels.kernel_for(torch.device("mps"))
