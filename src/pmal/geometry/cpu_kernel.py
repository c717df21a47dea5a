"""The pair kernel for CPUs: differences, root and sums fused by numba in tiles that stay in the cache.

Coordinates are stored as (tiles, chunks, CHUNK, TILE), so that the innermost loop runs over neighbors j and
becomes vector instructions. Distances come from differences, never from a Gram matrix: subtraction and
multiply-add run side by side, so it costs little, and close pairs keep their digits.

d_ij is symmetric, so one tile serves its rows and its columns. In step s, tile t meets tile t + s (modulo
their number): no two tasks of a step write to the same rows or to the same columns, so the result does not
depend on the number of threads, to the last bit.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pmal.geometry.kernels import WHOLE, Advance, PairSums, Part, square_sums

# Among the best measured on AVX-512, for 4 to 200 coordinates (similar sizes differ little): the columns of
# a chunk (4 KiB) and the squares of a group (16 KiB) share the first-level cache. A column adds up the
# float32 terms of one group before they are added in float64.
TILE = 256
GROUP = 16
CHUNK = 4

Floats = NDArray[Any]
Sizes = NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., object])
_numba: Any = import_module("numba") if find_spec("numba") else None


def _jit(*flags: str) -> Callable[[Function], Function]:
    # No other fast-math flags than the two used below: roots stay correctly rounded, and zeros stay zeros.
    if _numba is None:  # the torch kernel runs instead
        return lambda function: function
    options = {"nogil": True, "error_model": "numpy", "fastmath": set(flags)}
    return cast(Callable[[Function], Function], _numba.njit(**options))


@_jit("contract")
def _add_squares(rows: Floats, columns: Floats, start: int, out: Floats) -> None:
    for i in range(GROUP):
        for j in range(TILE):
            total = out[i, j]
            for k in range(CHUNK):
                difference = rows[k, start + i] - columns[k, j]
                total += difference * difference
            out[i, j] = total


@_jit()
def _squares(rows: Floats, columns: Floats, start: int, out: Floats) -> None:
    """Write the squared distances of GROUP rows, from `start` on, to all columns of a tile."""
    out[:] = 0
    for chunk in range(rows.shape[0]):
        _add_squares(rows[chunk], columns[chunk], start, out)


@_jit()
def _squared_gap(square_a: float, square_b: float) -> float:
    """Return (d_a - d_b)^2. Reassociation with a sum around it would lose its small digits."""
    root = math.sqrt(square_a * square_b)
    return (square_a + square_b) - (root + root)


@_jit("reassoc")
def _gap_tiles(
    a: Floats, b: Floats, sizes: Sizes, tiles: tuple[int, int], step: int, by_row: Floats, by_column: Floats
) -> None:
    """Add the gaps of a range of tiles with the tiles `step` positions later."""
    square_a = np.empty((GROUP, TILE), np.float32)
    square_b = np.empty((GROUP, TILE), np.float32)
    column_part = np.empty(TILE, np.float32)
    for tile in range(tiles[0], tiles[1]):
        other = (tile + step) % a.shape[0]
        for start in range(0, sizes[tile], GROUP):
            _squares(a[tile], a[other], start, square_a)
            _squares(b[tile], b[other], start, square_b)
            column_part[:] = 0
            for i in range(min(GROUP, sizes[tile] - start)):
                row_part = np.float32(0)
                for j in range(sizes[other]):
                    gap = _squared_gap(square_a[i, j], square_b[i, j])
                    row_part += gap
                    column_part[j] += gap
                by_row[tile, start + i] += row_part
            if step:  # a tile with itself has every pair in its rows already
                for j in range(sizes[other]):
                    by_column[other, j] += column_part[j]


@_jit("contract", "reassoc")
def _weighted_gaps(
    a_rows: Floats, b_rows: Floats, weights: Floats, a: Floats, b: Floats, sizes: Sizes, out: Floats
) -> None:
    """Add the gaps of one tile of selected rows, with weights (2, rows), to all tiles, in float64."""
    square_a = np.empty((GROUP, TILE), np.float64)
    square_b = np.empty((GROUP, TILE), np.float64)
    for other in range(a.shape[0]):
        for start in range(0, len(out), GROUP):
            _squares(a_rows, a[other], start, square_a)
            _squares(b_rows, b[other], start, square_b)
            for i in range(min(GROUP, len(out) - start)):
                alpha, beta = weights[0, start + i], weights[1, start + i]
                total = 0.0
                for j in range(sizes[other]):
                    gap = alpha * math.sqrt(square_a[i, j]) - beta * math.sqrt(square_b[i, j])
                    total += gap * gap
                out[start + i] += total


def pair_sums(
    a_NR: Tensor, b_NR: Tensor, *, fast: bool, advance: Advance | None, part: Part = WHOLE
) -> PairSums:
    """Implement `Kernel.pair_sums`. Float32 is the fast mode already: `fast` changes nothing."""
    a_NR, b_NR = a_NR.float(), b_NR.float()
    a, b, sizes = _pack(a_NR), _pack(b_NR), _tile_sizes(len(a_NR))
    by_row, by_column = np.zeros((len(sizes), TILE)), np.zeros((len(sizes), TILE))
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for step, tiles in _steps_of(part, len(sizes)):

            def work(first: int, last: int, step: int = step) -> None:
                _gap_tiles(a, b, sizes, (first, last), step, by_row, by_column)

            _share(pool, work, tiles)
            if advance:
                met = sizes[tiles.start : tiles.stop] * np.roll(sizes, -step)[tiles.start : tiles.stop]
                advance(int(met.sum()) * (2 if step else 1))
    gap_N = torch.from_numpy((by_row + by_column).reshape(-1)[: len(a_NR)])
    return PairSums(gap_N, square_sums(a_NR.double()), square_sums(b_NR.double()))


def squared_gaps(a_NR: Tensor, b_NR: Tensor, rows: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    """Implement `Kernel.squared_gaps`."""
    a, b, sizes = _pack(a_NR), _pack(b_NR), _tile_sizes(len(a_NR))
    a_rows, b_rows = _pack(a_NR[rows]), _pack(b_NR[rows])
    weights = torch.stack([alpha, beta]).numpy()
    gaps = np.zeros(len(rows))

    def work(first: int, last: int) -> None:
        for tile in range(first, last):
            part = slice(tile * TILE, min((tile + 1) * TILE, len(rows)))
            part_weights = np.ascontiguousarray(weights[:, part])
            _weighted_gaps(a_rows[tile], b_rows[tile], part_weights, a, b, sizes, gaps[part])

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        _share(pool, work, range(len(a_rows)))
    return torch.from_numpy(gaps)


def _steps(tiles: int) -> list[tuple[int, int]]:
    """Return pairs (step, number of tiles that take it) such that any two tiles meet exactly once.

    >>> _steps(5), _steps(4)
    ([(0, 5), (1, 5), (2, 5)], [(0, 4), (1, 4), (2, 2)])
    """
    full = [(step, tiles) for step in range((tiles + 1) // 2)]
    return full if tiles % 2 else [*full, (tiles // 2, tiles // 2)]


def _steps_of(part: Part, tiles: int) -> Iterator[tuple[int, range]]:
    """Yield pairs (step, tiles that take it) of one part; all parts have equally many meetings up to one.

    >>> [list(_steps_of((index, 2), tiles=4)) for index in range(2)]
    [[(0, range(0, 4)), (1, range(0, 1))], [(1, range(1, 4)), (2, range(0, 2))]]
    """
    index, count = part
    total = tiles * (tiles + 1) // 2
    begin, end, before = total * index // count, total * (index + 1) // count, 0
    for step, meetings in _steps(tiles):
        here = range(max(begin - before, 0), min(end - before, meetings))
        before += meetings
        if here:
            yield step, here


def _share(pool: Executor, work: Callable[[int, int], None], whole: range) -> None:
    """Run work(first, last) over equal parts of a range, one per thread. Raise what the work raises."""
    edges = np.linspace(whole.start, whole.stop, torch.get_num_threads() + 1).astype(int).tolist()
    for _ in pool.map(work, edges[:-1], edges[1:]):
        pass


def _pack(y_NR: Tensor) -> Floats:
    """Return coordinates as (tiles, chunks, CHUNK, TILE), padded with zeros."""
    n, width = y_NR.shape
    tiles, chunks = -(-n // TILE), -(-width // CHUNK)
    padded = y_NR.new_zeros(tiles * TILE, chunks * CHUNK)
    padded[:n, :width] = y_NR
    packed: Floats = padded.view(tiles, TILE, chunks, CHUNK).permute(0, 2, 3, 1).contiguous().numpy()
    return packed


def _tile_sizes(n: int) -> Sizes:
    """Return the number of samples in each tile."""
    return np.minimum(TILE, n - np.arange(0, n, TILE))
