"""What every aggregator must keep, checked in-process: for tests and for authors of aggregators.

`check(aggregator, world_size, ...)` runs the aggregator on ranks that are threads and raises AssertionError
with the law that is broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.bucket import BucketLayout
from scaling.process_group import InProcessGroup, run_in_process

WORLD_SIZES = (1, 2, 3, 4, 7)
SIZES = (0, 1, 10, 1000, 1027)
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ULPS = {torch.float32: 2, torch.float16: 8, torch.bfloat16: 8}
"""Allowed distance to the float64 mean, in units in the last place of the largest term: float32 as exact sums
allow; the 16-bit types round after each of up to six additions."""


def layout_of(num_elements: int) -> BucketLayout:
    """A bucket of that size in up to three tensors: a matrix of three rows, a vector, a single element."""
    single = 1 if num_elements > 1 else 0
    rows = 3 if num_elements >= 12 else 1
    columns = (num_elements - single) // (2 * rows)
    rest = num_elements - single - rows * columns
    shapes: list[tuple[str, Sequence[int]]] = [("matrix", (rows, columns)), ("vector", (rest,))]
    return BucketLayout.of(shapes + ([("single", (1,))] if single else []))


def gradients_of(world_size: int, num_elements: int, dtype: torch.dtype, *, integers: bool) -> list[Tensor]:
    """One gradient a rank: small integers (exact in every type) or normal values; fixed seed."""
    generator = torch.Generator().manual_seed(1000 * world_size + num_elements)
    if integers:
        return [
            torch.randint(-8, 9, (num_elements,), generator=generator).to(dtype) for _ in range(world_size)
        ]
    return [torch.randn(num_elements, generator=generator).to(dtype) for _ in range(world_size)]


def aggregate_once(
    aggregator: Aggregator[Any], layout: BucketLayout, gradients: Sequence[Tensor]
) -> list[tuple[Tensor | None, Tensor]]:
    """(result, gradient as it is afterwards) of every rank, after one call."""

    def work(group: InProcessGroup) -> tuple[Tensor | None, Tensor]:
        gradient = gradients[group.rank].clone()
        state = aggregator.start(layout, group, gradient.dtype, torch.device("cpu"))
        result = aggregator.aggregate(state, gradient)
        group.barrier()  # host memory that is shared must not change under a rank that still reads it
        return None if result is None else result.clone(), gradient

    return run_in_process(len(gradients), work)


def check(aggregator: Aggregator[Any], world_size: int, num_elements: int, dtype: torch.dtype) -> None:
    """Checks the contract for one world size, bucket size and type.

    Raises:
        AssertionError: naming the law that does not hold.
    """
    layout = layout_of(num_elements)
    for integers in (True, False):
        gradients = gradients_of(world_size, num_elements, dtype, integers=integers)
        outcome = aggregate_once(aggregator, layout, gradients)
        _check_input(aggregator, gradients, [gradient for _, gradient in outcome])
        results = [result for result, _ in outcome]
        _check_site(aggregator, results, gradients[0])
        if aggregator.exchanges:
            _check_mean(aggregator, [r for r in results if r is not None], gradients, integers=integers)
    zeros = [torch.zeros(num_elements, dtype=dtype) for _ in range(world_size)]
    for result, _ in aggregate_once(aggregator, layout, zeros):
        assert result is None or bool((result == 0).all()), "the mean of zeros is not zero"


def _check_input(aggregator: Aggregator[Any], before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    if not aggregator.modifies_input:
        untouched = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert untouched, "the gradient was changed, but modifies_input is False"


def _check_site(aggregator: Aggregator[Any], results: Sequence[Tensor | None], like: Tensor) -> None:
    for rank, result in enumerate(results):
        expected = aggregator.update_site == "replica" or rank == 0
        assert (result is not None) == expected, (
            f"rank {rank}: a mean {'is missing' if expected else 'too many'}"
        )
        if result is not None:
            assert result.shape == like.shape, f"rank {rank}: shape {tuple(result.shape)}"
            assert result.dtype == like.dtype, f"rank {rank}: type {result.dtype}"
            assert bool(result.isfinite().all()), f"rank {rank}: not finite"


def _check_mean(
    aggregator: Aggregator[Any], results: Sequence[Tensor], gradients: Sequence[Tensor], *, integers: bool
) -> None:
    for rank, result in enumerate(results):
        assert torch.equal(result, results[0]), f"rank {rank} differs from rank 0"
    if aggregator.lossy or not gradients[0].numel():
        return
    world_size, dtype = len(gradients), gradients[0].dtype
    mean = torch.stack([gradient.double() for gradient in gradients]).mean(0)
    error = (results[0].double() - mean).abs()
    if integers and world_size in (1, 2, 4):
        assert bool((error == 0).all()), f"integers are not averaged exactly: off by {error.max():.3g}"
        return
    # Sums of n terms round in units of the partial sums, which the sum of magnitudes bounds.
    scale = torch.stack([gradient.double().abs() for gradient in gradients]).sum(0)
    allowed = ULPS[dtype] * torch.finfo(dtype).eps * (mean.abs() if integers else scale).clamp(min=1e-30)
    worst = (error / allowed).max()
    assert bool(worst <= 1), f"off the float64 mean by {worst:.2f} times {ULPS[dtype]} ulp"


def check_state(aggregator: Aggregator[Any], world_size: int, num_elements: int = 1000) -> None:
    """Checks that a state saved and loaded continues bit for bit: three steps, or two and one.

    Raises:
        AssertionError: the results differ.
    """
    layout = layout_of(num_elements)
    steps = [gradients_of(world_size, num_elements + i, torch.float32, integers=False) for i in range(3)]

    def work(group: InProcessGroup) -> tuple[Tensor | None, Tensor | None]:
        device = torch.device("cpu")

        def last_of(break_after: int | None) -> Tensor | None:
            state = aggregator.start(layout, group, torch.float32, device)
            result = None
            for index, gradients in enumerate(steps):
                result = aggregator.aggregate(state, gradients[group.rank][:num_elements].clone())
                group.barrier()
                if index == break_after:
                    saved = state.state_dict()
                    state = aggregator.start(layout, group, torch.float32, device)
                    state.load_state_dict(saved)
            return None if result is None else result.clone()

        return last_of(None), last_of(1)

    for rank, (through, resumed) in enumerate(run_in_process(world_size, work)):
        same = through is None or (resumed is not None and torch.equal(through, resumed))
        assert same, f"rank {rank}: a saved and loaded state gives another result"
