"""What a machine's history says: in a line, in Markdown, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, SEEN_SHARE, Change, Floats, Ratio, Watch
from scaling.report.figures.draw import svg_of
from scaling.report.figures.parts import BEST, BOUND, OTHER, SETTINGS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.text import TEMPLATES, environment
from scaling.store.history import Campaign, HistoryFolder

MOST_NAMED = 6


def sentences(watch: Watch, folder: HistoryFolder) -> list[str]:
    num = len(watch.campaigns)
    rate = f"False alarms: on average at most one in {watch.runs_per_false_alarm:g} campaigns."
    if num <= LEARNED:
        lines = [f"{num} campaign{'s' * (num > 1)} so far: an alarm needs {LEARNED + 1}."]
    elif watch.change is None:
        lines = [f"No change in {num} campaigns of {len(watch.streams)} times. {_power(watch)} {rate}"]
    else:
        lines = _alarm(watch, watch.change, folder, rate)
    for host, ratio in watch.hosts.items():
        lines.append(f"Campaigns on {host} take {_longer(ratio)} longer than the others.")
    lines += _slow(watch.campaigns[watch.change.first if watch.change else 0 :])
    if watch.left_out:
        lines.append(f"Not watched, since some campaigns lack them: {_listed(watch.left_out)}.")
    return lines


def _slow(campaigns: Sequence[Campaign]) -> list[str]:
    """Hosts, or ranks of the one host, that are slow in most of the campaigns that they are in."""
    lines = []
    for place, times in Counter(place for one in campaigns for place in one.slow).items():
        total = sum(place in one.hosts or place.startswith("rank ") for one in campaigns)
        if times > 1 and 2 * times > total:
            lines.append(f"By the ranks' own times {place} is slow, in {times} of {total} campaigns.")
    return lines


def _power(watch: Watch) -> str:
    found: dict[int, list[str]] = {}
    for slowdown, runs in watch.seen.items():
        found.setdefault(runs or 0, []).append(f"{slowdown:.0%}")
    not_yet = found.pop(0, [])
    if not found:
        return f"Too few for certainty: a slowdown by {not_yet[-1]} may not have been seen yet."
    (runs, (least, *alike)), *others = found.items()
    last = f"the last {runs} campaigns" if runs > 1 else "the last campaign"
    more = [" and ".join(alike)] if alike else []
    more += [
        f"{' and '.join(larger)} in the last {fewer if fewer > 1 else 'one'}" for fewer, larger in others
    ]
    return (
        f"A slowdown of {least} in {last} would have been seen ({10 * SEEN_SHARE:g} times in 10)"
        + (f"; so would {', and '.join(more)}" if more else "")
        + (f"; {' and '.join(not_yet)} not yet." if not_yet else ".")
    )


def _alarm(watch: Watch, change: Change, folder: HistoryFolder, rate: str) -> list[str]:
    names = [campaign.name for campaign in watch.campaigns]
    first, around = watch.campaigns[change.first], watch.around(change)
    certain = change.earliest == change.latest
    where = "" if certain else f" (95%: {names[change.earliest]} to {names[change.latest]})"
    what = "all times take" if change.stream == COMMON else f"{change.stream} takes"
    lines = [
        f"Slower since {first.name}{where} of {_began(first)}: {what} {_longer(change)} longer. "
        f"Alarm at {names[watch.alarm or 0]}. {rate}"
    ]
    if watch.others and change.stream != COMMON:
        lines.append(f"Certain by itself: {_listed(watch.others)}.")
    differing = machine_changes(*(folder.folder(campaign.name) for campaign in around))
    lines.append(
        f"Changed with it: {_listed(differing, '; ')}."
        if differing
        else "Nothing that is recorded changed with it (versions, settings, links, clocks, power cap, load)."
    )
    before, after = (campaign.commit for campaign in around)
    if before and after and before != after:
        lines.append(f"Commits: {before[:12]}..{after[:12]}; --bisect finds the one.")
    return [*lines, f"If it is to stay so: --accept {first.name}."]


def _longer(effect: Ratio) -> str:
    interval = ", ".join(f"{end - 1:.1%}" for end in effect.interval or ())
    return f"{effect.ratio - 1:.1%} " + (f"[{interval}]" if interval else "(one campaign)")


def _began(campaign: Campaign) -> str:
    return campaign.started[:16].replace("T", " ")


def _listed(items: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return between.join(items[:MOST_NAMED]) + more


def markdown(watch: Watch, lines: Sequence[str]) -> str:
    """For a message: the answer, and the last campaigns."""
    head, *rest = lines
    rows = [f"| {one.name} | {_began(one)} | {value:+.1%} |" for one, value in _rows(watch)[-10:]]
    table = ["| campaign | began | all times against the usual |", "|---|---|---|", *rows]
    return "\n".join([f"**{head}**", "", *(f"- {line}" for line in rest), "", *table, ""])


def page(watch: Watch, lines: Sequence[str]) -> str:
    what = "Times of each campaign against the usual ones"
    with matplotlib.rc_context(SETTINGS):
        svg = svg_of(_drawn(watch), "history", what)
    template = environment(TEMPLATES, autoescape=True).get_template("history.html.j2")
    return template.render(
        lines=lines,
        figure=for_page(svg, "history", what),
        figure_styles=page_styles([svg]),
        campaigns=_rows(watch),
        bad=watch.alarm is not None,
    )


def _relative(watch: Watch) -> Floats:
    """[stream, campaign]: each time against the stream's median before the change, less one."""
    usual = watch.logs[:, : watch.change.first] if watch.change else watch.logs
    return np.expm1(watch.logs - np.median(usual, axis=1, keepdims=True))


def _rows(watch: Watch) -> list[tuple[Campaign, float]]:
    """Campaigns, each with the mean of all times."""
    return [*zip(watch.campaigns, _relative(watch).mean(axis=0).tolist(), strict=True)]


def _drawn(watch: Watch) -> Figure:
    values = 100 * _relative(watch)
    numbers = range(1, len(watch.campaigns) + 1)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(numbers, values.T, color=OTHER, linewidth=0.8)
    axes.plot(numbers, values.mean(axis=0), color=BEST, marker="o", markersize=4)
    if watch.change and watch.alarm is not None:
        axes.axvspan(watch.change.earliest + 0.5, watch.change.latest + 1.5, color=OTHER, alpha=0.3)
        axes.axvline(watch.alarm + 1, color=BOUND, linestyle="--", linewidth=1)
    axes.set_xlabel("campaign (dashed: alarm; band: where the change is)")
    axes.set_ylabel("time against the usual [%]")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure
