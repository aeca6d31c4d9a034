"""The contract of `aggregate` and `distribute`, for every update site, at every step of a case."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator
from scaling.aggregators.schedule import Scheduled
from scaling.bucket import BucketLayout, Span
from scaling.collectives.composition import split_at_reduction
from scaling.collectives.verify import Verification, verify
from scaling.conformance.cases import Case, Outcome, RunRanks, parameters_of, run_steps, smallest
from scaling.errors import ScheduleError
from scaling.process_group import run_in_process

ON_RANK_0 = ("root", "host_serial")
RESIDUAL_ULPS = 16  # allowed in float32: each term is the result of some ten additions


class Residuals:
    """The law of error feedback, step by step: n mean + new residuals = contributions + old residuals.
    Contributions are gradients, or an aggregator's own momentum. What rounding allows goes by the largest
    terms so far: residuals of several ranks, and of a gradient and a sum, may cancel for some steps."""

    def __init__(self, layout: BucketLayout, world_size: int) -> None:
        self._layout, self._world_size, self.exist = layout, world_size, False
        self._old = self._old_terms = torch.zeros(layout.num_elements, dtype=torch.float64)
        self._terms = torch.zeros(layout.num_elements, dtype=torch.float64)

    def check(
        self, outcomes: Sequence[Outcome], dtype: torch.dtype, *, is_replica: bool, is_late: bool
    ) -> None:
        """One step; an AssertionError names the element. `is_late`: a mean is held back for a step."""
        residuals = [outcome.withheld for outcome in outcomes if outcome.withheld is not None]
        if not residuals:
            assert not self.exist, "no rank has a residual, and before there was one"
            return
        self.exist = True
        assert len(residuals) == len(outcomes), "some ranks have a residual, and some have none"
        n = self._layout.num_elements
        for rank, residual in enumerate(residuals):
            assert residual.shape == (n,), f"rank {rank}: the residual has shape {tuple(residual.shape)}"
        if not n:
            return
        new = torch.stack(residuals).double()  # [rank, num_elements]
        given = torch.stack([outcome.contribution for outcome in outcomes]).double()
        delivered = torch.zeros(n, dtype=torch.float64)
        for outcome in outcomes[: 1 if is_replica else None]:
            for start, stop in outcome.owned:
                assert outcome.result is not None, "a rank that owns elements has their mean"
                delivered[start:stop] = self._world_size * outcome.result[start:stop].double()
        new_sum, new_terms = new.sum(0), new.abs().sum(0)
        terms = given.abs().sum(0) + new_terms + self._old_terms + delivered.abs()
        self._terms = torch.maximum(self._terms, terms)
        allowed = RESIDUAL_ULPS * torch.finfo(torch.float32).eps * self._terms
        allowed += torch.finfo(dtype).eps * delivered.abs()
        if is_late:  # The mean that is held back is rounded too, and cancels with residuals: it is not seen.
            coarser = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
            allowed += coarser * self._world_size * self._terms.max()
        allowed += RESIDUAL_ULPS * self._world_size * max(smallest(dtype), smallest(torch.float32))
        left, right = delivered + new_sum, given.sum(0) + self._old
        wrong = ((left - right).abs() <= allowed).logical_not_()
        if wrong.any():
            place = _first(wrong)
            raise AssertionError(
                f"element {place}: n mean + new residuals is {left[place]:.9g}, contributions + old "
                f"residuals are {right[place]:.9g}; rounding allows {allowed[place]:.3g}"
            )
        self._old, self._old_terms = new_sum, new_terms


def check_resumed(
    aggregator: Aggregator[Any], through: Sequence[Sequence[Outcome]], resumed: Sequence[Sequence[Outcome]]
) -> None:
    """An AssertionError names the first step and rank at which [step][rank] outcomes differ."""
    # Bit for bit, or to rounding where the aggregator cannot give more.
    to_rounding = partial(torch.allclose, rtol=1e-5, atol=1e-6)
    are_equal = to_rounding if aggregator.order_varies else torch.equal
    for index, (ones, others) in enumerate(zip(through, resumed, strict=True)):
        for rank, (expected, other) in enumerate(zip(ones, others, strict=True)):
            pairs = [
                (expected.result[start:stop], other.result[start:stop])
                for start, stop in expected.owned
                if expected.result is not None and other.result is not None
            ]
            if expected.withheld is not None and other.withheld is not None:
                pairs.append((expected.withheld, other.withheld))
            same = all(are_equal(first, second) for first, second in pairs)
            assert same, f"step {index + 1}: rank {rank}: a saved and loaded state gives another result"


def check_schedule(aggregator: Scheduled, world_size: int, layout: BucketLayout) -> Verification:
    """Raises ScheduleError: it does not deliver the sum, or elsewhere than where the step is taken."""
    schedule = aggregator.schedule(world_size, layout)
    if schedule.world_size != world_size:
        raise ScheduleError(f"{schedule.name}: made for {schedule.world_size} ranks, asked for {world_size}")
    verification = verify(schedule)
    schedule.bounds(layout.num_elements)
    site = aggregator.site(layout)
    if site != "replica":
        owners = split_at_reduction(schedule).owners
        if site in ON_RANK_0 and set(owners) != {0}:
            chunk = next(chunk for chunk, owner in enumerate(owners) if owner)
            raise ScheduleError(
                f"{schedule.name}: the sum of chunk {chunk} ends at {schedule.node_name(owners[chunk])}; "
                f"site {site!r} takes the step at rank 0"
            )
    return verification


def check(aggregator: Aggregator[Any], case: Case, run: RunRanks = run_in_process) -> bool:
    """Checks the contract at every step of a case; whether there are residuals. Raises AssertionError, naming
    the step, from 1, and the law that does not hold.

    The input is left as it is, unless `modifies_input`. `owned` covers the bucket: on every rank for the
    replica site, else once over all ranks. A rank that owns elements gets a finite tensor of the bucket's
    length and type; else None. Zeros give zeros. Exact aggregators deliver the float64 mean: exactly on
    integers at powers of two ranks, else to the rounding of a sum; on the replica site with the same bits on
    all ranks. With error feedback the law of `Residuals` holds; lossy ones without are off by at most their
    `error_bound`, if they state one. `distribute` brings what the owners have to all ranks, bit for bit;
    `wire_bytes` is what is metered. A saved and loaded state goes on bit for bit."""
    layout, steps = case.layout, case.all_gradients()
    residuals, only_zeros = Residuals(layout, case.world_size), True
    ran = run_steps(aggregator, layout, steps, run)
    stated = [
        aggregator.wire_bytes(layout, case.world_size, rank, case.dtype.itemsize)
        for rank in range(case.world_size)
    ]
    for index, (gradients, outcomes) in enumerate(zip(steps, ran, strict=True)):
        only_zeros = only_zeros and case.values[index] == "zeros"
        try:
            _check_input(layout, gradients, outcomes)
            _check_owned(aggregator, layout, outcomes)
            are_first = _check_results(layout, outcomes, case.dtype)
            if aggregator.exchanges:
                _check_mean(aggregator, case, index, outcomes, are_first)
                is_replica = aggregator.site(layout) == "replica"
                residuals.check(outcomes, case.dtype, is_replica=is_replica, is_late=aggregator.is_late())
            if only_zeros:
                _check_zeros(layout, outcomes)
            _check_distribution(layout, outcomes, case.dtype, index)
            for rank, (num_bytes, outcome) in enumerate(zip(stated, outcomes, strict=True)):
                assert num_bytes in (None, outcome.bytes_sent), (
                    f"rank {rank}: {outcome.bytes_sent} bytes are metered, wire_bytes states {num_bytes}"
                )
        except AssertionError as error:
            raise AssertionError(f"step {index + 1}: {error}") from None
    if case.resume_after is not None:
        resumed = run_steps(aggregator, layout, steps, run, case.resume_after)
        check_resumed(aggregator, ran, resumed)
    return residuals.exist


def _at(layout: BucketLayout, rank: int, element: int) -> str:
    # Of tensors that begin at the same place, the last one has elements.
    tensor = layout.names[bisect.bisect_right(layout.offsets, element) - 1]
    return f"rank {rank}, element {element} (in {tensor})"


def _first(differs: Tensor) -> int:
    return int(differs.to(torch.uint8).argmax())


def _require_equal(layout: BucketLayout, rank: int, got: Tensor, right: Tensor, words: str) -> None:
    """`words` take `got` and `right` where they first differ."""
    if not torch.equal(got, right):
        place = _first(got != right)
        differs = words.format(got=got[place], right=right[place])
        raise AssertionError(f"{_at(layout, rank, place)}: {differs}")


def _check_input(layout: BucketLayout, before: Sequence[Tensor], outcomes: Sequence[Outcome]) -> None:
    changed = "the gradient was changed from {right:.6g} to {got:.6g}, but modifies_input is False"
    for rank, (values, outcome) in enumerate(zip(before, outcomes, strict=True)):
        if outcome.changed is not None:
            _require_equal(layout, rank, outcome.changed, values, changed)


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
    end = 0
    for start, stop in sorted(spans):
        assert start < stop, f"{who} an empty range, {(start, stop)}"
        assert start >= end, f"{who} elements {start} to {min(stop, end) - 1} twice"
        assert start == end, f"{who} nothing from element {end} to {start - 1}"
        end = stop
    assert end == num_elements, f"{who} nothing from element {end} to {num_elements - 1}"


def _check_results(layout: BucketLayout, outcomes: Sequence[Outcome], dtype: torch.dtype) -> list[bool]:
    """Returns which ranks own what rank 0 owns, with equal numbers: looked at once, as no NaN is equal."""
    first, are_first = outcomes[0], [False] * len(outcomes)
    for rank, outcome in enumerate(outcomes):
        result, has_mean = outcome.result, bool(outcome.owned)
        if result is None or not has_mean:
            right = (result is not None) == has_mean or not layout.num_elements
            assert right, f"rank {rank}: a mean {'is missing' if has_mean else 'too many'}"
            continue
        assert tuple(result.shape) == (layout.num_elements,), f"rank {rank}: shape {tuple(result.shape)}"
        assert result.dtype == dtype, f"rank {rank}: type {result.dtype}"
        if rank and first.result is not None and outcome.owned == first.owned:
            are_first[rank] = torch.equal(result, first.result)
        for start, stop in () if are_first[rank] else outcome.owned:
            # The least and the largest are NaN where any is: several times as fast as `isfinite`.
            if not all(math.isfinite(extreme.item()) for extreme in result[start:stop].aminmax()):
                place = start + _first(~result[start:stop].isfinite())
                raise AssertionError(f"{_at(layout, rank, place)}: not finite, got {result[place]}")
    return are_first


def _check_zeros(layout: BucketLayout, outcomes: Sequence[Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        for start, stop in outcome.owned:
            assert outcome.result is not None
            if (wrong := outcome.result[start:stop] != 0).any():
                where = _at(layout, rank, start + _first(wrong))
                raise AssertionError(f"{where}: the mean of zeros is not zero")


def _check_mean(
    aggregator: Aggregator[Any],
    case: Case,
    index: int,
    outcomes: Sequence[Outcome],
    are_first: Sequence[bool],
) -> None:
    layout, gradients = case.layout, case.all_gradients()[index]
    values = [outcome.contribution for outcome in outcomes] if aggregator.own_momentum() else gradients
    stated = [aggregator.error_bound(value, len(values)) for value in values] if aggregator.lossy else []
    bounds = [bound for bound in stated if bound is not None]
    feeds_back = any(outcome.withheld is not None for outcome in outcomes)
    if not aggregator.lossy or (bounds and not feeds_back):
        of_gradients = values is gradients and not bounds
        integers = case.values[index] == "integers"
        bound = _exact(case)[index] if of_gradients else _Bound(values, bounds, case.dtype, integers=integers)
        for rank, outcome in enumerate(outcomes):
            if not are_first[rank]:
                bound.check(layout, rank, outcome)
    if aggregator.site(layout) == "replica" and (first := outcomes[0].result) is not None:
        for rank, outcome in enumerate(outcomes if layout.num_elements else ()):
            if not are_first[rank] and outcome.result is not None:
                words = "got {got:.9g}, rank 0 has {right:.9g}"
                _require_equal(layout, rank, outcome.result, first, words)


class _Bound:
    """The float64 mean of the ranks' values, and how far off it rounding, and what a lossy aggregator states
    (`bounds`), may bring an element. A sum of n terms and its division round n times, by half a unit in the
    last place of what the sum of magnitudes bounds; so do terms that are divided before they are summed.
    Below the normal numbers a unit is the smallest number."""

    def __init__(
        self, values: Sequence[Tensor], bounds: Sequence[Tensor], dtype: torch.dtype, *, integers: bool
    ) -> None:
        world_size, terms = len(values), torch.stack(list(values)).double()
        self.mean = terms.mean(0)
        stated = torch.stack([torch.zeros_like(self.mean), *bounds]).sum(0)
        unit, floor = torch.finfo(dtype).eps, smallest(dtype)
        if bounds:  # codes are of float32, of float64 too; their scales lose digits below its normal numbers
            codes = torch.finfo(torch.float32)
            unit, floor = max(unit, codes.eps), max(floor, codes.smallest_normal)
        self.allowed = stated + (terms.abs().sum(0) + stated) * unit + world_size * floor
        is_power_of_two = world_size & (world_size - 1) == 0
        if integers and is_power_of_two and not bounds:
            self.allowed.zero_()

    def check(self, layout: BucketLayout, rank: int, outcome: Outcome) -> None:
        for start, stop in outcome.owned:
            assert outcome.result is not None
            error = (outcome.result[start:stop].double() - self.mean[start:stop]).abs()
            if (wrong := error > self.allowed[start:stop]).any():
                place = start + _first(wrong)
                raise AssertionError(
                    f"{_at(layout, rank, place)}: got {outcome.result[place]:.9g}, the mean is "
                    f"{self.mean[place]:.9g}; allowed is {self.allowed[place]:.3g} off"
                )


@lru_cache(maxsize=64)  # up to 24 MB each
def _exact(case: Case) -> list[_Bound]:
    """[step] bounds of exact aggregators, many of which are checked on the same case."""
    return [
        _Bound(gradients, [], case.dtype, integers=values == "integers")
        for gradients, values in zip(case.all_gradients(), case.values, strict=True)
    ]


def _check_distribution(
    layout: BucketLayout, outcomes: Sequence[Outcome], dtype: torch.dtype, index: int
) -> None:
    if all(outcome.parameters is None for outcome in outcomes):
        return
    new = parameters_of(layout.num_elements, dtype, index)
    words = "distribute leaves the parameter {got:.9g}, the owner has {right:.9g}"
    for rank, outcome in enumerate(outcomes):
        if outcome.parameters is not None:
            _require_equal(layout, rank, outcome.parameters, new, words)
