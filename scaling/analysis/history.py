"""Is a machine slower than it was: campaigns one after the other, with a stated rate of false alarms.

If nothing changes, the campaigns of a history are exchangeable: the rank of the newest among all so far is
uniform, and independent of the ranks before it, whatever the distribution of their times, their scale and
outliers (A. Renyi, 1962; V. Vovk, "Testing randomness online", Statistical Science 2021, arXiv 1906.09256).
So these bets on ranks win nothing on average:

1. For each campaign that may be the first slow one, a bet that the k since then are the k slowest of all n:
   its value is multiplied by (1 - EPSILON) n / k where the newest rank is among the k highest, by sqrt(A) at
   most, so that one outlier alone gives no alarm; and by EPSILON n / (n - k) where it is not.
2. The evidence of a stream is their sum, an e-detector: without a change it reaches A after A campaigns or
   more, on average (J. Shin, A. Ramdas, A. Rinaldo, "E-detectors: a nonparametric framework for sequential
   change detection", 2023, arXiv 2203.03532).
3. Streams are averaged, which keeps that rate however they depend on each other: half of the weight has the
   mean of all streams (what changes for all), half the streams one by one.

Up to `LEARNED` campaigns nothing is said. A machine that drifts is not exchangeable: it has changed.
"""

from __future__ import annotations

import math
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
Ratio = tuple[float, tuple[float, float] | None]
"""A new time over an old one, with its interval; None: a side is one campaign, without scatter."""

LEARNED, EPSILON = 5, 0.2
COMMON = "all times"
RUNS_PER_FALSE_ALARM = 100
SLOWDOWNS, MOST_SLOW, LEVEL = (0.03, 0.05, 0.1), 30, 0.05
_KINDS = {"iteration": "", "convergence": "training of "}


@dataclass(frozen=True)
class Change:
    """A stream that changed, or `COMMON`."""

    stream: str
    ratio: Ratio
    first: int  # the first campaign of the new level, most likely
    earliest: int  # earliest, latest: of the smallest set of campaigns that has it with 95%
    latest: int


@dataclass(frozen=True)
class Watch:
    """What a history says."""

    campaigns: Sequence[Campaign]  # those that count, in their order
    streams: Sequence[str]  # that all of them have
    logs: Floats  # [stream, campaign] of seconds
    runs_per_false_alarm: float  # campaigns to an alarm without a change, on average
    alarm: int | None  # the campaign at which the evidence sufficed; None: it did not
    change: Change | None  # of what changed most surely; None without an alarm
    others: Sequence[str]  # streams that changed alike, by their own evidence
    hosts: Mapping[str, Ratio]  # whose campaigns take longer, with intervals for all hosts at once
    seen: Mapping[float, int | None]  # slowdown -> of how many last campaigns it gives an alarm, if of any
    left_out: Sequence[str]  # streams that some campaigns lack

    def around(self, change: Change) -> tuple[Campaign, Campaign]:
        """The campaigns that are certainly before and after it."""
        return self.campaigns[max(change.earliest - 1, 0)], self.campaigns[change.latest]

    @property
    def relative(self) -> Floats:
        """[stream, campaign]: each time against the stream's median before the change, less one."""
        usual = self.logs[:, : self.change.first] if self.change else self.logs
        return np.expm1(self.logs - np.median(usual, axis=1, keepdims=True))


def evidence(values: Floats, most: float) -> Floats:
    """[stream, campaign]: that the stream became larger; a campaign multiplies it by at most `most`."""
    found, log_bets = np.zeros_like(values), np.zeros_like(values)
    for n in range(LEARNED + 1, values.shape[1] + 1):
        newest = values[:, n - 1, None]
        rank = 1 + (values[:, : n - 1] >= newest).sum(axis=1, keepdims=True)  # equal ones are no evidence
        since = np.arange(n - LEARNED, 0, -1)
        bets = np.where(rank <= since, np.minimum((1 - EPSILON) * n / since, most), EPSILON * n / (n - since))
        log_bets[:, : n - LEARNED] += np.log(bets)
        found[:, n - 1] = np.exp(np.minimum(log_bets[:, : n - LEARNED], 700)).sum(axis=1)
    return found


def first_alarm(logs: Floats, runs_per_false_alarm: float) -> tuple[int | None, Floats]:
    """Where the evidence of [stream, campaign] suffices; and [common, stream...] there, or at the end."""
    found = evidence(np.vstack([logs.mean(axis=0), logs]), math.sqrt(runs_per_false_alarm))
    enough = np.flatnonzero((found[0] + found[1:].mean(axis=0)) / 2 >= runs_per_false_alarm)
    at = int(enough[0]) if len(enough) else None
    return at, found[:, -1 if at is None else at]


def campaign_of(folder: ResultsFolder, name: str, commit: str | None = None) -> Campaign:
    """What a finished results folder adds to a history; ScalingError where it has no times."""
    seconds, slow = {}, set()
    for cell in read_cells(folder):
        kind, times = _KINDS.get(cell.cell["kind"]), cell_times([cell]).get(cell.cell_id)
        if kind is None or cell.cell.get("aa_replicate") or not (times and times.by_launch):
            continue
        what = "{model}, {aggregator}@{world_size}".format(**cell.cell)
        seconds[f"{kind}{what} [{cell.cell_id[:6]}]"] = float(stats.gmean([*times.by_launch.values()]))
        if found := slow_rank(cell.launches, own_phases(str(cell.cell.get("step")))):
            nodes = {tuple(run.launch.get("rank_nodes") or ()) for run in cell.done}
            of_ranks = nodes.pop() if len(nodes) == 1 else ()
            slow.add(str(of_ranks[found.rank]) if of_ranks else f"rank {found.rank}")
    for result in read_transfers(folder):
        for one in sorted(result.transfers, key=lambda one: one.num_bytes):
            what = f"{label(one.example)} [{result.cell_id[:6]}]"
            seconds[f"{what} of {size_text(one.num_bytes)}"] = one.estimate.median
    runs = [record.launch for record in folder.runs() if record.state == "done"]
    if not seconds or not runs:
        raise ScalingError(f"{folder.path} has no times of iterations, trainings or transfers to watch")
    began = min(str(launch.get("started_at") or "") for launch in runs)
    hosts = sorted({str(host) for one in runs for host in one.get("nodes") or [one.get("host")] if host})
    return Campaign(name=name, started=began, seconds=seconds, hosts=hosts, commit=commit, slow=sorted(slow))


