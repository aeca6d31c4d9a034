"""Is a machine slower than it was: campaigns one after the other, with a stated rate of false alarms.

If nothing changes, the campaigns of a history are exchangeable: the rank of the newest among all so far is
uniform, and independent of the ranks before it, whatever the distribution of their times, their scale and
outliers (A. Renyi, 1962; V. Vovk, "Testing randomness online", Statistical Science 2021, arXiv 1906.09256).
So bets on these ranks are fair:

1. For each campaign that may be the first slow one, a bet that the k since then are the k slowest of all n:
   its value is multiplied by (1 - EPSILON) n / k where the newest rank is among the k highest, and by
   EPSILON n / (n - k) where it is not.
2. The evidence of a stream is the sum of these values, an e-detector: without a change it takes A campaigns
   or more, on average, to reach A (J. Shin, A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework
   for sequential change detection", 2023, arXiv 2203.03532).
3. Streams are averaged, which keeps that rate however they depend on each other: half of the weight has the
   mean of all streams (what changes for all), half the streams one by one.

Before `LEARNED` campaigns nothing is said. Missing days do not matter. A machine that drifts is not
exchangeable: it will give an alarm, and has changed.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from scaling.analysis.rank_times import own_phases, slow_rank
from scaling.analysis.samples import read_cells
from scaling.analysis.study_scatter import cell_times
from scaling.analysis.transfers import read_transfers
from scaling.errors import ScalingError
from scaling.measure.probe.series import label, size_text
from scaling.store import ResultsFolder
from scaling.store.history import Campaign, samples_digest

Floats = NDArray[np.float64]

LEARNED = 5
EPSILON = 0.2
COMMON = "all times"
_OF_SIZE = re.compile(r" of \d[\d.e+]* (?:B|KiB|MiB|GiB)$", re.ASCII)
"""The size of a message: of each kind only the largest that all campaigns have is a stream."""
COMMON_WEIGHT = 0.5
RUNS_PER_FALSE_ALARM = 100
SLOWDOWNS, SEEN_SHARE = (0.03, 0.05, 0.1), 0.9
DRAWS, MOST_DRAWN = 60, 60
LEVEL = 0.05


def evidence(values: Floats) -> Floats:
    """[stream, campaign]: that the stream became larger. Values are compared, nothing else."""
    found, log_bets = np.zeros_like(values), np.zeros_like(values)
    for n in range(LEARNED + 1, values.shape[1] + 1):
        newest = values[:, n - 1, None]
        rank = 1 + (values[:, : n - 1] >= newest).sum(axis=1, keepdims=True)  # equal ones are no evidence
        since = np.arange(n - LEARNED, 0, -1)
        bets = np.where(rank <= since, (1 - EPSILON) * n / since, EPSILON * n / (n - since))
        log_bets[:, : n - LEARNED] += np.log(bets)
        found[:, n - 1] = np.exp(np.minimum(log_bets[:, : n - LEARNED], 700)).sum(axis=1)
    return found


def first_alarm(logs: Floats, runs_per_false_alarm: float) -> tuple[int | None, Floats]:
    """Where the evidence of [stream, campaign] suffices; and [common, stream...] there, or at the end."""
    found = evidence(np.vstack([logs.mean(axis=0), logs]))
    averaged = COMMON_WEIGHT * found[0] + (1 - COMMON_WEIGHT) * found[1:].mean(axis=0)
    enough = np.flatnonzero(averaged >= runs_per_false_alarm)
    at = int(enough[0]) if len(enough) else None
    return at, found[:, -1 if at is None else at]


@dataclass(frozen=True)
class Change:
    """A stream that changed."""

    stream: str  # which; `COMMON` for the mean of all
    first: int  # the first campaign of the new level, most likely
    earliest: int  # earliest, latest: of the smallest set of campaigns that has it with 95%
    latest: int
    # ratio, interval: the new time over the old one, and 95% of it; None: one campaign has no scatter
    ratio: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class HostEffect:
    """A host whose campaigns take longer than others; the ratio has an interval for all hosts at once."""

    host: str
    ratio: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class Watch:
    """What a history says."""

    campaigns: Sequence[Campaign]  # those that count, in their order
    streams: Sequence[str]  # that all of them have
    logs: Floats  # [stream, campaign] of seconds
    runs_per_false_alarm: float  # without a change there are as many campaigns before an alarm, on average
    alarm: int | None  # the campaign at which the evidence sufficed; None: it did not
    change: Change | None  # of what changed most surely; None without an alarm
    others: Sequence[str]  # streams that changed alike, by their own evidence
    hosts: Sequence[HostEffect]  # that are slower than others
    # slowdown -> for how many campaigns it has to last for an alarm by now, in `SEEN_SHARE` of cases; None:
    # for more than half of the history. Empty with an alarm, or before `LEARNED` campaigns
    seen: Mapping[float, int | None]
    left_out: Sequence[str]  # streams that some campaigns lack

    @property
    def is_learning(self) -> bool:
        return len(self.campaigns) <= LEARNED


def campaign_of(folder: ResultsFolder, name: str, commit: str | None = None) -> Campaign:
    """What a finished results folder adds to a history; ScalingError where it has no times."""
    seconds = {}
    for cell in read_cells(folder):
        if cell.cell["kind"] != "iteration" or cell.cell.get("aa_replicate"):
            continue
        times = cell_times([cell]).get(cell.cell_id)
        if times and times.by_launch:
            what = "{model}, {aggregator}@{world_size}".format(**cell.cell)
            logs = np.log([*times.by_launch.values()])
            seconds[f"{what} [{cell.cell_id[:6]}]"] = float(np.exp(logs.mean()))
    for result in read_transfers(folder):
        for one in sorted(result.transfers, key=lambda one: one.num_bytes):
            what = f"{label(one.example)} [{result.cell_id[:6]}]"
            seconds[f"{what} of {size_text(one.num_bytes)}"] = one.estimate.median
    runs = [record for record in folder.runs() if record.state == "done"]
    if not seconds or not runs:
        raise ScalingError(f"{folder.path} has no times of iterations or transfers to watch")
    started = min(str(record.launch.get("started_at") or "") for record in runs)
    named = [record.launch.get("nodes") or [record.launch.get("host")] for record in runs]
    hosts = sorted({str(host) for of_run in named for host in of_run if host})
    return Campaign(name, started, seconds, tuple(hosts), commit, samples_digest(folder))


def slow_ranks(folder: ResultsFolder) -> list[int]:
    """Ranks that make a cell's steps longer by themselves, as `explain` names them."""
    found = (slow_rank(cell.launches, own_phases(str(cell.cell.get("step")))) for cell in read_cells(folder))
    return sorted({one.rank for one in found if one is not None})


