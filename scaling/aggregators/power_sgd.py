"""PowerSGD: all-reduces of thin matrices (`scaling.codecs.power_sgd`), a few launches a shape.

1. encode: matrices of one shape are copied one behind the other, residuals added; P = M Q a shape;
2. communicate: all-reduce of all P, with the tensors that are sent as they are;
3. encode: P made orthonormal; Q = M^T P;
4. communicate: all-reduce of all Q;
5. decode: P Q^T, which is the mean; new residual = M - P Q^T; all copied back to their places.

Steps and messages: two of the library's all-reduces. Bytes sent per rank: 2(n-1)/n times those of the two
messages. At world size 1 nothing is sent nor encoded. Error property: n mean + the new residuals = the sum of
gradients + the old ones, up to float rounding; the library gives every rank the same bits.

References and differences: `scaling.codecs.power_sgd`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, AggregatorState, PhaseMarker, unmarked
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.same_layout import require_same_layout
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES, require_exchange
from scaling.codecs.finite import WATCH_ELEMENTS, FiniteWatch
from scaling.codecs.noise import Noise
from scaling.codecs.power_sgd import PowerSgdCodec, orthonormalise_, starting_q
from scaling.collectives.plan import Codec, Stage, Update
from scaling.process_group import Group

ENCODE_BYTES_MOVED = 7.0
"""For each byte of the gradient: 2 to copy it, 3 to add the residual, 2 to read it for P and for Q."""
DECODE_BYTES_MOVED = 6.0
"""1 for P Q^T, 3 for the residual, 2 to copy back."""
SUMMED_UNIFORMS = 4
"""Their sum, less its mean, is close enough to a normal number for a random direction."""


@dataclass
class PowerSgdState(AggregatorState):
    """Buffers of one rank. Matrices of one shape are one batch; the tensors sent as they are lie behind."""

    order: list[int]  # of tensors: those of the first shape, of the second, ..., then those sent as they are
    values: Tensor  # [num_elements] float32, in that order
    residual: Tensor  # [compressed elements] float32; empty without feedback
    decoded: Tensor  # [num_elements] float32, in that order
    first: Tensor  # float32: all P, then what is sent as it is
    second: Tensor  # float32: all Q
    next_q: Tensor  # float32: the Q to begin with
    matrices: list[Tensor]  # [batch, n, m] a shape, in `values`
    products: list[Tensor]  # likewise, in `decoded`
    p: list[Tensor]  # [batch, n, r] a shape, in `first`
    q: list[Tensor]  # [batch, m, r] a shape, in `second`
    ordered_values: list[Tensor]  # a view a tensor, in the layout's order
    ordered_decoded: list[Tensor]  # likewise
    result: Tensor  # [num_elements]: the mean
    drawn: Tensor  # what decides the next random Q; empty with a warm start
    noise: Noise | None = field(repr=False)
    watch: FiniteWatch = field(repr=False)
    persistent = ("residual", "next_q", "drawn")

    @property
    def num_compressed(self) -> int:
        """Elements of all matrices that are compressed."""
        return sum(matrices.numel() for matrices in self.matrices)

    def check(self) -> None:
        """See the base."""
        self.watch.raise_if_marked()

    def left_over(self) -> Tensor | None:
        """The own residual, in the layout's order; None without feedback."""
        if not self.residual.numel() and self.num_compressed:
            return None
        whole = torch.zeros_like(self.values)
        whole[: self.residual.numel()].copy_(self.residual)
        total = torch.empty_like(whole)
        views = _views_in_order(self.layout, whole, self.order)
        for target, source in zip(self.layout.views(total), views, strict=True):
            target.copy_(source)
        return total


