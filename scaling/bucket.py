"""The layout of a flat gradient bucket: which tensor is stored where."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SCALAR = "scalar"

DDP_BUCKETS_MB = (1.0, 25.0)  # DDP's first bucket and the others, by default; a given size holds for both

Span = tuple[int, int]  # elements [start, stop) of a flat buffer

ITEMSIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
"""Dtype of trainable parameters -> bytes of an element."""


@dataclass(frozen=True)
class BucketLayout:
    """Names, shapes and offsets (of the first element) of tensors, one behind the other in a flat buffer."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, tensors: Sequence[tuple[str, Sequence[int]]]) -> BucketLayout:
        """Packs tensors, given as (name, shape), without gaps and in the order given."""
        offsets, end = [], 0
        for _, shape in tensors:
            offsets.append(end)
            end += math.prod(shape)
        return cls(
            tuple(name for name, _ in tensors), tuple(tuple(shape) for _, shape in tensors), tuple(offsets)
        )

    @cached_property
    def num_elements(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @cached_property
    def spans(self) -> list[Span]:
        return list(pairwise([*self.offsets, self.num_elements]))

    def digest(self) -> bytes:
        """SHA-256 of names, shapes and offsets: equal layouts have equal ones, in every process."""
        text = repr((self.names, self.shapes, self.offsets))
        return hashlib.sha256(text.encode()).digest()

    def views(self, flat: Tensor) -> list[Tensor]:
        """The tensors as views into `flat` (1-D, `num_elements` long); writing to a view writes to `flat`."""
        return [
            flat[offset : offset + math.prod(shape)].view(shape)
            for shape, offset in zip(self.shapes, self.offsets, strict=True)
        ]

    def shapes_text(self) -> str:
        """The shapes as results keep them: `784x2048 2048 scalar`."""
        return " ".join("x".join(map(str, shape)) or SCALAR for shape in self.shapes)

    @classmethod
    def of_shapes_text(cls, text: str) -> BucketLayout:
        """The layout of what `shapes_text` wrote; names are numbers. ValueError: it is something else."""
        shapes = []
        for word in text.split():
            if not re.fullmatch(rf"{SCALAR}|[0-9]{{1,18}}(x[0-9]{{1,18}})*", word):
                raise ValueError(f"{word!r:.40} is no shape; a shape is as in 784x2048, or {SCALAR}")
            shapes.append([] if word == SCALAR else [int(size) for size in word.split("x")])
        return cls.of([(str(number), shape) for number, shape in enumerate(shapes)])


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans that are not empty; those that follow one another without a gap are one."""
    found: list[Span] = []
    for start, stop in spans:
        if start < stop:
            begin = found.pop()[0] if found and found[-1][1] == start else start
            found.append((begin, stop))
    return found


def shapes_by_dtype_text(layouts: Mapping[str, BucketLayout]) -> str:
    """Dtype -> tensors as results keep them, float32 unnamed: `784x2048 2048; bfloat16: 2048x10 10`."""
    return "; ".join(
        f"{'' if dtype == 'float32' else f'{dtype}: '}{layout.shapes_text()}"
        for dtype, layout in layouts.items()
    )


def layouts_of_text(text: str) -> dict[str, BucketLayout]:
    """The layouts of what `shapes_by_dtype_text` wrote, by dtype. Raises ValueError: it is something else."""
    layouts = {}
    for part in text.split(";"):
        dtype, _, shapes = part.rpartition(": ")
        name = dtype.strip() or "float32"
        if name not in ITEMSIZES or name in layouts:
            raise ValueError(
                f"{name!r:.40} is no dtype, or is there twice; dtypes are {', '.join(ITEMSIZES)}"
            )
        layouts[name] = BucketLayout.of_shapes_text(shapes)
    return layouts
