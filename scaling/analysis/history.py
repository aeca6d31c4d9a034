"""Is a machine slower than it was: campaigns one after the other, with a stated rate of false alarms.

Without a change the rank of the newest of n campaigns is uniform and independent of the ranks before it,
whatever the distribution (V. Vovk, "Testing randomness online", Statistical Science 2021, arXiv 1906.09256).
So a bet that the k campaigns since a change are the k slowest wins nothing on average: it pays (1 - EPSILON)
n / k where the newest rank is among the k highest, sqrt(A) at most, so that one outlier is no alarm, and
EPSILON n / (n - k) where it is not. The evidence of a stream is the sum of the bets for each that may be the
first slow one, an e-detector: it reaches A after A campaigns or more, on average (J. Shin, A. Ramdas, A.
Rinaldo, 2023, arXiv 2203.03532). So does the average of that of the mean of all streams and those of the
streams, however they depend on each other. A machine that drifts has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from scaling.analysis.rank_times import own_phases, slow_rank
from scaling.analysis.samples import Floats, read_cells
from scaling.analysis.study_scatter import cell_times
from scaling.analysis.transfers import read_transfers
from scaling.errors import ScalingError
from scaling.measure.probe.series import label, size_text
from scaling.store import ResultsFolder
from scaling.store.history import PastCampaign

Ratio = tuple[float, tuple[float, float] | None]  # with its interval; None: a side is one campaign

LEARNED, EPSILON, COMMON, RUNS_PER_FALSE_ALARM = 5, 0.2, "all times", 100
SLOWDOWNS, MOST_SLOW, LEVEL = (0.03, 0.05, 0.1), 30, 0.05
_KINDS = {"iteration": "", "convergence": "training of "}


@dataclass(frozen=True)
class Change:
    stream: str  # or `COMMON`
    ratio: Ratio
    first: int  # the first campaign of the new level, most likely
    earliest: int  # earliest, latest: of the smallest set of campaigns that has it with 95%, from 2 on
    latest: int


@dataclass(frozen=True)
class Watch:
    campaigns: Sequence[PastCampaign]  # those that count, in their order
    streams: Sequence[str]  # that all of them have
    logs: Floats  # [stream, campaign] of seconds
    runs_per_false_alarm: float  # campaigns to an alarm without a change, on average
    alarm: int | None  # the campaign at which the evidence sufficed; None: it did not
    change: Change | None  # of what changed most surely; None without an alarm
    others: Sequence[str]  # streams that changed alike, by their own evidence
    hosts: Mapping[str, Ratio]  # whose campaigns take longer, with intervals for all hosts at once
    seen: Mapping[float, int | None]  # slowdown -> of how many last campaigns it gives an alarm, if of any
    left_out: Sequence[str]  # streams that some campaigns lack


def evidence(values: Floats, most: float) -> Floats:
    """[stream, campaign]: that the stream became larger; a campaign multiplies it by at most `most`."""
    found, log_bets = np.zeros_like(values), np.zeros_like(values)
    for n in range(LEARNED + 1, values.shape[1] + 1):
        # Equal ones are no evidence.
        rank = 1 + (values[:, : n - 1] >= values[:, n - 1, None]).sum(axis=1, keepdims=True)
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


def campaign_of(folder: ResultsFolder, name: str, commit: str | None = None) -> PastCampaign:
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
    if not seconds:
        raise ScalingError(f"{folder.path} has no times of iterations, trainings or transfers to watch")
    began = min(str(launch.get("started_at") or "") for launch in runs)
    hosts = sorted({str(host) for one in runs for host in one.get("nodes") or [one.get("host")] if host})
    return PastCampaign(
        name=name, started=began, seconds=seconds, hosts=hosts, commit=commit, slow=sorted(slow)
    )


def watch(campaigns: Sequence[PastCampaign], rate: float = RUNS_PER_FALSE_ALARM) -> Watch:
    """What the campaigns say, in their order; ScalingError without a stream in common, or a rate of none."""
    if not rate >= 2:
        raise ScalingError(f"--runs-per-false-alarm is {rate:g}; allowed: 2 or more")
    every = dict.fromkeys(name for campaign in campaigns for name in campaign.seconds)
    shared = [name for name in every if all(name in campaign.seconds for campaign in campaigns)]
    # Of each kind of message only the largest that all have: a short sweep leaves out large ones.
    largest = {name.partition("] of ")[0]: name for name in shared}
    if not (streams := [*largest.values()]):
        raise ScalingError("the campaigns have no cell in common; a history is of one study")
    logs = np.log([[campaign.seconds[name] for campaign in campaigns] for name in streams])
    alarm, evidence = first_alarm(logs, rate)
    own, change, others, seen = evidence[1:], None, [], {}
    if alarm is not None:
        surest = int(np.argmax(own))
        # Most streams point at it, or their mean does where each is too noisy.
        is_common = 2 * np.mean(own >= rate / 10) > 1 or evidence[0] > 10 * own.max()
        change = change_in(*((COMMON, logs.mean(axis=0)) if is_common else (streams[surest], logs[surest])))
        others = [streams[at] for at in np.flatnonzero(own >= rate)]
    elif len(campaigns) > LEARNED:
        seen = {slowdown: _seen(logs, slowdown, rate) for slowdown in SLOWDOWNS}
    left_out = [name for name in every if name.partition("] of ")[0] not in largest]
    hosts = host_effects(campaigns, logs)
    return Watch(campaigns, streams, logs, rate, alarm, change, others, hosts, seen, left_out)


def change_in(stream: str, values: Floats) -> Change:
    """Where a series of logarithms rose to a new level, and by how much: by the posterior with flat priors,
    RSS^(-(n-2)/2) / sqrt(n1 n2) (A. F. M. Smith, "A Bayesian approach to inference about a change-point",
    Biometrika 1975)."""
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


def host_effects(campaigns: Sequence[PastCampaign], logs: Floats) -> dict[str, Ratio]:
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


def _seen(logs: Floats, slowdown: float, rate: float) -> int | None:
    """By this history, with its last campaigns that much longer."""
    before, by = np.arange(logs.shape[1])[::-1], math.log1p(slowdown)
    slow = range(1, min(len(before) // 2, MOST_SLOW) + 1)
    return next(
        (last for last in slow if first_alarm(logs + by * (before < last), rate)[0] is not None), None
    )
