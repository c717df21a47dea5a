"""The pair kernel for GPUs: distances, root and sums fused in registers, by Triton.

Up to DIRECT_WIDTH coordinates, distances come from differences in float32. Beyond, they come from a Gram
matrix on the matrix units: coordinates are scaled by a power of two and split into float16 numbers, high +
low, 22 bits together. high x high + high x low + low x high is as accurate as float32, at a third of
float16's speed. `fast` uses high alone: the 11 bits of TF32 at twice its speed. The squared lengths are those
of the split numbers, so every distance is exact for slightly moved samples, the same in all of their pairs.

The cost per distance, which serves two of the N x N pairs: with differences, 2 (R_a + R_b) float32
instructions and about 15 for root, quotient and sums; with the Gram matrix, R_a + R_b multiply-adds in
float16, three times that if exact. A tile of B x B distances reads 2 B (R_a + R_b) numbers, so memory
traffic matters little.

A band of row blocks is one launch: neighboring programs share their columns, so those stay in the L2 cache.
The sums of a tile are added in float64 by atomic addition. Their order varies, and with it the last bits.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pmal.geometry.kernels import WHOLE, Advance, PairSums, Part, square_sums
from pmal.geometry.torch_kernel import row_blocks, squared_gaps

__all__ = ["pair_sums", "squared_gaps"]

triton: Any = import_module("triton") if find_spec("triton") else None
tl: Any = import_module("triton.language") if find_spec("triton") else None


class Tiling(NamedTuple):
    """Parameters to tune for a GPU."""

    block: int
    """Rows and columns of a tile."""
    depth: int
    """Coordinates per step of the matrix product."""
    warps: int
    stages: int
    band: int
    """Smallest number of row blocks of one launch."""


# Measured best on an H200.
DIRECT_WIDTH = 6
DIRECT = Tiling(block=32, depth=1, warps=2, stages=1, band=64)
NARROW_WIDTH = 32
NARROW_GRAM = Tiling(block=64, depth=32, warps=4, stages=1, band=64)
EXACT_GRAM = Tiling(block=128, depth=32, warps=8, stages=3, band=16)
FAST_GRAM = Tiling(block=128, depth=64, warps=8, stages=4, band=16)
_PROGRAMS = 1 << 16
"""Launches of fewer programs than this leave part of a large GPU idle at their ends."""


def _jit(function: Callable[..., object]) -> Any:
    return triton.jit(function) if triton else function


@_jit
def _add_gaps(
    square_a: "Any",
    square_b: "Any",
    out: "Any",
    rows: "Any",
    columns: "Any",
    n: "Any",
    row_block: "Any",
    column_block: "Any",
    BLOCK: "tl.constexpr",
) -> None:
    """Add (d_a - d_b)^2 of a tile to its rows, and to its columns unless they are the rows."""
    # (d_a - d_b)^2 without subtracting large numbers: if many coordinates make all distances similar,
    # s_a + s_b - 2 root would keep no correct digit. For the same reason, quick root and division suffice.
    difference = square_a - square_b
    total = square_a + square_b + 2.0 * tl.sqrt(square_a * square_b)
    gap = difference * difference / tl.maximum(total, 1e-30)
    if (column_block + 1) * BLOCK > n:  # columns never precede rows, so only they can leave the matrix
        gap = tl.where((rows < n)[:, None] & (columns < n)[None, :], gap, 0.0)
    tl.atomic_add(out + rows, tl.sum(gap, axis=1).to(tl.float64), sem="relaxed")
    if column_block > row_block:
        tl.atomic_add(out + columns, tl.sum(gap, axis=0).to(tl.float64), sem="relaxed")


@_jit
def _direct_squares(
    y: "Any", stride: "Any", rows: "Any", columns: "Any", WIDTH: "tl.constexpr", BLOCK: "tl.constexpr"
) -> "Any":
    """Return squared distances computed from differences; y is (WIDTH, stride)."""
    squares = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.static_range(WIDTH):
        left = tl.load(y + k * stride + rows)
        right = tl.load(y + k * stride + columns)
        difference = left[:, None] - right[None, :]
        squares += difference * difference
    return squares


@_jit
def _gram_squares(
    high: "Any",
    low: "Any",
    lengths: "Any",
    rows: "Any",
    columns: "Any",
    WIDTH: "tl.constexpr",
    EXACT: "tl.constexpr",
    BLOCK: "tl.constexpr",
    DEPTH: "tl.constexpr",
) -> "Any":
    """Return squared distances computed from inner products; high and low are (samples, WIDTH)."""
    inner = tl.zeros((BLOCK, BLOCK), tl.float32)
    left_at = rows.to(tl.int64)[:, None] * WIDTH
    right_at = columns.to(tl.int64)[None, :] * WIDTH
    for start in range(0, WIDTH, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        left = tl.load(high + left_at + depth[None, :])
        right = tl.load(high + right_at + depth[:, None])
        if EXACT:
            left_rest = tl.load(low + left_at + depth[None, :])
            right_rest = tl.load(low + right_at + depth[:, None])
            inner = tl.dot(left, right_rest, inner)
            inner = tl.dot(left_rest, right, inner)
        inner = tl.dot(left, right, inner)
    squares = tl.load(lengths + rows)[:, None] + tl.load(lengths + columns)[None, :] - 2.0 * inner
    # A sample's distance to itself is zero, whatever the rounding.
    return tl.where(rows[:, None] == columns[None, :], 0.0, tl.maximum(squares, 0.0))


@_jit
def _direct_gaps(
    a: "Any",
    b: "Any",
    out: "Any",
    n: "Any",
    stride: "Any",
    first: "Any",
    band: "Any",
    first_column: "Any",
    WIDTH_A: "tl.constexpr",
    WIDTH_B: "tl.constexpr",
    BLOCK: "tl.constexpr",
) -> None:
    row_block = first + tl.program_id(0) % band
    column_block = first_column + tl.program_id(0) // band
    if column_block >= row_block:
        rows = row_block * BLOCK + tl.arange(0, BLOCK)
        columns = column_block * BLOCK + tl.arange(0, BLOCK)
        square_a = _direct_squares(a, stride, rows, columns, WIDTH_A, BLOCK)
        square_b = _direct_squares(b, stride, rows, columns, WIDTH_B, BLOCK)
        _add_gaps(square_a, square_b, out, rows, columns, n, row_block, column_block, BLOCK)


@_jit
def _gram_gaps(
    high_a: "Any",
    low_a: "Any",
    lengths_a: "Any",
    high_b: "Any",
    low_b: "Any",
    lengths_b: "Any",
    out: "Any",
    n: "Any",
    first: "Any",
    band: "Any",
    first_column: "Any",
    WIDTH_A: "tl.constexpr",
    WIDTH_B: "tl.constexpr",
    EXACT: "tl.constexpr",
    BLOCK: "tl.constexpr",
    DEPTH: "tl.constexpr",
) -> None:
    row_block = first + tl.program_id(0) % band
    column_block = first_column + tl.program_id(0) // band
    if column_block >= row_block:
        rows = row_block * BLOCK + tl.arange(0, BLOCK)
        columns = column_block * BLOCK + tl.arange(0, BLOCK)
        square_a = _gram_squares(high_a, low_a, lengths_a, rows, columns, WIDTH_A, EXACT, BLOCK, DEPTH)
        square_b = _gram_squares(high_b, low_b, lengths_b, rows, columns, WIDTH_B, EXACT, BLOCK, DEPTH)
        _add_gaps(square_a, square_b, out, rows, columns, n, row_block, column_block, BLOCK)


def pair_sums(
    a_NR: Tensor, b_NR: Tensor, *, fast: bool, advance: Advance | None, part: Part = WHOLE
) -> PairSums:
    """Implement `Kernel.pair_sums`."""
    with torch.cuda.device(a_NR.device) if a_NR.is_cuda else nullcontext():
        width = max(a_NR.shape[1], b_NR.shape[1])
        if width <= DIRECT_WIDTH:
            return _direct_sums(a_NR, b_NR, DIRECT, advance, part)
        if width <= NARROW_WIDTH:  # the root takes the time: the two other products cost nothing
            return _gram_sums(a_NR, b_NR, NARROW_GRAM, True, advance, part)
        return _gram_sums(a_NR, b_NR, FAST_GRAM if fast else EXACT_GRAM, not fast, advance, part)


def _direct_sums(a_NR: Tensor, b_NR: Tensor, tiling: Tiling, advance: Advance | None, part: Part) -> PairSums:
    n, padded = len(a_NR), _round_up(len(a_NR), tiling.block)
    a_NR, b_NR = a_NR.float(), b_NR.float()
    a, b = (_padded(y_NR, padded).T.contiguous() for y_NR in (a_NR, b_NR))
    out = torch.zeros(padded, dtype=torch.float64, device=a.device)
    for first, band, columns in _bands(n, tiling, advance, part):
        _direct_gaps[(band * len(columns),)](
            *(a, b, out, n, padded, first, band, columns.start, len(a), len(b), tiling.block),
            num_warps=tiling.warps,
        )
    return PairSums(out[:n], square_sums(a_NR.double()), square_sums(b_NR.double()))


def _gram_sums(
    a_NR: Tensor, b_NR: Tensor, tiling: Tiling, exact: bool, advance: Advance | None, part: Part
) -> PairSums:
    # One scale for both spaces: (d_a - d_b)^2 compares them.
    largest = max(float(a_NR.abs().amax()), float(b_NR.abs().amax())) or 1.0
    scale = 2.0 ** (14 - math.ceil(math.log2(largest)))
    a, b = (_split(y_NR, scale, tiling, exact) for y_NR in (a_NR, b_NR))
    n, padded = len(a_NR), len(a.high)
    out = torch.zeros(padded, dtype=torch.float64, device=a_NR.device)
    for first, band, columns in _bands(n, tiling, advance, part):
        _gram_gaps[(band * len(columns),)](
            *(a.high, a.low, a.lengths, b.high, b.low, b.lengths, out, n, first, band, columns.start),
            *(a.high.shape[1], b.high.shape[1], exact, tiling.block, tiling.depth),
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )
    return PairSums(out[:n] / scale**2, a.squares, b.squares)


class _Split(NamedTuple):
    high: Tensor
    low: Tensor
    lengths: Tensor
    """Squared lengths of the scaled samples, float32."""
    squares: Tensor
    """sum_j d_ij^2, float64, not scaled."""


def _split(y_NR: Tensor, scale: float, tiling: Tiling, exact: bool) -> _Split:
    """Return coordinates as float16 high + low, padded to whole tiles, and the lengths after rounding."""
    n, width = y_NR.shape
    shape = _round_up(n, tiling.block), _round_up(width, tiling.depth)
    high = torch.zeros(shape, dtype=torch.float16, device=y_NR.device)
    low = torch.zeros_like(high) if exact else high  # never read unless exact
    parts = list(row_blocks(*shape, y_NR.device))
    for part in parts:
        scaled_BR = y_NR[part] * scale
        high[part][: len(scaled_BR), :width] = scaled_BR
        if exact:
            low[part][: len(scaled_BR), :width] = scaled_BR - high[part][: len(scaled_BR), :width]

    def rounded(part: slice) -> Tensor:
        return high[part].double() + low[part] if exact else high[part].double()

    lengths = torch.cat([rounded(part).square().sum(1) for part in parts])
    center = torch.stack([rounded(part).sum(0) for part in parts]).sum(0)
    along = torch.cat([rounded(part) @ center for part in parts])
    squares = (n * lengths + lengths.sum() - 2 * along)[:n] / scale**2
    return _Split(high, low, lengths.float(), squares)


def _bands(
    n: int, tiling: Tiling, advance: Advance | None, part: Part = WHOLE
) -> Iterator[tuple[int, int, range]]:
    """Yield (first row block, number of row blocks, column blocks) of every launch of a part.

    A band of rows meets the columns from its own on; each part has its share of these.
    """
    blocks, first = -(-n // tiling.block), 0
    while first < blocks:
        band = min(blocks - first, max(tiling.band, _PROGRAMS * part[1] // (blocks - first)))
        columns = _columns(first, band, blocks, part)
        if columns:
            yield first, band, columns
        if columns and advance:
            if torch.cuda.is_available():  # not under Triton's interpreter
                torch.cuda.synchronize()
            begin, end = first * tiling.block, min((first + band) * tiling.block, n)
            left, right = columns.start * tiling.block, min(columns.stop * tiling.block, n)
            advance(_pairs(begin, end, right) - _pairs(begin, end, left))
        first += band


def _columns(first: int, band: int, blocks: int, part: Part) -> range:
    """Return the column blocks of a part. All parts have equally many tiles on or above the diagonal."""

    def tiles(columns: int) -> int:
        """Return the number of tiles in the band's first `columns` columns."""
        corner = min(columns, band)
        return corner * (corner + 1) // 2 + (columns - corner) * band

    every, (index, count) = range(blocks - first + 1), part
    wanted = [tiles(blocks - first) * edge // count for edge in (index, index + 1)]
    start, stop = (first + bisect_left(every, edge, key=tiles) for edge in wanted)
    return range(start, stop)


def _pairs(begin: int, end: int, right: int) -> int:
    """Return the number of ordered pairs of samples `begin` to `end` with samples `begin` to `right`."""
    corner = min(end, right) - begin
    return corner**2 + 2 * (end - begin) * (right - begin - corner)


def _padded(y_NR: Tensor, rows: int) -> Tensor:
    padded = y_NR.new_zeros(rows, y_NR.shape[1])
    padded[: len(y_NR)] = y_NR
    return padded


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