@final
@dataclass(frozen=True)
class PowerSgd(Aggregator[PowerSgdState]):
    """PowerSGD: gradient matrices as products of two thin ones, with error feedback.

    Attributes:
        approximation_size: columns of the thin matrices; 1 or 2 are usual, 4 costs four times the bytes.
        warm_start: begin with the last step's Q; else with a random one, which approximates worse.
        minimum_compression: a matrix is compressed where that makes it more than so many times smaller.
        error_feedback: keep what is lost for later steps; without it the training suffers.
        seed: of the random numbers.
    """

    name = "power_sgd"
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
        """Which tensors, and how far."""
        return PowerSgdCodec(self.approximation_size, self.minimum_compression)

    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> PowerSgdState:
        """A residual of zero, the same random Q on every rank, and all buffers."""
        require_same_layout(layout, group)
        groups = self.codec().groups(layout.shapes)
        compressed = list(chain.from_iterable(one.tensors for one in groups))
        order = compressed + [number for number in range(len(layout.shapes)) if number not in compressed]
        num_compressed = sum(one.num_elements for one in groups)
        whole = layout.num_elements - num_compressed
        p_elements = sum(one.p_elements for one in groups)

        def zeros(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        values, decoded = zeros(layout.num_elements), zeros(layout.num_elements)
        first, second = zeros(p_elements + whole), zeros(sum(one.q_elements for one in groups))
        shapes = [(len(one.tensors), one.rows, one.columns) for one in groups]
        noise = None
        if not self.warm_start:
            noise = Noise(SUMMED_UNIFORMS * second.numel(), self.seed, device)
        return PowerSgdState(
            group,
            layout,
            order=order,
            values=values,
            residual=zeros(num_compressed if self.error_feedback else 0),
            decoded=decoded,
            first=first,
            second=second,
            next_q=starting_q(groups, self.seed).to(device),
            matrices=_batches(values, shapes),
            products=_batches(decoded, shapes),
            p=_batches(first, [(len(one.tensors), one.rows, one.rank) for one in groups]),
            q=_batches(second, [(len(one.tensors), one.columns, one.rank) for one in groups]),
            ordered_values=_views_in_order(layout, values, order),
            ordered_decoded=_views_in_order(layout, decoded, order),
            result=zeros(layout.num_elements, dtype),
            drawn=zeros(0, torch.int32) if noise is None else noise.drawn,
            noise=noise,
            watch=FiniteWatch.of_chunks(layout, WATCH_ELEMENTS, device),
        )

    def aggregate(self, state: PowerSgdState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        """Returns the mean of what the ranks' matrices have in the space of P."""
        group = state.group
        if group.world_size == 1 or not gradient.numel():
            return gradient
        with phase("encode"):
            self._project(state, gradient)
        with phase("communicate"):
            group.all_reduce(state.first)
        with phase("encode"):
            for p, q, matrices in zip(state.p, state.q, state.matrices, strict=True):
                orthonormalise_(p)
                torch.bmm(matrices.transpose(1, 2), p, out=q)
        with phase("communicate"):
            group.all_reduce(state.second)
        with phase("decode"):
            self._decode(state)
        return state.result

    def _project(self, state: PowerSgdState, gradient: Tensor) -> None:
        """Steps 1 to 2: values, and P; behind it what is sent as it is."""
        torch._foreach_copy_(state.ordered_values, state.layout.views(gradient))
        num_compressed = state.num_compressed
        if state.residual.numel():
            state.values[:num_compressed].add_(state.residual)
        state.second.copy_(state.next_q)
        for p, q, matrices in zip(state.p, state.q, state.matrices, strict=True):
            orthonormalise_(q)
            torch.bmm(matrices, q, out=p)
        whole = state.values[num_compressed:]
        state.first[state.first.numel() - whole.numel() :].copy_(whole)

    def _decode(self, state: PowerSgdState) -> None:
        """Step 5, and the Q of the next step."""
        world_size, num_compressed = state.group.world_size, state.num_compressed
        state.second.div_(world_size)
        for p, q, products in zip(state.p, state.q, state.products, strict=True):
            torch.bmm(p, q.transpose(1, 2), out=products)
        if state.residual.numel():
            compressed = slice(0, num_compressed)
            torch.sub(state.values[compressed], state.decoded[compressed], out=state.residual)
        whole = state.decoded[num_compressed:]
        torch.div(state.first[state.first.numel() - whole.numel() :], world_size, out=whole)
        torch._foreach_copy_(state.layout.views(state.result), state.ordered_decoded)
        state.watch.note_values(state.result)
        if state.noise is None:
            state.next_q.copy_(state.second)
        else:
            uniforms = state.noise.uniform().view(SUMMED_UNIFORMS, -1)
            state.next_q.copy_(uniforms.sum(0)).sub_(SUMMED_UNIFORMS / 2)

    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        """Those of the two all-reduces."""
        return all_reduce_bytes(self.codec().message_bytes(layout), world_size) if world_size > 1 else 0

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        """Encode, two rings, decode; then the update."""
        n, num_bytes = layout.num_elements, 4.0 * layout.num_elements
        update = Update("replica", n)
        if world_size == 1:
            return [update]
        sizes = [size // WORD_BYTES for size in self.codec().message_bytes(layout)]
        first, second = native_all_reduce(sizes, world_size, "all_reduce")
        return [
            Codec("encode", num_bytes, bytes_moved=ENCODE_BYTES_MOVED),
            first,
            second,
            Codec("decode", num_bytes, bytes_moved=DECODE_BYTES_MOVED),
            update,
        ]


def _batches(flat: Tensor, shapes: list[tuple[int, int, int]]) -> list[Tensor]:
    """Views of those shapes, one behind the other from the beginning of `flat`."""
    views, at = [], 0
    for batch, rows, columns in shapes:
        size = batch * rows * columns
        views.append(flat[at : at + size].view(batch, rows, columns))
        at += size
    return views


def _views_in_order(layout: BucketLayout, flat: Tensor, order: list[int]) -> list[Tensor]:
    """The layout's tensors, in its own order, where `flat` has them in `order`."""
    placed = BucketLayout.of([(layout.names[number], layout.shapes[number]) for number in order])
    views = placed.views(flat)
    by_number = dict(zip(order, views, strict=True))
    return [by_number[number] for number in range(len(order))]