def watch(campaigns: Sequence[Campaign], runs_per_false_alarm: float = RUNS_PER_FALSE_ALARM) -> Watch:
    """What the campaigns say, in their order; ScalingError without a stream in common, or a rate of none."""
    if not runs_per_false_alarm >= 2:
        raise ScalingError(f"--runs-per-false-alarm is {runs_per_false_alarm:g}; allowed: 2 or more")
    every = dict.fromkeys(name for campaign in campaigns for name in campaign.seconds)
    shared = [name for name in every if all(name in campaign.seconds for campaign in campaigns)]
    # Of each kind of message only the largest that all have: a short sweep leaves out large ones.
    largest = {name.partition("] of ")[0]: name for name in shared}
    streams = [*largest.values()]
    if not streams:
        raise ScalingError("the campaigns have no cell in common; a history is of one study")
    logs = np.log([[campaign.seconds[name] for campaign in campaigns] for name in streams])
    alarm, evidence = first_alarm(logs, runs_per_false_alarm)
    own, change, others, seen = evidence[1:], None, [], {}
    if alarm is not None:
        surest = int(np.argmax(own))
        # Most streams point at it, or their mean does where each is too noisy.
        is_common = 2 * np.mean(own >= runs_per_false_alarm / 10) > 1 or evidence[0] > 10 * own.max()
        change = change_in(*((COMMON, logs.mean(axis=0)) if is_common else (streams[surest], logs[surest])))
        others = [streams[at] for at in np.flatnonzero(own >= runs_per_false_alarm)]
    elif len(campaigns) > LEARNED:
        seen = {slowdown: _seen(logs, slowdown, runs_per_false_alarm) for slowdown in SLOWDOWNS}
    left_out = [name for name in every if name.partition("] of ")[0] not in largest]
    hosts = host_effects(campaigns, logs)
    return Watch(campaigns, streams, logs, runs_per_false_alarm, alarm, change, others, hosts, seen, left_out)


def change_in(stream: str, values: Floats) -> Change:
    """Where a series of logarithms rose to a new level, and by how much.

    Every campaign is equally likely to be the first of the new level beforehand; levels and the variance have
    the usual improper priors, so that the posterior is proportional to RSS^(-(n-2)/2) / sqrt(n1 n2)
    (A. F. M. Smith, "A Bayesian approach to inference about a change-point", Biometrika 1975).
    """
    n, places = len(values), np.arange(2, len(values))
    splits = [(values[:at], values[at:]) for at in places]
    rss = np.array([at * a.var() + (n - at) * b.var() for at, (a, b) in zip(places, splits, strict=True)])
    log_post = -(n - 2) / 2 * np.log(np.maximum(rss, 1e-300)) - 0.5 * np.log(places * (n - places))
    rises = np.array([b.mean() > a.mean() for a, b in splits])
    log_post[~rises & rises.any()] = -np.inf
    weights = np.exp(log_post - log_post.max())
    order = np.argsort(-weights)
    enough = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    likely = places[order[:enough]].tolist()
    ratio = _ratio(values[likely[0] :], values[: likely[0]], LEVEL)
    return Change(stream, ratio, likely[0], min(likely), max(likely))


def host_effects(campaigns: Sequence[Campaign], logs: Floats) -> dict[str, Ratio]:
    """Hosts on which campaigns take longer than without them, if these ran on several sets of hosts."""
    hosts = sorted({host for campaign in campaigns for host in campaign.hosts})
    found, common = {}, logs.mean(axis=0)
    for host in hosts:
        has = np.array([host in campaign.hosts for campaign in campaigns])
        if min(has.sum(), (~has).sum()) > 1:
            found[host] = _ratio(common[has], common[~has], LEVEL / len(hosts))
    return {host: ratio for host, ratio in found.items() if ratio[1] and ratio[1][0] > 1}


def _ratio(new: Floats, old: Floats, level: float) -> Ratio:
    """Of geometric means, by Welch's t."""
    ratio = math.exp(new.mean() - old.mean())
    if min(len(new), len(old)) < 2:
        return ratio, None
    interval = stats.ttest_ind(new, old, equal_var=False).confidence_interval(1 - level)
    return ratio, (math.exp(interval.low), math.exp(interval.high))


def _seen(logs: Floats, slowdown: float, runs_per_false_alarm: float) -> int | None:
    """By this history, with its last campaigns that much longer."""
    before, by = np.arange(logs.shape[1])[::-1], math.log1p(slowdown)
    slow = range(1, min(len(before) // 2, MOST_SLOW) + 1)
    alarms = (first_alarm(logs + by * (before < last), runs_per_false_alarm)[0] for last in slow)
    return next((last for last, alarm in zip(slow, alarms, strict=True) if alarm is not None), None)
