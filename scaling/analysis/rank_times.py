"""Compares ranks phase by phase: the time that each rank spends by itself in the profiled steps.

In a synchronous step all ranks take equally long: one that is slow shows as waiting of the others. What a
rank does by itself (input, forward, backward up to each bucket, update, and the time in no phase) is its own,
so a rank's excess over the others is measured there:

1. of each launch, rank and phase the lower quartile of the own times (what disturbs a step makes it longer);
2. less the reference: the median over ranks, of two ranks the other; of this the median over launches;
3. a rank is slow if its sum exceeds `SLOW_SHARE` of the step, in every launch half as much at least, also in
   those of an A/A replicate (if that has another slow rank, the cell has none), if its own time is above the
   reference in most steps, and if it is late at an exchange: else nothing is lost.

Phases of the exchange are left out (the root of a tree has more to do there), and in an eager step the update
too, which may be one rank's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.samples import Floats, IterationLaunch
from scaling.measure.budget import MAIN, RankStep, arrivals_s

COMPUTED = ("input", "h2d", "forward", "backward", "unattributed")
SLOW_SHARE = 0.1  # of the step
USUAL_STEPS = 0.6  # part of the profiled steps in which a slow rank's own time is above the reference
MAIN_PHASE_SHARE = 0.25  # a phase with this part of the excess is named


@dataclass(frozen=True)
class SlowRankTimes:
    """A rank that makes the step longer by itself; times in seconds per step."""

    rank: int  # which one
    lost_s: float  # how much shorter the step would be without its excess
    phases_s: Mapping[str, float]  # phases with a notable part of the excess -> that part, the largest first
    # for an excess in the backward pass, the gradient bucket before which most of it comes, from 0; the
    # number of buckets for what follows the last; None where the pass is not cut into buckets
    bucket: int | None
    num_buckets: int  # of the step; 0 where it is not cut
    # how much later than the others (their median) it arrives at each exchange; empty where ranks have no
    # common clock or no exchange
    late_s: tuple[float, ...]
    steps_ratio: float  # part of the profiled steps in which its own time is above the reference


def own_phases(step: str) -> tuple[str, ...]:
    """The phases in which a rank does not wait for others, in an eager, overlapped or captured step."""
    return COMPUTED if step == "eager" else (*COMPUTED, "update")


def own_times_s(launch: IterationLaunch, phases: Sequence[str]) -> Floats:
    """Each rank's time without waiting in the profiled steps, in seconds: [step, rank, phase]."""
    return np.array(
        [[[rank.parts_s[phase] for phase in phases] for rank in ranks] for ranks in launch.budgets],
        dtype=np.float64,
    )


def excess_s(own_s: Floats) -> Floats:
    """How much longer each rank takes than the reference of the same shape: [any, rank, ...]."""
    if own_s.shape[1] == 2:
        return own_s - own_s[:, ::-1]
    return own_s - np.median(own_s, axis=1, keepdims=True)


def slow_rank(
    launches: Sequence[IterationLaunch], phases: Sequence[str], again: Sequence[IterationLaunch] = ()
) -> SlowRankTimes | None:
    """The rank that makes the step longer in all of a cell's launches that have profiled steps, if any, by
    the ranks' own `phases`; `again`: launches of its A/A replicate, in which the same rank has to be slow."""
    profiled = [launch for launch in launches if launch.profiled_steps]
    if not profiled or len(profiled[0].profiled_steps[0].ranks) < 2:
        return None
    own_s = [own_times_s(launch, phases) for launch in profiled]
    by_launch = _usual_excess_s([times_s.sum(axis=2) for times_s in own_s])  # [launch, rank]
    total_s = np.median(by_launch, axis=0)
    rank = int(total_s.argmax())
    late_s = _late_s(profiled, rank)
    lost_s = min(float(total_s[rank]), max(late_s, default=float("inf")))
    paired_s = np.concatenate([excess_s(times_s.sum(axis=2))[:, rank] for times_s in own_s])
    steps_ratio = float(np.mean(paired_s > 0))
    steps_s = [max(rank.step_s for rank in step.ranks) for one in profiled for step in one.profiled_steps]
    least_s = SLOW_SHARE * float(np.median(steps_s))
    if lost_s < least_s or by_launch[:, rank].min() < least_s / 2 or steps_ratio < USUAL_STEPS:
        return None
    others = _usual_excess_s(
        [own_times_s(replicate, phases).sum(axis=2) for replicate in again if replicate.profiled_steps]
    )
    if len(others) and others[:, rank].min() < least_s / 2:
        return None
    of_phases = np.median(_usual_excess_s(own_s)[:, rank], axis=0)
    main_phases = {
        phases[at]: float(of_phases[at])
        for at in np.argsort(-of_phases)
        if of_phases[at] >= MAIN_PHASE_SHARE * total_s[rank]
    } or {phases[int(of_phases.argmax())]: float(of_phases.max())}
    bucket, num_buckets = _bucket(profiled, rank) if next(iter(main_phases)) == "backward" else (None, 0)
    return SlowRankTimes(rank, lost_s, main_phases, bucket, num_buckets, late_s, steps_ratio)


def _usual_excess_s(own_s: Sequence[Floats]) -> Floats:
    """For times [step, rank, ...] of each launch, the excess of their lower quartile: [launch, rank, ...]."""
    if not own_s:
        return np.empty((0, 0))
    return excess_s(np.array([np.quantile(times_s, 0.25, axis=0) for times_s in own_s]))


def _late_s(launches: Sequence[IterationLaunch], rank: int) -> tuple[float, ...]:
    """For each exchange, how much later than the others' median the rank arrives: median over steps."""
    arrivals = [arrivals_s(step.ranks) for launch in launches for step in launch.profiled_steps]
    known = [times_s for times_s in arrivals if times_s is not None]
    if len(known) < len(arrivals) or len({times_s.shape for times_s in known}) > 1:
        return ()
    times = np.array(known)  # [step, exchange, rank]
    others = np.median(np.delete(times, rank, axis=2), axis=2)
    return tuple(float(lateness_s) for lateness_s in np.median(times[:, :, rank] - others, axis=0))


def _bucket(launches: Sequence[IterationLaunch], rank: int) -> tuple[int | None, int]:
    """Where in the backward pass most of the excess occurs, and the number of buckets of the pass."""
    pieces = [
        [_backward_pieces_s(rank_spans) for rank_spans in step.ranks]
        for launch in launches
        for step in launch.profiled_steps
    ]
    counts = {len(rank_spans) for step in pieces for rank_spans in step}
    if len(counts) != 1 or (count := counts.pop()) < 2:
        return None, 0
    return int(_usual_excess_s([np.array(pieces)])[0, rank].argmax()), count - 1


def _backward_pieces_s(step: RankStep) -> list[float]:
    """The times of the backward pass up to each bucket, and after the last."""
    backward = sorted(
        (span for span in step.spans if span.phase == "backward" and span.lane == MAIN),
        key=lambda span: (span.start_s, span.stop_s),
    )
    return [span.stop_s - span.start_s for span in backward]
