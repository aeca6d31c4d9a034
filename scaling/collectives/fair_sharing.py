"""Activities that share resources fairly, followed through time: the engine under `simulate`.

An activity waits for others, then for a delay of its own, and then does work, which uses resources: a unit of
work takes `weight` units of each. What runs at the same time shares them max-min fair: no rate can be raised
without lowering one that is not higher. Here are numbers only; what they stand for is the caller's matter.

1. Rates are found by progressive filling: all grow equally; where a resource is full, those that use it stop,
   and whoever has reached its own highest rate stops too; the others grow on. The order in which resources
   get full matters only among those with users in common, so all that get full before any other that their
   users take are settled in one round.
2. Time goes from event to event: a delay ends, or an activity ends. Where that changes who uses resources,
   the rates are found anew.

Equal activities stop in one round and end in one event, so a thousand of them cost little more than one.

Reference: D. Bertsekas, R. Gallager, "Data Networks" (2nd ed., 1992), section 6.5.2 (max-min flow control);
as a model of transfers, H. Casanova, L. Marchal, "A network model for simulation of Grid application",
INRIA RR-4596 (2002).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE_RATIO = 1e-12
"""Levels, times and rests of work that differ by less are one: they differ by rounding."""


@dataclass(frozen=True)
class Uses:
    """Who uses what: a unit of work of `activity[i]` takes `weight[i]` units of `resource[i]`."""

    activity: Ints
    resource: Ints
    weight: Floats

    def where(self, kept: NDArray[np.bool_]) -> Uses:
        """The uses that are kept."""
        return Uses(self.activity[kept], self.resource[kept], self.weight[kept])

    @staticmethod
    def of(activity: object, resource: object, weight: object) -> Uses:
        """From anything that numpy takes; `weight` may be one number for all."""
        activities = np.asarray(activity, dtype=np.int64)
        weights = np.broadcast_to(np.asarray(weight, dtype=np.float64), activities.shape)
        return Uses(activities, np.asarray(resource, dtype=np.int64), weights)

    @staticmethod
    def joined(*parts: Uses) -> Uses:
        """All of them; none of no parts."""
        parts = parts or (Uses.of([], [], []),)
        return Uses(
            np.concatenate([part.activity for part in parts]),
            np.concatenate([part.resource for part in parts]),
            np.concatenate([part.weight for part in parts]),
        )

    def units(self, work: Floats, num_resources: int) -> Floats:
        """What passes each resource when every activity a does `work[a]`."""
        units = self.weight * work[self.activity]
        return np.bincount(self.resource, units, minlength=num_resources).astype(np.float64)


@dataclass(frozen=True)
class Activities:
    """What is to be done, one entry an activity. `delay_s`: from the end of its last predecessor (or time 0)
    to the begin of its work. `highest_rate`: units a second, even where the resources would give more; may be
    infinite. `follows`: entry i says that activity `follows[0][i]` waits until `follows[1][i]` has ended."""

    delay_s: Floats
    work: Floats
    highest_rate: Floats
    uses: Uses
    follows: tuple[Ints, Ints]


@dataclass(frozen=True)
class ActivityTimes:
    """When each activity was free to start (its delay begins) and when it ended."""

    start_s: Floats
    end_s: Floats


def max_min_rates(uses: Uses, highest_rate: Floats, capacity: Floats) -> Floats:
    """The max-min fair rate of every activity; without uses, its highest rate. Capacities are finite."""
    rates = np.zeros(len(highest_rate))
    grows = np.ones(len(rates), dtype=bool)
    left = capacity.astype(np.float64)
    while grows.any():
        load = np.bincount(uses.resource, uses.weight, minlength=len(left))
        full_at = np.divide(left, load, out=np.full(len(left), np.inf), where=load > 0)
        bound = highest_rate.copy()  # of each activity: where the first thing that holds it does
        np.minimum.at(bound, uses.activity, full_at[uses.resource])
        lowest = np.full(len(left), np.inf)  # of each resource: the lowest bound of its users
        np.minimum.at(lowest, uses.resource, bound[uses.activity])
        holds = full_at <= lowest * (1 + TOLERANCE_RATIO)
        stops = highest_rate <= bound
        stops[uses.activity[holds[uses.resource]]] = True
        stops &= grows
        rates[stops] = bound[stops]
        ended = stops[uses.activity]
        left = np.maximum(left - uses.where(ended).units(rates, len(left)), 0.0)
        uses, grows = uses.where(~ended), grows & ~stops
    return rates


def run(activities: Activities, capacity: Floats) -> ActivityTimes:
    """Follows the activities until all have ended. `capacity`: of each resource, units a second; infinite
    where it never limits. ValueError: a capacity or a rate is not positive, or activities wait for one
    another in a circle."""
    used = np.unique(activities.uses.resource)
    if (capacity[used] <= 0).any() or (activities.highest_rate <= 0).any():
        raise ValueError("capacities and highest rates must be positive: some work would never end")
    return _Run(activities, capacity, used).to_the_end()


class _Run:
    """The state between two events."""

    def __init__(self, activities: Activities, capacity: Floats, used: Ints) -> None:
        limits = np.isfinite(capacity[activities.uses.resource])
        uses = activities.uses.where(limits)
        # Only resources that somebody uses, numbered anew: a large machine has many that rest.
        self._uses = Uses(uses.activity, np.searchsorted(used, uses.resource), uses.weight)
        self._capacity = capacity[used]
        self._highest_rate = activities.highest_rate
        self._work = activities.work
        shares = np.zeros(len(self._work), dtype=bool)
        shares[self._uses.activity] = True
        self._shares = shares & (self._work > 0)
        # What uses nothing ends after a time known beforehand: it is all delay.
        alone_s = np.where(self._shares, 0.0, self._work / self._highest_rate)
        self._delay_s = activities.delay_s + alone_s
        self._start_s = np.full(len(self._work), np.nan)
        self._end_s = np.full(len(self._work), np.nan)
        self._now_s = 0.0
        self._waits_for, self._successors, self._first_successor = _successors(
            activities.follows, len(self._work)
        )
        self._delayed = np.empty(0, dtype=np.int64)
        self._delay_ends_s = np.empty(0)
        self._flowing = np.empty(0, dtype=np.int64)
        self._rest = np.empty(0)
        self._rates = np.empty(0)

    def to_the_end(self) -> ActivityTimes:
        self._release(np.flatnonzero(self._waits_for == 0))
        while self._delayed.size or self._flowing.size:
            self._next_event()
        if np.isnan(self._end_s).any():
            raise ValueError("activities wait for one another in a circle")
        return ActivityTimes(self._start_s, self._end_s)

    def _next_event(self) -> None:
        rest_s = self._rest / self._rates
        wait_s = self._delay_ends_s - self._now_s
        passed_s = max(min(rest_s.min(initial=np.inf), wait_s.min(initial=np.inf)), 0.0)
        self._now_s += passed_s
        margin_s = TOLERANCE_RATIO * self._now_s
        due = wait_s <= passed_s + margin_s
        ended = rest_s <= passed_s * (1 + TOLERANCE_RATIO)
        self._rest -= self._rates * passed_s
        ended |= self._rest <= TOLERANCE_RATIO * self._work[self._flowing]
        delayed, flowed = self._delayed[due], self._flowing[ended]
        self._delayed, self._delay_ends_s = self._delayed[~due], self._delay_ends_s[~due]
        begins = delayed[self._shares[delayed]]
        if begins.size or flowed.size:
            self._share(np.concatenate([self._flowing[~ended], begins]), self._rest[~ended], begins)
        self._end(np.concatenate([flowed, delayed[~self._shares[delayed]]]))

    def _share(self, flowing: Ints, rest: Floats, begins: Ints) -> None:
        """From now on these flow; those that begin have all their work before them."""
        self._flowing = flowing
        self._rest = np.concatenate([rest, self._work[begins]])
        position = np.full(len(self._work), -1)
        position[flowing] = np.arange(len(flowing))
        uses = self._uses.where(position[self._uses.activity] >= 0)
        uses = Uses(position[uses.activity], uses.resource, uses.weight)
        self._rates = max_min_rates(uses, self._highest_rate[flowing], self._capacity)

    def _end(self, ended: Ints) -> None:
        self._end_s[ended] = self._now_s
        first, stop = self._first_successor[ended], self._first_successor[ended + 1]
        followers = self._successors[ranges(first, stop)]
        np.subtract.at(self._waits_for, followers, 1)
        self._release(np.unique(followers[self._waits_for[followers] == 0]))

    def _release(self, freed: Ints) -> None:
        self._start_s[freed] = self._now_s
        self._delayed = np.concatenate([self._delayed, freed])
        self._delay_ends_s = np.concatenate([self._delay_ends_s, self._now_s + self._delay_s[freed]])


def ranges(starts: Ints, stops: Ints) -> Ints:
    """The numbers from starts[0] to before stops[0], then those from starts[1], and so on."""
    lengths = stops - starts
    offsets: Ints = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
    return np.arange(len(offsets)) + offsets


def _successors(follows: tuple[Ints, Ints], num_activities: int) -> tuple[Ints, Ints, Ints]:
    """How many each waits for; who waits, grouped by whom they wait for; where each one's group begins."""
    followers, predecessors = follows
    order = np.argsort(predecessors, kind="stable")
    first = np.searchsorted(predecessors[order], np.arange(num_activities + 1))
    waits_for = np.bincount(followers, minlength=num_activities).astype(np.int64)
    return waits_for, followers[order], first
