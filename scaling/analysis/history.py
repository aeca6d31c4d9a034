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
from scaling.store import ResultsFolder
from scaling.store.history import Campaign, samples_digest

Floats = NDArray[np.float64]

LEARNED = 5
EPSILON = 0.2
COMMON = "all streams"
COMMON_WEIGHT = 0.5
RUNS_PER_FALSE_ALARM = 100
POWER_DRAWS, POWER_LIMIT = 60, 30
LEVEL = 0.05


class RankDetector:
    """The evidence that a stream became larger. Values are compared, nothing else."""

    def __init__(self) -> None:
        self._values = np.empty(0)
        self._log_bets = np.empty(0)

    def add(self, value: float) -> float:
        """Takes the newest value; gives the evidence."""
        rank = 1 + int(np.count_nonzero(self._values >= value))  # equal ones are no evidence
        self._values = np.append(self._values, value)
        n = len(self._values)
        if n <= LEARNED:
            return 0.0
        self._log_bets = np.append(self._log_bets, 0.0)
        since = np.arange(len(self._log_bets), 0, -1)
        self._log_bets += np.log(
            np.where(rank <= since, (1 - EPSILON) * n / since, EPSILON * n / (n - since))
        )
        return float(np.exp(np.minimum(self._log_bets, 700)).sum())


class Evidence:
    """The detectors of all streams."""

    def __init__(self, num_streams: int) -> None:
        self._common = RankDetector()
        self._streams = [RankDetector() for _ in range(num_streams)]

    def add(self, logs: Floats) -> Floats:
        """[common, stream...]: the evidence of each with the newest campaign's values [stream]."""
        each = [stream.add(float(value)) for stream, value in zip(self._streams, logs, strict=True)]
        return np.array([self._common.add(float(logs.mean())), *each])


def averaged(evidence: Floats) -> float:
    """Of all streams [common, stream...]."""
    return float(COMMON_WEIGHT * evidence[0] + (1 - COMMON_WEIGHT) * evidence[1:].mean())


def first_alarm(logs: Floats, runs_per_false_alarm: float) -> tuple[int | None, Floats]:
    """Where the evidence of [stream, campaign] suffices; and [common, stream...] there, or at the end."""
    detectors = Evidence(len(logs))
    evidence = np.zeros(len(logs) + 1)
    for index in range(logs.shape[1]):
        evidence = detectors.add(logs[:, index])
        if averaged(evidence) >= runs_per_false_alarm:
            return index, evidence
    return None, evidence


@dataclass(frozen=True)
class Change:
    """A stream that changed.

    Attributes:
        stream: which; `COMMON` for the mean of all.
        first: the first campaign of the new level, most likely.
        earliest, latest: of the smallest set of campaigns that has it with 95%.
        ratio, low, high: the new time over the old one, with a 95% interval.
    """

    stream: str
    first: int
    earliest: int
    latest: int
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class HostEffect:
    """A host whose campaigns take longer than others; the ratio has an interval for all hosts at once."""

    host: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Watch:
    """What a history says.

    Attributes:
        campaigns: those that count, in their order.
        streams: that all of them have.
        logs: [stream, campaign] of seconds.
        runs_per_false_alarm: without a change there are as many campaigns before an alarm, on average.
        alarm: the campaign at which the evidence sufficed; None: it did not.
        change: of what changed most surely; None without an alarm.
        others: streams that changed alike, by their own evidence.
        hosts: that are slower than others.
        runs_to_see: slowdown -> in how many campaigns half of such would be found now; None: not in
            `POWER_LIMIT`. Empty with an alarm, or before `LEARNED` campaigns.
        left_out: streams that some campaigns lack.
    """

    campaigns: Sequence[Campaign]
    streams: Sequence[str]
    logs: Floats
    runs_per_false_alarm: float
    alarm: int | None
    change: Change | None
    others: Sequence[str]
    hosts: Sequence[HostEffect]
    runs_to_see: Mapping[float, int | None]
    left_out: Sequence[str]

    @property
    def is_learning(self) -> bool:
        """Whether there are too few campaigns for any alarm."""
        return len(self.campaigns) <= LEARNED


def campaign_of(folder: ResultsFolder, name: str, commit: str | None = None) -> Campaign:
    """What a finished results folder adds to a history.

    Raises:
        ScalingError: it has no times.
    """
    cells = read_cells(folder)
    seconds = {}
    for cell in cells:
        times = cell_times([cell]).get(cell.cell_id)
        if (
            times
            and times.by_launch
            and not cell.cell.get("aa_replicate")
            and cell.cell["kind"] == "iteration"
        ):
            seconds[_label(cell.cell, cell.cell_id)] = _geometric_mean([*times.by_launch.values()])
    for result in read_transfers(folder):
        for one in result.transfers:
            if one.num_bytes == max(one.series.seconds):
                ranks = "-".join(map(str, one.example.ranks))
                label = f"{one.example.operation} of {one.num_bytes / 1e6:.3g} MB, ranks {ranks}"
                seconds[f"{label} [{result.cell_id[:6]}]"] = one.estimate.median
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


