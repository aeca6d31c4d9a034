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
from scaling.store.history import Campaign

Floats = NDArray[np.float64]

LEARNED = 5
EPSILON = 0.2
COMMON = "all times"
RUNS_PER_FALSE_ALARM = 100
SLOWDOWNS, SEEN_SHARE = (0.03, 0.05, 0.1), 0.9
DRAWS, MOST_DRAWN = 60, 60
LEVEL = 0.05
_OF_SIZE = re.compile(r" of \d[\d.e+]* (?:B|KiB|MiB|GiB)$", re.ASCII)


@dataclass(frozen=True)
class Ratio:
    """A new time over an old one, with its interval; None: a side is one campaign, without scatter."""

    ratio: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Change(Ratio):
    """A stream that changed, or `COMMON`."""

    stream: str
    first: int  # the first campaign of the new level, most likely
    earliest: int  # earliest, latest: of the smallest set of campaigns that has it with 95%
    latest: int


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
    hosts: Mapping[str, Ratio]  # whose campaigns take longer, with intervals for all hosts at once
    # slowdown -> for how many campaigns it has to last for an alarm by now, in `SEEN_SHARE` of cases; None:
    # for more than half of the history. Empty with an alarm, or up to `LEARNED` campaigns
    seen: Mapping[float, int | None]
    left_out: Sequence[str]  # streams that some campaigns lack

    def around(self, change: Change) -> tuple[Campaign, Campaign]:
        """The campaigns that are certainly before and after it."""
        return self.campaigns[max(change.earliest - 1, 0)], self.campaigns[change.latest]


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
    enough = np.flatnonzero((found[0] + found[1:].mean(axis=0)) / 2 >= runs_per_false_alarm)
    at = int(enough[0]) if len(enough) else None
    return at, found[:, -1 if at is None else at]


def campaign_of(folder: ResultsFolder, name: str, commit: str | None = None) -> Campaign:
    """What a finished results folder adds to a history; ScalingError where it has no times."""
    seconds, slow = {}, set()
    for cell in read_cells(folder):
        if cell.cell["kind"] != "iteration" or cell.cell.get("aa_replicate"):
            continue
        times = cell_times([cell]).get(cell.cell_id)
        if times and times.by_launch:
            what = "{model}, {aggregator}@{world_size}".format(**cell.cell)
            seconds[f"{what} [{cell.cell_id[:6]}]"] = float(stats.gmean([*times.by_launch.values()]))
        if found := slow_rank(cell.launches, own_phases(str(cell.cell.get("step")))):
            nodes: list[list[str]] = [run.launch.get("rank_nodes") or [] for run in cell.done]
            is_one = nodes[0] and all(of_run == nodes[0] for of_run in nodes)
            slow.add(nodes[0][found.rank] if is_one else f"rank {found.rank}")
    for result in read_transfers(folder):
        for one in sorted(result.transfers, key=lambda one: one.num_bytes):
            what = f"{label(one.example)} [{result.cell_id[:6]}]"
            seconds[f"{what} of {size_text(one.num_bytes)}"] = one.estimate.median
    runs = [record.launch for record in folder.runs() if record.state == "done"]
    if not seconds or not runs:
        raise ScalingError(f"{folder.path} has no times of iterations or transfers to watch")
    started = min(str(launch.get("started_at") or "") for launch in runs)
    hosts = {str(host) for launch in runs for host in launch.get("nodes") or [launch.get("host")] if host}
    return Campaign(
        name=name,
        started=started,
        seconds=seconds,
        hosts=sorted(hosts),
        commit=commit,
        slow=sorted(slow),
    )


