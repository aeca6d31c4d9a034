"""Cuts the matrices of a bucket into the tiles that a kernel's programs take, all of a bucket in one table.

A matrix of R rows and C columns is stored row by row, and word w of a column holds the rows w, w + W, w + 2
W, ... (W words a column). So word j = w C + column gathers the elements j, j + W C, j + 2 W C, ... of the
flat matrix: neighbouring words read neighbouring memory, whatever the shape. A tile is a block of lanes, each
of which stays in one column while the tile moves on by `step` words in each of `iterations`, where `step` is
- C for wide matrices, whose lanes are neighbouring columns;
- a multiple of C for narrow ones, of which several words are laid side by side, so that a vector is read as
  fast as a matrix.
What a tile sums of its columns goes to one row of the matrix's partial sums [partial_rows, C], or to several
rows where it is folded; they are added in a fixed order afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scaling.codecs.stripes import Matrix

MAX_FOLD = 64
"""Words side by side in a tile of a narrow matrix: so many partial sums of a column are added at once."""
VECTOR = 4  # Elements of 32 bits that a thread loads at once
LARGEST_MATRIX = 2**31 - 2**16  # Elements: kernels count those of one matrix in 32 bits


class Tile(NamedTuple):
    """A row of the table of tiles; see the module."""

    offset: int
    rows: int
    columns: int
    num_words: int
    row_stride: int
    column_stride: int
    first: int  # word of the first lane
    lanes: int  # in use
    step: int  # words to the next iteration
    iterations: int
    partial: int  # where the first lane's sums go
    column_base: int  # number of the matrix's first column among all of the bucket
    matrix: int
    columns_each: int  # C // n, n being the ranks among which the columns are divided
    columns_more: int  # C % n
    source: int  # where the matrix begins in a received message, in words

    @property
    def is_vector(self) -> bool:
        """Whether neighbouring lanes read aligned groups of VECTOR elements, all of them or none."""
        flat = self.column_stride == 1 and self.row_stride == self.columns
        num_elements, all_words = self.rows * self.columns, self.num_words * self.columns
        numbers = (self.offset, num_elements, all_words, self.first, self.lanes, self.step)
        return flat and not any(number % VECTOR for number in numbers)


class ColumnTile(NamedTuple):
    """Columns whose partial sums one program adds. `partial`, `partial_rows`, `columns`: of the partial sums,
    [partial_rows, columns]; `rows`, `column_base`, `matrix`, `columns_each`, `columns_more`: as in `Tile`."""

    partial: int
    partial_rows: int
    columns: int
    first: int
    rows: int
    column_base: int
    matrix: int
    columns_each: int
    columns_more: int


@dataclass(frozen=True)
class Tables:
    """The tiles of a bucket, on the device. `tiles`: (whether its tiles are vectors, [num_tiles, len(Tile)]
    int64), none of them empty; `column_tiles`: [num_column_tiles, len(ColumnTile)] int64; `num_partials`:
    room for partial sums, each of one column."""

    tiles: list[tuple[bool, Tensor]]
    column_tiles: Tensor
    num_partials: int
    num_columns: int


def tables_of(
    matrices: Sequence[Matrix],
    sources: Sequence[int],
    num_owners: int,
    *,
    lanes: int,
    iterations: int,
    columns_a_program: int,
    device: torch.device,
) -> Tables:
    """The tiles of some matrices. `sources`: of each, where it begins in a received message."""
    tiles: list[Tile] = []
    column_tiles: list[ColumnTile] = []
    num_partials = num_columns = 0
    for number, (matrix, source) in enumerate(zip(matrices, sources, strict=True)):
        if not matrix.num_elements:
            continue
        shared = Tile(
            *(matrix.offset, matrix.rows, matrix.columns, matrix.num_words),
            *(matrix.row_stride, matrix.column_stride),
            *(0, 0, 0, 0),
            *(num_partials, num_columns, number),
            *divmod(matrix.columns, num_owners),
            source,
        )
        chosen = _tiles(shared, lanes, iterations)
        if not all(tile.is_vector for tile in chosen):
            chosen = _tiles(shared, plain_lanes(lanes), iterations)
        tiles += chosen
        partial_rows = (chosen[-1].partial + chosen[-1].lanes - num_partials) // matrix.columns
        column_tiles += [
            ColumnTile(num_partials, partial_rows, matrix.columns, first, matrix.rows, *shared[11:15])
            for first in range(0, matrix.columns, columns_a_program)
        ]
        num_partials += partial_rows * matrix.columns
        num_columns += matrix.columns
    groups = [(vector, [tile for tile in tiles if tile.is_vector == vector]) for vector in (True, False)]
    tables = [(vector, _table(group, device)) for vector, group in groups if group]
    return Tables(tables, _table(column_tiles, device), num_partials, num_columns)


def plain_lanes(lanes: int) -> int:
    """Lanes of programs whose tiles are no vectors: a thread has one where it would have VECTOR."""
    return max(lanes // VECTOR, 1)


def _tiles(shared: Tile, lanes: int, iterations: int) -> list[Tile]:
    """The tiles of one matrix; `shared` is what is the same in all, and where their partial sums begin."""
    fold = min(max(lanes // shared.columns, 1), MAX_FOLD, shared.num_words)
    step = fold * shared.columns
    num_steps = -(-shared.num_words // fold)
    return [
        shared._replace(
            first=begin * step + at,
            lanes=min(lanes, step - at),
            step=step,
            iterations=min(iterations, num_steps - begin),
            partial=shared.partial + begin // iterations * step + at,
        )
        for begin in range(0, num_steps, iterations)
        for at in range(0, step, lanes)
    ]


def _table(rows: Sequence[tuple[int, ...]], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64).to(device)
