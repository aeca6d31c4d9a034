"""What a machine's history says: in a line, in Markdown, as a page."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, SEEN_SHARE, Change, HostEffect, Watch, slow_ranks
from scaling.report.figures.style import BEST, BOUND, OTHER, SETTINGS
from scaling.report.figures.svg import compact, for_page, page_styles
from scaling.report.text import TEMPLATES, environment
from scaling.store.history import Campaign, HistoryFolder

MOST_NAMED = 6


def sentences(watch: Watch, folder: HistoryFolder) -> list[str]:
    num = len(watch.campaigns)
    if watch.is_learning:
        lines = [f"{num} campaign{'s' * (num > 1)} so far: an alarm needs {LEARNED + 1}."]
    elif watch.change is None:
        lines = [
            f"No change in {num} campaigns of {len(watch.streams)} times. {_power(watch)} {_rate(watch)}"
        ]
    else:
        lines = _alarm(watch, folder)
    for host in watch.hosts:
        lines.append(f"Campaigns on {host.host} take {_longer(host)} longer than the others.")
    if watch.left_out:
        lines.append(f"Not watched, since some campaigns lack them: {_listed(watch.left_out)}.")
    return lines


def _power(watch: Watch) -> str:
    found: dict[int, list[str]] = {}
    for slowdown, runs in watch.seen.items():
        if runs:
            found.setdefault(runs, []).append(f"{slowdown:.0%}")
    not_yet = [f"{slowdown:.0%}" for slowdown, runs in watch.seen.items() if not runs]
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


def _rate(watch: Watch) -> str:
    return f"False alarms: on average at most one in {watch.runs_per_false_alarm:g} campaigns."


def _alarm(watch: Watch, folder: HistoryFolder) -> list[str]:
    change = watch.change
    assert change is not None
    assert watch.alarm is not None
    names = [campaign.name for campaign in watch.campaigns]
    certain = change.earliest == change.latest
    where = "" if certain else f" (95%: {names[change.earliest]} to {names[change.latest]})"
    verb = "take" if change.stream == COMMON else "takes"
    lines = [
        f"Slower since {names[change.first]}{where} of {_began(watch.campaigns[change.first])}: "
        f"{change.stream} {verb} {_longer(change)} longer. Alarm at {names[watch.alarm]}. "
        f"{_rate(watch)}"
    ]
    if watch.others and change.stream != COMMON:
        lines.append(f"Certain by itself: {_listed(watch.others)}.")
    before, after = (folder.folder(names[at]) for at in (max(change.earliest - 1, 0), change.latest))
    differing = machine_changes(before, after)
    lines.append(
        f"Changed with it: {_listed(differing, '; ')}."
        if differing
        else "Nothing that is recorded changed with it (versions, settings, links, clocks, power cap, load)."
    )
    commits = watch.campaigns[max(change.earliest - 1, 0)].commit, watch.campaigns[change.latest].commit
    if commits[0] and commits[1] and commits[0] != commits[1]:
        lines.append(f"Commits: {commits[0][:12]}..{commits[1][:12]}; --bisect finds the one.")
    if slow := slow_ranks(folder.folder(names[-1])):
        lines.append(f"In {names[-1]} ranks are slow by themselves: {_listed(map(str, slow))}.")
    lines.append(f"If it is to stay so: --accept {names[change.first]}.")
    return lines


def _longer(effect: Change | HostEffect) -> str:
    interval = [f"{end - 1:.1%}" for end in effect.interval or ()]
    return f"{effect.ratio - 1:.1%}" + (f" [{', '.join(interval)}]" if interval else " (one campaign)")


def _began(campaign: Campaign) -> str:
    return campaign.started[:16].replace("T", " ")


def _listed(items: Sequence[str] | map[str], between: str = ", ") -> str:
    every = list(items)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return between.join(every[:MOST_NAMED]) + more


def markdown(watch: Watch, lines: Sequence[str]) -> str:
    """For a message: the answer, and the last campaigns."""
    head, *rest = lines
    rows = ["| campaign | began | all times against the usual |", "|---|---|---|"]
    values = _relative(watch).mean(axis=0)
    for campaign, value in list(zip(watch.campaigns, values, strict=True))[-10:]:
        rows.append(f"| {campaign.name} | {_began(campaign)} | {value:+.1%} |")
    return "\n".join([f"**{head}**", "", *(f"- {line}" for line in rest), "", *rows, ""])


def page(watch: Watch, lines: Sequence[str]) -> str:
    svg = _drawn(watch)
    templates = environment(TEMPLATES, autoescape=True)
    return templates.get_template("history.html.j2").render(
        lines=lines,
        figure=for_page(svg, "history", "Times of each campaign against the usual ones"),
        figure_styles=page_styles([svg]),
        campaigns=list(zip(watch.campaigns, _relative(watch).mean(axis=0).tolist(), strict=True)),
        bad=watch.alarm is not None,
    )


def _relative(watch: Watch) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[stream, campaign]: each time against the stream's median before the change, less one."""
    usual = watch.logs if watch.change is None else watch.logs[:, : watch.change.first]
    return np.expm1(watch.logs - np.median(usual, axis=1, keepdims=True))


def _drawn(watch: Watch) -> str:
    values = 100 * _relative(watch)
    numbers = range(1, len(watch.campaigns) + 1)
    with matplotlib.rc_context({**SETTINGS, "svg.hashsalt": "history"}):
        figure = Figure(figsize=(8, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for row in values:
            axes.plot(numbers, row, color=OTHER, linewidth=0.8)
        axes.plot(numbers, values.mean(axis=0), color=BEST, marker="o", markersize=4)
        if watch.change is not None and watch.alarm is not None:
            axes.axvspan(watch.change.earliest + 0.5, watch.change.latest + 1.5, color=OTHER, alpha=0.3)
            axes.axvline(watch.alarm + 1, color=BOUND, linestyle="--", linewidth=1)
        axes.set_xlabel("campaign (dashed: alarm; band: where the change is)")
        axes.set_ylabel("time against the usual [%]")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        content = io.BytesIO()
        FigureCanvasSVG(figure).print_svg(content, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return compact(content.getvalue().decode())