def watch(campaigns: Sequence[Campaign], runs_per_false_alarm: float = RUNS_PER_FALSE_ALARM) -> Watch:
    """What the campaigns say, in their order; ScalingError without a stream in common, or where the rate is
    none."""
    if not runs_per_false_alarm > 1:
        raise ScalingError(f"{runs_per_false_alarm:g} campaigns a false alarm; allowed: more than 1")
    every = dict.fromkeys(name for campaign in campaigns for name in campaign.seconds)
    # Of each kind of message only the largest that all have: a short sweep leaves out large ones.
    largest = {
        _OF_SIZE.sub("", name): name
        for name in every
        if all(name in campaign.seconds for campaign in campaigns)
    }
    streams = [*largest.values()]
    if not streams:
        raise ScalingError("the campaigns have no cell in common; a history is of one study")
    logs = np.log([[campaign.seconds[name] for campaign in campaigns] for name in streams])
    alarm, evidence = first_alarm(logs, runs_per_false_alarm)
    change, others, seen = None, [], {}
    if alarm is not None:
        own = evidence[1:]
        surest = int(np.argmax(own))
        # Most streams point at it, or their mean does where each is too noisy.
        if 2 * np.mean(own >= runs_per_false_alarm / 10) > 1 or evidence[0] > 10 * own.max():
            change = change_in(COMMON, logs.mean(axis=0))
        else:
            change = change_in(streams[surest], logs[surest])
        others = [streams[at] for at in np.flatnonzero(own >= runs_per_false_alarm)]
    elif len(campaigns) > LEARNED:
        seen = {slowdown: _seen(logs, slowdown, runs_per_false_alarm) for slowdown in SLOWDOWNS}
    left_out = [name for name in every if _OF_SIZE.sub("", name) not in largest]
    hosts = host_effects(campaigns, logs)
    return Watch(campaigns, streams, logs, runs_per_false_alarm, alarm, change, others, hosts, seen, left_out)


def change_in(stream: str, values: Floats) -> Change:
    """Where a series of logarithms rose to a new level, and by how much.

    Every campaign is equally likely to be the first of the new level beforehand; levels and the variance have
    the usual improper priors, so that the posterior is proportional to RSS^(-(n-2)/2) / sqrt(n1 n2)
    (A. F. M. Smith, "A Bayesian approach to inference about a change-point", Biometrika 1975).
    """
    n = len(values)
    places = np.arange(2, n)
    splits = [(values[:at], values[at:]) for at in places]
    rss = np.array([at * a.var() + (n - at) * b.var() for at, (a, b) in zip(places, splits, strict=True)])
    log_post = -(n - 2) / 2 * np.log(np.maximum(rss, 1e-300)) - 0.5 * np.log(places * (n - places))
    rises = np.array([b.mean() > a.mean() for a, b in splits])
    if rises.any():
        log_post[~rises] = -np.inf
    weights = np.exp(log_post - log_post.max())
    order = np.argsort(-weights)
    enough = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    likely = places[order[:enough]]
    first = int(places[order[0]])
    found = _ratio(values[first:], values[:first], LEVEL)
    return Change(found.ratio, found.interval, stream, first, int(likely.min()), int(likely.max()))


def host_effects(campaigns: Sequence[Campaign], logs: Floats) -> dict[str, Ratio]:
    """Hosts on which campaigns take longer than without them, if these ran on several sets of hosts."""
    hosts = sorted({host for campaign in campaigns for host in campaign.hosts})
    found, common = {}, logs.mean(axis=0)
    for host in hosts:
        has = np.array([host in campaign.hosts for campaign in campaigns])
        if min(has.sum(), (~has).sum()) > 1:
            found[host] = _ratio(common[has], common[~has], LEVEL / len(hosts))
    return {host: ratio for host, ratio in found.items() if ratio.interval and ratio.interval[0] > 1}


def _ratio(new: Floats, old: Floats, level: float) -> Ratio:
    """Of geometric means, by Welch's t."""
    ratio = math.exp(new.mean() - old.mean())
    if min(len(new), len(old)) < 2:
        return Ratio(ratio, None)
    interval = stats.ttest_ind(new, old, equal_var=False).confidence_interval(1 - level)
    return Ratio(ratio, (math.exp(interval.low), math.exp(interval.high)))


def _seen(logs: Floats, slowdown: float, runs_per_false_alarm: float) -> int | None:
    """By histories drawn anew from this one, of which the last campaigns are longer."""
    random = np.random.default_rng(0)
    known = logs[:, -MOST_DRAWN:]
    count = known.shape[1]
    drawn = [known[:, random.integers(count, size=count)] for _ in range(DRAWS)]
    drawn = [one + random.normal(0, 1e-9, one.shape) for one in drawn]  # a campaign drawn twice is no tie

    def share(slow: int) -> float:
        shift = np.where(np.arange(count) < count - slow, 0.0, math.log1p(slowdown))
        return sum(first_alarm(one + shift, runs_per_false_alarm)[0] is not None for one in drawn) / DRAWS

    most = count // 2
    slow = bisect_left(range(most + 1), SEEN_SHARE, key=share)
    return slow if slow <= most else None