def _label(cell: Mapping[str, object], cell_id: str) -> str:
    return f"{cell['model']}, {cell['aggregator']}@{cell['world_size']} [{cell_id[:6]}]"


def _geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def watch(campaigns: Sequence[Campaign], runs_per_false_alarm: float = RUNS_PER_FALSE_ALARM) -> Watch:
    """What the campaigns say, in their order.

    Raises:
        ScalingError: they have no stream in common, or the rate is none.
    """
    if not runs_per_false_alarm > 1:
        raise ScalingError(f"{runs_per_false_alarm:g} campaigns a false alarm; allowed: more than 1")
    every = dict.fromkeys(name for campaign in campaigns for name in campaign.seconds)
    streams = [name for name in every if all(name in campaign.seconds for campaign in campaigns)]
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
        runs_to_see={}
        if alarm is not None or len(campaigns) <= LEARNED
        else _power(logs, runs_per_false_alarm),
        left_out=[name for name in every if name not in streams],
    )


def _is_common(evidence: Floats, enough: float) -> bool:
    """Whether most streams point at it, or their mean does where each is too noisy.

    Args:
        evidence: [common, stream...] at an alarm.
        enough: for an alarm.
    """
    pointing = np.count_nonzero(evidence[1:] >= enough / 10)
    return bool(2 * pointing > len(evidence) - 1 or evidence[0] > 10 * evidence[1:].max())


def change_in(stream: str, values: Floats) -> Change:
    """Where a series of logarithms changed its level, and by how much.

    Every campaign is equally likely to be the first of the new level beforehand; levels and the variance have
    the usual improper priors, so that the posterior is proportional to RSS^(-(n-2)/2) / sqrt(n1 n2)
    (A. F. M. Smith, "A Bayesian approach to inference about a change-point", Biometrika 1975).
    """
    n = len(values)
    places = np.arange(2, n)
    splits = [(values[:at], values[at:]) for at in places]
    rss = np.array([((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum() for a, b in splits])
    log_post = -(n - 2) / 2 * np.log(np.maximum(rss, 1e-300)) - 0.5 * np.log(places * (n - places))
    weights = np.exp(log_post - log_post.max())
    order = np.argsort(-weights)
    enough = int(np.searchsorted(np.cumsum(weights[order]) / weights.sum(), 0.95)) + 1
    likely = places[order[:enough]]
    first = int(places[order[0]])
    ratio, low, high = _ratio(values[first:], values[:first], LEVEL)
    return Change(stream, first, int(likely.min()), int(likely.max()), ratio, low, high)


def host_effects(campaigns: Sequence[Campaign], logs: Floats) -> list[HostEffect]:
    """Hosts on which campaigns take longer than without them, if these ran on several sets of hosts."""
    hosts = sorted({host for campaign in campaigns for host in campaign.hosts})
    found = []
    common = logs.mean(axis=0) if len(logs) else np.empty(0)
    for host in hosts:
        has = np.array([host in campaign.hosts for campaign in campaigns])
        if min(has.sum(), (~has).sum()) < 2:
            continue
        ratio, low, high = _ratio(common[has], common[~has], LEVEL / len(hosts))
        if low > 1:
            found.append(HostEffect(host, ratio, low, high))
    return found


def _ratio(new: Floats, old: Floats, level: float) -> tuple[float, float, float]:
    """Of geometric means, by Welch's t; without an interval's ends (0, inf) where a side has one value."""
    difference = float(new.mean() - old.mean())
    if min(len(new), len(old)) < 2:
        return math.exp(difference), 0.0, math.inf
    variances = new.var(ddof=1) / len(new), old.var(ddof=1) / len(old)
    total = sum(variances)
    if total == 0:
        return (math.exp(difference),) * 3
    degrees = total**2 / (variances[0] ** 2 / (len(new) - 1) + variances[1] ** 2 / (len(old) - 1))
    half = float(stats.t.ppf(1 - level / 2, degrees)) * math.sqrt(total)
    return math.exp(difference), math.exp(difference - half), math.exp(difference + half)


def _power(logs: Floats, runs_per_false_alarm: float) -> dict[float, int | None]:
    """By campaigns drawn anew from the history's own, made longer."""
    return {slowdown: _runs_to_alarm(logs, slowdown, runs_per_false_alarm) for slowdown in (0.03, 0.05, 0.1)}


def _runs_to_alarm(logs: Floats, slowdown: float, runs_per_false_alarm: float) -> int | None:
    random = np.random.default_rng(0)
    needed = []
    for _ in range(POWER_DRAWS):
        drawn = logs[:, random.integers(logs.shape[1], size=logs.shape[1] + POWER_LIMIT)]
        drawn = drawn + random.normal(0, 1e-9, drawn.shape)  # a campaign that was drawn twice is no tie
        drawn[:, logs.shape[1] :] += math.log1p(slowdown)
        at, _ = first_alarm(drawn, runs_per_false_alarm)
        needed.append(math.inf if at is None else max(at + 1 - logs.shape[1], 1))
    median = float(np.median(needed))
    return None if math.isinf(median) else math.ceil(median)