def watch(campaigns: Sequence[Campaign], runs_per_false_alarm: float = RUNS_PER_FALSE_ALARM) -> Watch:
    """What the campaigns say, in order; ScalingError where they share no stream, or the rate is none."""
    if not runs_per_false_alarm > 1:
        raise ScalingError(f"{runs_per_false_alarm:g} campaigns a false alarm; allowed: more than 1")
    every = dict.fromkeys(name for campaign in campaigns for name in campaign.seconds)
    shared = [name for name in every if all(name in campaign.seconds for campaign in campaigns)]
    largest = {_OF_SIZE.sub("", name): name for name in shared}  # a short sweep leaves out large ones
    streams = [*largest.values()]
    if campaigns and not streams:
        raise ScalingError("the campaigns have no cell in common; a history is of one study")
    rows = [[math.log(campaign.seconds[name]) for campaign in campaigns] for name in streams]
    logs = np.array(rows).reshape(len(streams), len(campaigns))
    alarm, evidence = first_alarm(logs, runs_per_false_alarm)
    change, others = None, []
    if alarm is not None:
        surest = int(np.argmax(evidence[1:]))
        if _is_common(evidence, runs_per_false_alarm):
            change = change_in(COMMON, logs.mean(axis=0))
        else:
            change = change_in(streams[surest], logs[surest])
        others = [
            name for name, own in zip(streams, evidence[1:], strict=True) if own >= runs_per_false_alarm
        ]
    return Watch(
        *(campaigns, streams, logs, runs_per_false_alarm, alarm, change, others),
        hosts=host_effects(campaigns, logs),
        seen={}
        if alarm is not None or len(campaigns) <= LEARNED
        else {slowdown: _seen(logs, slowdown, runs_per_false_alarm) for slowdown in SLOWDOWNS},
        left_out=[name for name in every if _OF_SIZE.sub("", name) not in largest],
    )


