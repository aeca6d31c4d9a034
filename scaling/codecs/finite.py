"""Watches for values that are not finite, on the device, and names their tensors once it may be asked.

A codec turns NaN and infinity into bits that look like any others. So what is decoded is watched instead: a
statistic of each span of the bucket (the scale that was sent, or the values' sum) that is finite if and only
if all of the span is. All ranks decode the same, and so raise together.

1. In a step: the spans whose statistic is not finite are marked in a vector on the device. Only the first
   step with such a span marks: in the next one the whole network is not finite, which says nothing.
2. Outside the measured window: the vector is read, which waits for the device; what is marked becomes an
   error that names the tensors which are stored there.

Nothing is sent. A step costs a few launches over one number a span.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError

NUM_NAMED = 3
WATCH_ELEMENTS = 1024  # of a span, where a codec has no chunks of its own


class FiniteWatch:
    """The spans of one bucket that were not finite in the first step in which any was not. `bounds`:
    [num_spans + 1] int64 in host memory, ascending: where the spans begin and the last one ends; `what`: name
    of the values, for the message. `marks`: [num_spans] bool on the device; a kernel may set them itself."""

    def __init__(
        self, layout: BucketLayout, bounds: Tensor, device: torch.device, what: str = "the gradient"
    ) -> None:
        self._layout, self._bounds, self._what = layout, bounds, what
        self.marks = torch.zeros(max(0, bounds.numel() - 1), dtype=torch.bool, device=device)

    @classmethod
    def of_tensors(cls, layout: BucketLayout, device: torch.device) -> FiniteWatch:
        return cls(layout, torch.tensor([*layout.offsets, layout.num_elements]), device)

    @classmethod
    def of_chunks(
        cls, layout: BucketLayout, chunk_elements: int, device: torch.device, what: str = "the gradient"
    ) -> FiniteWatch:
        """Spans of `chunk_elements`, the last one shorter."""
        n = layout.num_elements
        bounds = torch.arange(math.ceil(n / chunk_elements) + 1, dtype=torch.int64) * chunk_elements
        return cls(layout, bounds.clamp_(max=n), device, what)

    def note(self, statistics: Tensor) -> None:
        """Marks what is not finite; in the order of the current stream, without waiting. `statistics`,
        [num_spans] or [num_spans, ...], are finite if and only if the span is."""
        bad = (statistics * 0).ne(0)  # NaN for what is not finite; fewer launches than `isfinite`
        self.mark(bad if bad.ndim == 1 else bad.flatten(1).any(1))

    def note_values(self, flat: Tensor) -> None:
        """The same by the values themselves [num_elements], one pass over them; of a watch by chunks of equal
        size. Sums are taken in float32."""
        if not self.marks.numel():
            return
        self.note(torch.cat(chunk_sums(flat, int(self._bounds[1] - self._bounds[0]))))

    def note_at(self, indices: Tensor, values: Tensor) -> None:
        """The same for single elements of the bucket, [k]; of a watch by chunks of equal size."""
        if not self.marks.numel():
            return
        chunk_elements = int(self._bounds[1] - self._bounds[0])
        bad = values.isfinite().logical_not_().to(torch.int32)
        spans = indices.to(torch.int64).div_(chunk_elements, rounding_mode="floor")
        first_bad = torch.zeros(self.marks.numel(), dtype=torch.int32, device=bad.device)
        self.mark(first_bad.index_add_(0, spans, bad).bool())

    def mark(self, bad: Tensor) -> None:
        """Marks the spans that are True in `bad` [num_spans], unless an earlier step has marked any."""
        torch.where(self.marks.any(), self.marks, bad, out=self.marks)

    def raise_if_marked(self) -> None:
        """Waits for the device, and takes the marks away. NotFiniteError names the tensors that a marked span
        touches."""
        if not bool(self.marks.any()):
            return
        spans = self.marks.nonzero().flatten().cpu()
        self.marks.zero_()
        names = self._names(self._bounds[spans].tolist(), self._bounds[spans + 1].tolist())
        shown = ", ".join(repr(name) for name in names[:NUM_NAMED])
        more = f" and {len(names) - NUM_NAMED} more tensors" if len(names) > NUM_NAMED else ""
        raise NotFiniteError(
            f"{self._what} is NaN or infinite, or too large to be encoded, in {shown}{more}: the training "
            "diverges, or its input does; lower the learning rate, or look at the samples"
        )

    def _names(self, starts: list[int], stops: list[int]) -> list[str]:
        names, at = [], 0
        for name, (start, stop) in zip(self._layout.names, self._layout.spans, strict=True):
            while at < len(starts) and stops[at] <= start:
                at += 1
            if start < stop and at < len(starts) and starts[at] < stop:
                names.append(name)
        return names


def chunk_sums(flat: Tensor, chunk_elements: int) -> list[Tensor]:
    """The float32 sums of chunks of so many elements, the last one shorter, in few tensors."""
    whole = flat.numel() // chunk_elements * chunk_elements
    sums = [flat[:whole].view(-1, chunk_elements).sum(1, dtype=torch.float32)] if whole else []
    if whole < flat.numel():
        sums.append(flat[whole:].sum(dtype=torch.float32).view(1))
    return sums
