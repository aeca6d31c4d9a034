"""The contract of `aggregate` and `distribute`, for every update site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, Span
from scaling.bucket import BucketLayout
from scaling.conformance.inputs import gradients_of, layout_of
from scaling.conformance.run import Outcome, RunRanks, parameters_of, run_steps
from scaling.process_group import run_in_process

ULPS = {torch.float32: 2, torch.float64: 2, torch.float16: 8, torch.bfloat16: 8}
"""Allowed distance to the float64 mean, in units in the last place of the largest term: float32 and float64
as exact sums allow; the 16-bit types round after each of up to six additions."""

ON_RANK_0 = ("root", "host_serial")


def check(
    aggregator: Aggregator[Any],
    world_size: int,
    num_elements: int,
    dtype: torch.dtype,
    run: RunRanks = run_in_process,
) -> None:
    """Checks the contract for one world size, bucket size and type, on ranks that `run` makes.

    - The input is left as it is, unless `modifies_input` says so.
    - `owned` covers the bucket: on every rank for the replica site, once over all ranks for the others.
    - A rank that owns elements gets a finite tensor of the bucket's length and type; one that owns none None.
    - Exact aggregators deliver the float64 mean there: exactly on integers at world sizes 1, 2 and 4, within
      `ULPS` else; on the replica site all ranks have the same bits. It may be overwritten by the caller.
    - `distribute` brings what the owners have to all ranks, bit for bit.
    - What is metered is what `wire_bytes` states.
    - Two steps in a row keep all that, and the mean of zeros is zero.

    Raises:
        AssertionError: naming the law that does not hold.
    """
    layout = layout_of(num_elements)
    steps = [gradients_of(world_size, num_elements, dtype, integers=integers) for integers in (True, False)]
    for index, outcomes in enumerate(run_steps(aggregator, layout, steps, run)):
        _check_input(aggregator, steps[index], outcomes)
        _check_owned(aggregator, layout, outcomes)
        _check_results(layout, outcomes, dtype)
        if aggregator.exchanges:
            _check_mean(aggregator, layout, outcomes, steps[index], integers=index == 0)
        _check_distribution(layout, outcomes, dtype, index)
        _check_metered(aggregator, layout, outcomes, dtype)
    zeros = [torch.zeros(num_elements, dtype=dtype) for _ in range(world_size)]
    for outcome in run_steps(aggregator, layout, [zeros], run)[0]:
        values = [outcome.result[a:b] for a, b in outcome.owned] if outcome.result is not None else []
        assert all(bool((value == 0).all()) for value in values), "the mean of zeros is not zero"


def _check_input(aggregator: Aggregator[Any], before: Sequence[Tensor], outcomes: Sequence[Outcome]) -> None:
    if not aggregator.modifies_input:
        untouched = all(torch.equal(b, o.gradient) for b, o in zip(before, outcomes, strict=True))
        assert untouched, "the gradient was changed, but modifies_input is False"


def _check_owned(aggregator: Aggregator[Any], layout: BucketLayout, outcomes: Sequence[Outcome]) -> None:
    site, n = aggregator.site(layout), layout.num_elements
    spans: list[Span] = []
    for rank, outcome in enumerate(outcomes):
        if site == "replica":
            _check_cover(outcome.owned, n, f"rank {rank} of site 'replica' owns")
        if site in ON_RANK_0 and rank:
            assert not outcome.owned, f"site {site!r}: rank {rank} owns {outcome.owned}, not rank 0 alone"
        spans += outcome.owned
    if site != "replica":
        _check_cover(spans, n, f"the ranks of site {site!r} own")


def _check_cover(spans: Sequence[Span], num_elements: int, who: str) -> None:
    """The spans, in any order, are the elements from 0 to `num_elements`, each once."""
    end = 0
    for start, stop in sorted(spans):
        assert start < stop, f"{who} an empty range, {(start, stop)}"
        assert start >= end, f"{who} elements {start} to {min(stop, end) - 1} twice"
        assert start == end, f"{who} nothing from element {end} to {start - 1}"
        end = stop
    assert end == num_elements, f"{who} nothing from element {end} to {num_elements - 1}"


def _check_results(layout: BucketLayout, outcomes: Sequence[Outcome], dtype: torch.dtype) -> None:
    for rank, outcome in enumerate(outcomes):
        result, has_mean = outcome.result, bool(outcome.owned)
        if result is None or not has_mean:
            right = (result is not None) == has_mean or not layout.num_elements
            assert right, f"rank {rank}: a mean {'is missing' if has_mean else 'too many'}"
            continue
        assert tuple(result.shape) == (layout.num_elements,), f"rank {rank}: shape {tuple(result.shape)}"
        assert result.dtype == dtype, f"rank {rank}: type {result.dtype}"
        finite = all(bool(result[start:stop].isfinite().all()) for start, stop in outcome.owned)
        assert finite, f"rank {rank}: not finite"


def _check_mean(
    aggregator: Aggregator[Any],
    layout: BucketLayout,
    outcomes: Sequence[Outcome],
    gradients: Sequence[Tensor],
    *,
    integers: bool,
) -> None:
    if not layout.num_elements:
        return
    results = [outcome.result for outcome in outcomes]
    if aggregator.site(layout) == "replica":
        same = [r is not None and results[0] is not None and torch.equal(r, results[0]) for r in results]
        assert all(same), f"rank {same.index(False)} differs from rank 0"
    if aggregator.lossy:
        return
    delivered = torch.empty_like(gradients[0])
    for outcome in outcomes:
        for start, stop in outcome.owned:
            assert outcome.result is not None
            delivered[start:stop] = outcome.result[start:stop]
    _check_exact(delivered, gradients, integers=integers)


def _check_exact(delivered: Tensor, gradients: Sequence[Tensor], *, integers: bool) -> None:
    world_size, dtype = len(gradients), delivered.dtype
    mean = torch.stack([gradient.double() for gradient in gradients]).mean(0)
    error = (delivered.double() - mean).abs()
    if integers and world_size in (1, 2, 4):
        assert bool((error == 0).all()), f"integers are not averaged exactly: off by {error.max():.3g}"
        return
    # Sums of n terms round in units of the partial sums, which the sum of magnitudes bounds; so do terms that
    # are divided before they are summed, whose sum may well be zero.
    scale = torch.stack([gradient.double().abs() for gradient in gradients]).sum(0)
    allowed = ULPS[dtype] * torch.finfo(dtype).eps * scale.clamp(min=1e-30)
    worst = (error / allowed).max()
    assert bool(worst <= 1), f"off the float64 mean by {worst:.2f} times {ULPS[dtype]} ulp"


def _check_distribution(
    layout: BucketLayout, outcomes: Sequence[Outcome], dtype: torch.dtype, index: int
) -> None:
    new = parameters_of(layout, dtype, index)
    for rank, outcome in enumerate(outcomes):
        if outcome.parameters is not None:
            num_wrong = int((outcome.parameters != new).sum())
            assert not num_wrong, f"distribute leaves {num_wrong} parameters of rank {rank} not the owner's"


def _check_metered(
    aggregator: Aggregator[Any], layout: BucketLayout, outcomes: Sequence[Outcome], dtype: torch.dtype
) -> None:
    for rank, outcome in enumerate(outcomes):
        stated = aggregator.wire_bytes(layout, len(outcomes), rank, dtype.itemsize)
        assert stated in (None, outcome.bytes_sent), (
            f"rank {rank}: {outcome.bytes_sent} bytes are metered, wire_bytes states {stated}"
        )