def _is_common(evidence: Floats, enough: float) -> bool:
    """Whether most of [common, stream...] point at it, or their mean does where each is too noisy."""
    pointing = np.count_nonzero(evidence[1:] >= enough / 10)
    return bool(2 * pointing > len(evidence) - 1 or evidence[0] > 10 * evidence[1:].max())


def change_in(stream: str, values: Floats) -> Change:
    """Where a series of logarithms rose to a new level, and by how much.

    Every campaign is equally likely to be the first of the new level beforehand; levels and the variance have
    the usual improper priors, so that the posterior is proportional to RSS^(-(n-2)/2) / sqrt(n1 n2)
    (A. F. M. Smith, "A Bayesian approach to inference about a change-point", Biometrika 1975).
    """
    n = len(values)
    places = np.arange(2, n)
    splits = [(values[:at], values[at:]) for at in places]
    rss = np.array([((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum() for a, b in splits])
    log_post = -(n - 2) / 2 * np.log(np.maximum(rss, 1e-300)) - 0.5 * np.log(places * (n - places))
    rises = np.array([b.mean() > a.mean() for a, b in splits])
    if rises.any():
        log_post[~rises] = -np.inf
    weights = np.exp(log_post - log_post.max())
    order = np.argsort(-weights)
    enough = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    likely = places[order[:enough]]
    first = int(places[order[0]])
    ratio, interval = _ratio(values[first:], values[:first], LEVEL)
    return Change(stream, first, int(likely.min()), int(likely.max()), ratio, interval)


def host_effects(campaigns: Sequence[Campaign], logs: Floats) -> list[HostEffect]:
    """Hosts on which campaigns take longer than without them, if these ran on several sets of hosts."""
    hosts = sorted({host for campaign in campaigns for host in campaign.hosts})
    found = []
    common = logs.mean(axis=0) if len(logs) else np.empty(0)
    for host in hosts:
        has = np.array([host in campaign.hosts for campaign in campaigns])
        if min(has.sum(), (~has).sum()) < 2:
            continue
        ratio, interval = _ratio(common[has], common[~has], LEVEL / len(hosts))
        if interval and interval[0] > 1:
            found.append(HostEffect(host, ratio, interval))
    return found


def _ratio(new: Floats, old: Floats, level: float) -> tuple[float, tuple[float, float] | None]:
    """Of geometric means, with an interval by Welch's t; None where a side has one value."""
    ratio = math.exp(new.mean() - old.mean())
    if min(len(new), len(old)) < 2:
        return ratio, None
    interval = stats.ttest_ind(new, old, equal_var=False).confidence_interval(1 - level)
    return ratio, (math.exp(interval.low), math.exp(interval.high))


def _seen(logs: Floats, slowdown: float, runs_per_false_alarm: float) -> int | None:
    """By histories drawn anew from this one, of which the last campaigns are longer."""
    random = np.random.default_rng(0)
    known = logs[:, -MOST_DRAWN:]
    count = known.shape[1]
    drawn = [known[:, random.integers(count, size=count)] for _ in range(DRAWS)]
    drawn = [one + random.normal(0, 1e-9, one.shape) for one in drawn]  # a campaign drawn twice is no tie

    def share(slow: int) -> float:
        shift = np.where(np.arange(count) < count - slow, 0.0, math.log1p(slowdown))
        return float(
            np.mean([first_alarm(one + shift, runs_per_false_alarm)[0] is not None for one in drawn])
        )

    most = count // 2
    slow = bisect_left(range(most + 1), SEEN_SHARE, key=share)
    return slow if slow <= most else None
