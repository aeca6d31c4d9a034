"""PowerSGD: all-reduces of thin matrices (`scaling.codecs.power_sgd`), a few launches a shape.

1. encode: the gradient is added to the residual, in place; P = M Q, one launch for matrices of one shape at
   equal distances;
2. communicate: all-reduce of all P, with the tensors that are sent as they are;
3. encode: P made orthonormal; Q = M^T P;
4. communicate: all-reduce of all Q;
5. decode: P Q^T, which is the mean, in its place; new residual = M - P Q^T, in place of M.

Steps and messages: two of the library's all-reduces. Bytes sent per rank: 2(n-1)/n times those of the two
messages. At world size 1 nothing is sent nor encoded. Error property: n mean + the new residuals = the sum of
gradients + the old ones, up to float rounding; the library gives every rank the same bits.

Saved state: by parameter. In the same buckets it goes on bit for bit. In others every matrix has the residual
and the Q that it had, and differs in the order of additions alone, where the start is warm; else the next
random Q are new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.state import WatchedState, named, require_same_on_ranks
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, require_exchange
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch, chunk_sums
from scaling.codecs.noise import Noise
from scaling.codecs.power_sgd import (
    MatrixGroup,
    PowerSgdCodec,
    ThinMatrices,
    batches_of,
    matrix_views,
    spans_sent_whole,
    starting_q,
)
from scaling.collectives.plan import CodecWork, Stage
from scaling.process_group import Group

ENCODE_BYTES_MOVED = 5.0
"""For each byte of the gradient: 3 to add it to the residual, 2 to read the sum for P and for Q."""
DECODE_BYTES_MOVED = 3.0  # 1 for P Q^T, 2 for the residual of large matrices
LARGE_BATCH_BYTES = 4 << 20  # Some two microseconds of a GPU's memory, which a launch takes too
SUMMED_UNIFORMS = 4  # Their sum, less its mean, is close enough to a normal number for a random direction


class PowerSgdState(WatchedState):
    """Buffers of one rank, and views into them; [batch, ...] a batch of `scaling.codecs.power_sgd`."""

    def __init__(
        self, of: PowerSgd, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        require_same_on_ranks(layout, group)

        def zeros(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self.groups = of.codec().groups(layout.shapes)
        super().__init__(group, layout, watch=_watch(layout, self.groups, device))
        spans, p_elements = (
            spans_sent_whole(layout, self.groups),
            sum(each.p_elements for each in self.groups),
        )
        sizes = [stop - start for start, stop in spans]
        self.feeds_back = of.error_feedback
        self.values = zeros(layout.num_elements)  # gradient + residual; between steps the residual
        self.decoded = zeros(layout.num_elements)  # the mean
        # The same in the gradient's type; the same tensor where that is float32.
        self.result = self.decoded if dtype == torch.float32 else zeros(layout.num_elements, dtype)
        self.first = zeros(p_elements + sum(sizes))  # all P, then what is sent as it is
        self.second = starting_q(self.groups, of.seed).to(device)  # all Q, which the next step begins with
        self.p = ThinMatrices(self.first, [each.rows for each in self.groups], self.groups)
        self.q = ThinMatrices(self.second, [each.columns for each in self.groups], self.groups)
        self.matrices = matrix_views(self.values, layout, self.groups)  # [batch, n, m]
        self.means = matrix_views(self.decoded, layout, self.groups)
        self.sent_p = batches_of(self.p.sent, layout, self.groups)  # [batch, n, r]
        self.orthonormal_p = batches_of(self.p.orthonormal, layout, self.groups)
        self.sent_q = batches_of(self.q.sent, layout, self.groups)  # [batch, m, r]
        self.orthonormal_q = batches_of(self.q.orthonormal, layout, self.groups)
        self.whole = self.first[p_elements:]  # what is sent as it is
        self.whole_sent = list(torch.split(self.whole, sizes))  # its spans there
        self.whole_values = [self.values[start:stop] for start, stop in spans]
        self.whole_means = [self.decoded[start:stop] for start, stop in spans]
        num_uniforms = SUMMED_UNIFORMS * self.second.numel()
        self.noise = None if of.warm_start else Noise(num_uniforms, of.seed, device)

    @property
    def num_compressed(self) -> int:
        return sum(group.num_elements for group in self.groups)

    @property
    def residual(self) -> Tensor:
        """[num_elements] float32, zero where values are sent as they are; empty without feedback."""
        return self.values if self.feeds_back else self.values[:0]

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        names, residuals = self.layout.names, self.layout.views(self.values) if self.feeds_back else []
        factors: dict[str, Tensor] = {}
        for group, thin in zip(self.groups, self.q.sent, strict=True):
            matrices = [names[number] for number in group.tensors]
            factors |= named(
                "residual", matrices, [residuals[number] for number in group.tensors if residuals]
            )
            factors |= named("next_q", matrices, thin)
        drawn = [] if self.noise is None else [self.noise.drawn] * len(names)
        return factors | named("drawn", names, drawn)

    def total_residual(self) -> Tensor | None:
        if self.feeds_back:
            return self.values.clone()
        return None if self.num_compressed else torch.zeros_like(self.values)


@dataclass(frozen=True)
class PowerSgd(Stated[PowerSgdState]):
    """PowerSGD: gradient matrices as products of two thin ones, with error feedback.

    Attributes:
        approximation_size: columns of the thin matrices; 1 or 2 are usual, 4 costs four times the bytes.
        warm_start: begin with the last step's Q; else with a random one, which approximates worse.
        minimum_compression: a matrix is compressed where that makes it more than so many times smaller.
        error_feedback: keep what is lost for later steps; without it the training suffers.
    """

    name = "power_sgd"
    state_class = PowerSgdState
    lossy = True
    overlaps = True
    graph_capturable = True

    approximation_size: int = 1
    warm_start: bool = True
    minimum_compression: float = 2.0
    error_feedback: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_exchange(self.codec(), "all_reduce")

    def codec(self) -> PowerSgdCodec:
        return PowerSgdCodec(self.approximation_size, self.minimum_compression)

    def aggregate(self, state: PowerSgdState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        group = state.group
        if group.world_size == 1 or not gradient.numel():
            return gradient
        with phase("encode"):
            self._project(state, gradient)
        with phase("communicate"):
            group.all_reduce(state.first)
        with phase("encode"):
            state.p.orthonormalise()
            for p, q, matrices in zip(state.orthonormal_p, state.sent_q, state.matrices, strict=True):
                torch.bmm(matrices.transpose(1, 2), p, out=q)
        with phase("communicate"):
            group.all_reduce(state.second)
        with phase("decode"):
            self._decode(state)
        return state.result

    def _project(self, state: PowerSgdState, gradient: Tensor) -> None:
        """Steps 1 to 2: values, and P; behind it what is sent as it is."""
        if state.feeds_back:
            state.values.add_(gradient)
        else:
            state.values.copy_(gradient)
        if state.whole_sent:
            torch._foreach_copy_(state.whole_sent, state.whole_values)
        state.q.orthonormalise()
        for p, q, matrices in zip(state.sent_p, state.orthonormal_q, state.matrices, strict=True):
            torch.bmm(matrices, q, out=p)

    def _decode(self, state: PowerSgdState) -> None:
        torch._foreach_div_(
            [buffer for buffer in (state.second, state.whole) if buffer.numel()], state.group.world_size
        )
        for p, q, means in zip(state.orthonormal_p, state.sent_q, state.means, strict=True):
            torch.bmm(p, q.transpose(1, 2), out=means)
        if state.whole_sent:
            torch._foreach_copy_(state.whole_means, state.whole_sent)
        if state.feeds_back:
            self._keep_residual(state)
        if state.result is not state.decoded:
            state.result.copy_(state.decoded)
        # What is not finite in a matrix is so in all of its Q.
        state.watch.note(torch.cat([state.second, *chunk_sums(state.whole, WATCH_ELEMENTS)]))
        if state.noise is not None:
            uniforms = state.noise.uniform().view(SUMMED_UNIFORMS, -1)
            torch.sum(uniforms, 0, out=state.second).sub_(SUMMED_UNIFORMS / 2)

    def _keep_residual(self, state: PowerSgdState) -> None:
        """Step 6, in `values`: a batch at a time, which moves fewer bytes; small ones in one launch."""
        if WORD_BYTES * state.num_compressed < LARGE_BATCH_BYTES * len(state.matrices):
            state.values.sub_(state.decoded)
        else:
            for p, q, matrices in zip(state.orthonormal_p, state.sent_q, state.matrices, strict=True):
                matrices.baddbmm_(p, q.transpose(1, 2), alpha=-1)
        if state.whole_sent:
            torch._foreach_zero_(state.whole_values)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        return all_reduce_bytes(self.codec().message_bytes(layout), world_size) if world_size > 1 else 0

    def exchange_stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        num_bytes = 4.0 * layout.num_elements
        sizes = [size // WORD_BYTES for size in self.codec().message_bytes(layout)]
        return [
            CodecWork("encode", num_bytes, bytes_moved=ENCODE_BYTES_MOVED),
            *native_all_reduce(sizes, world_size, "all_reduce"),
            CodecWork("decode", num_bytes, bytes_moved=DECODE_BYTES_MOVED),
        ]


def _watch(layout: BucketLayout, groups: list[MatrixGroup], device: torch.device) -> FiniteWatch:
    numbers = list(chain.from_iterable(group.tensors for group in groups))
    lengths = [group.columns * group.rank for group in groups for _ in group.tensors]
    thin = [(layout.names[number], (length,)) for number, length in zip(numbers, lengths, strict=True)]
    rest = [
        (name, shape)
        for number, (name, shape) in enumerate(zip(layout.names, layout.shapes, strict=True))
        if number not in set(numbers)
    ]
    start, watched = sum(lengths), BucketLayout.of([*thin, *rest])
    chunks = torch.arange(start, watched.num_elements, WATCH_ELEMENTS)
    bounds = torch.cat([torch.arange(start), chunks, torch.tensor([watched.num_elements])])
    return FiniteWatch(watched, bounds, device)
