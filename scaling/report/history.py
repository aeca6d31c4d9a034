"""What a machine's history says: in a line, in Markdown, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, Change, Ratio, Watch
from scaling.report.figures.draw import svg_of
from scaling.report.figures.parts import BEST, BOUND, OTHER, SETTINGS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.text import TEMPLATES, environment
from scaling.store.history import HistoryFolder

MOST_NAMED = 6
HEAD = ("campaign", "began", "all times against the usual", "hosts")


def sentences(watch: Watch, folder: HistoryFolder) -> list[str]:
    num, change = len(watch.campaigns), watch.change
    rate = f"False alarms: on average at most one in {watch.runs_per_false_alarm:g} campaigns."
    if num <= LEARNED:
        lines = [f"{num} campaign{'s' * (num > 1)} so far: an alarm needs {LEARNED + 1}."]
    elif change is None:
        lines = [f"No change in {num} campaigns of {len(watch.streams)} times. {_power(watch)} {rate}"]
    else:
        lines = _alarm(watch, change, folder, rate)
    for host, ratio in watch.hosts.items():
        lines.append(f"Campaigns on {host} take {_longer(ratio)} longer than the others.")
    lately = watch.campaigns[change.first if change else 0 :]
    for place, times in Counter(place for one in lately for place in one.slow).items():
        total = sum(place in one.hosts or place.startswith("rank ") for one in lately)
        if times > 1 and 2 * times > total:
            lines.append(f"By the ranks' own times {place} is slow, in {times} of {total} campaigns.")
    if watch.left_out:
        lines.append(f"Not watched, since some campaigns lack them: {_listed(watch.left_out)}.")
    return lines


def _power(watch: Watch) -> str:
    seen = {f"{by:.0%}": f"in the last {runs}" if runs else "" for by, runs in watch.seen.items()}
    would = ", ".join(f"{by} {last}" for by, last in seen.items() if last)
    not_yet = " and ".join(by for by, last in seen.items() if not last)
    if not would:
        return f"A slowdown of {not_yet} would not have been seen by now."
    others = f", of {not_yet} not" if not_yet else ""
    return f"A slowdown of {would} campaigns would have been seen by now{others}."


def _alarm(watch: Watch, change: Change, folder: HistoryFolder, rate: str) -> list[str]:
    names = [campaign.name for campaign in watch.campaigns]
    first, (before, after) = watch.campaigns[change.first], watch.around(change)
    certain = change.earliest == change.latest
    where = "" if certain else f" (95%: {names[change.earliest]} to {names[change.latest]})"
    what = f"{change.stream} {'take' if change.stream == COMMON else 'takes'}"
    since = f"Slower since {first.name}{where} of {first.began}: {what} {_longer(change)} longer."
    lines = [f"{since} Alarm at {names[watch.alarm or 0]}. {rate}"]
    if watch.others and change.stream != COMMON:
        lines.append(f"Certain by itself: {_listed(watch.others)}.")
    differing = machine_changes(folder.folder(before.name), folder.folder(after.name))
    nothing = "Nothing that is recorded changed with it (versions, settings, links, clocks, power cap, load)."
    lines.append(f"Changed with it: {_listed(differing, '; ')}." if differing else nothing)
    if before.commit and after.commit and before.commit != after.commit:
        lines.append(f"Commits: {before.commit[:12]}..{after.commit[:12]}; --bisect finds the one.")
    return [*lines, f"If it is to stay so: --accept {first.name}."]


def _longer(effect: Ratio) -> str:
    interval = ", ".join(f"{end - 1:.1%}" for end in effect.interval or ())
    return f"{effect.ratio - 1:.1%} " + (f"[{interval}]" if interval else "(one campaign)")


def _listed(items: Sequence[str], between: str = ", ") -> str:
    more = f" and {len(items) - MOST_NAMED} more" if len(items) > MOST_NAMED else ""
    return between.join(items[:MOST_NAMED]) + more


def _rows(watch: Watch) -> list[tuple[str, ...]]:
    values = zip(watch.campaigns, watch.relative.mean(axis=0), strict=True)
    return [(one.name, one.began, f"{value:+.1%}", ", ".join(one.hosts)) for one, value in values]


def markdown(watch: Watch, lines: Sequence[str]) -> str:
    """For a message: the answer, and the last campaigns."""
    table = [" | ".join(row) for row in (HEAD, ("---",) * len(HEAD), *_rows(watch)[-10:])]
    return "\n".join([f"**{lines[0]}**", "", *(f"- {line}" for line in lines[1:]), "", *table, ""])


def page(watch: Watch, lines: Sequence[str]) -> str:
    what = "Times of each campaign against the usual ones"
    with matplotlib.rc_context(SETTINGS):
        svg = svg_of(_drawn(watch), "history", what)
    figure, styles = for_page(svg, "history", what), page_styles([svg])
    template = environment(TEMPLATES, autoescape=True).get_template("history.html.j2")
    return template.render(watch=watch, lines=lines, figure=figure, styles=styles, rows=[HEAD, *_rows(watch)])


def _drawn(watch: Watch) -> Figure:
    values, numbers = 100 * watch.relative, np.arange(1, len(watch.campaigns) + 1)
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="campaign (dashed: alarm; band: where the change is)", ylabel="time against the usual [%]"
    )
    axes.plot(numbers, values.T, color=OTHER, linewidth=0.8)
    axes.plot(numbers, values.mean(axis=0), color=BEST, marker="o", markersize=4)
    if watch.change and watch.alarm is not None:
        axes.axvspan(watch.change.earliest + 0.5, watch.change.latest + 1.5, color=OTHER, alpha=0.3)
        axes.axvline(watch.alarm + 1, color=BOUND, linestyle="--", linewidth=1)
    axes.locator_params(axis="x", integer=True)
    return figure
