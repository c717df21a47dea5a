"""The GPU's kernel against the torch kernel in float64.

With TRITON_INTERPRET=1 the tests marked gpu run without a GPU, where Triton is installed.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch

from pmal.geometry import cuda_kernel, torch_kernel
from pmal.geometry import topology as gaps
from pmal.geometry.kernels import square_sums
from pmal.geometry.logits import space_of

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@pytest.fixture
def device():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cpu" if INTERPRETED else "cuda")


def points(seed, n, width, device="cpu"):
    y = np.random.default_rng(seed).normal(size=(n, width))
    y -= y.mean(0)
    return torch.from_numpy(y / np.sqrt((y**2).sum(1).mean())).to(device)


@pytest.mark.gpu
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    ("n", "width_a", "width_b"),
    [(2, 1, 1), (64, 3, 3), (65, 4, 9), (300, 20, 32), (128, 33, 2), (500, 200, 99)],
)
def test_sums_over_all_pairs(device, n, width_a, width_b, fast):
    a, b = points(n, n, width_a, device), points(n + 1, n, width_b, device)
    done = []
    sums = cuda_kernel.pair_sums(a, b, fast=fast, advance=done.append)
    right = torch_kernel.pair_sums(a, b, fast=False, advance=None)
    for got, expected in zip(sums, right, strict=True):
        torch.testing.assert_close(got, expected, rtol=5e-3 if fast else 5e-6, atol=0)
    assert sum(done) == n * n


@pytest.mark.gpu
@pytest.mark.parametrize("width", [5, 60])
def test_an_outlier_does_not_overflow(device, width):
    a, b = points(1, 200, width, device), points(2, 200, width, device)
    a[7] *= 1e4
    a /= a.square().sum(1).mean().sqrt()
    sums = cuda_kernel.pair_sums(a, b, fast=False, advance=None)
    right = torch_kernel.pair_sums(a, b, fast=False, advance=None)
    torch.testing.assert_close(sums.gap, right.gap, rtol=1e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", [1.0, 0.1, 1e-4])
@pytest.mark.parametrize("classes", [6, 50])
def test_five_digits_on_a_gpu(monkeypatch, device, classes, noise):
    monkeypatch.setattr(gaps, "SMALL", 0)
    rng = np.random.default_rng(classes)
    z, W = rng.normal(size=(700, 64)), rng.normal(size=(classes, 64))
    spaces = [space_of(x, W, device, "") for x in (z, z + noise * rng.normal(size=z.shape))]
    for topology in gaps.TOPOLOGIES:
        x = gaps.topology_gap(*spaces, topology, cuda_kernel, fast=False, advance=None)
        right = gaps.topology_gap(*spaces, topology, torch_kernel, fast=False, advance=None)
        torch.testing.assert_close(x, right, rtol=gaps.TOLERANCE, atol=0)


@pytest.mark.parametrize(
    ("n", "programs", "parts"),
    [
        (1, 1, 1),
        (1, 40, 3),
        (64, 40, 1),
        (65, 1, 2),
        (65, 1 << 16, 8),
        (1000, 1, 8),
        (1000, 40, 3),
        (1000, 1 << 16, 2),
    ],
)
def test_bands_meet_every_pair_once(monkeypatch, programs, n, parts):
    monkeypatch.setattr(cuda_kernel, "_PROGRAMS", programs)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tiling = cuda_kernel.DIRECT._replace(band=3)
    size, done, met = tiling.block, [], np.zeros((n, n), dtype=int)
    for part in range(parts):
        before = met.copy()
        reported = len(done)
        for first, band, columns in cuda_kernel._bands(n, tiling, done.append, (part, parts)):
            for program in range(band * len(columns)):  # as the kernels do
                row, column = first + program % band, columns.start + program // band
                if column >= row:
                    here, there = (slice(block * size, block * size + size) for block in (row, column))
                    met[here, there] += 1
                    met[there, here] += int(column > row)
        assert sum(done[reported:]) == (met - before).sum()
    assert (met == 1).all()
    assert sum(done) == n * n


@pytest.mark.parametrize("parts", [2, 7, 8])
def test_parts_of_the_bands_are_even(parts):
    tiling, blocks = cuda_kernel.EXACT_GRAM, 2000
    tiles = [0] * parts
    for part in range(parts):
        n = blocks * tiling.block
        for first, band, columns in cuda_kernel._bands(n, tiling, None, (part, parts)):
            tiles[part] += sum(min(column - first + 1, band) for column in columns)
    assert sum(tiles) == blocks * (blocks + 1) // 2
    assert max(tiles) < 1.01 * sum(tiles) / parts


@pytest.mark.parametrize("exact", [True, False])
def test_split_coordinates_are_the_coordinates(exact):
    y, scale = points(3, 130, 70), 2.0**12
    split = cuda_kernel._split(y, scale, cuda_kernel.EXACT_GRAM._replace(depth=64), exact)
    rounded = split.high.double() + (split.low if exact else 0)
    assert split.high.shape == (256, 128)
    assert not rounded[130:].any()
    assert not rounded[:, 70:].any()
    rounded = rounded[:130, :70] / scale
    torch.testing.assert_close(rounded, y, rtol=2.0**-21 if exact else 2.0**-11, atol=1e-9)
    torch.testing.assert_close(split.squares, square_sums(rounded), rtol=1e-12, atol=0)
    lengths = split.lengths[:130].double() / scale**2
    torch.testing.assert_close(lengths, rounded.square().sum(1), rtol=1e-6, atol=0)
