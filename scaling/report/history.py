"""What a machine's history says: in a line, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib
import numpy as np

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, Change, Watch
from scaling.report.figures.draw import svg_of
from scaling.report.figures.parts import BEST, BOUND, OTHER, SETTINGS, one_plot
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.text import TEMPLATES, environment
from scaling.store.history import HistoryFolder


def sentences(watch: Watch, folder: HistoryFolder) -> list[str]:
    num, change, hosts = len(watch.campaigns), watch.change, watch.hosts.items()
    rate = f"False alarms: on average at most one in {watch.runs_per_false_alarm:g} campaigns."
    if num <= LEARNED:
        lines = [f"{num} campaign{'s' * (num > 1)} so far: an alarm needs {LEARNED + 1}."]
    elif change is None:
        last = {by: f"in the last {runs} campaigns" if runs else "not yet" for by, runs in watch.seen.items()}
        seen = ", ".join(f"{by:.0%} {when}" for by, when in last.items())
        none = f"No change in {num} campaigns of {len(watch.streams)} times."
        lines = [f"{none} A slowdown would have been seen by now: {seen}. {rate}"]
    else:
        lines = _alarm(watch, change, folder, rate)
    lines += [f"Campaigns on {host} take {_longer(*ratio)} longer than the others." for host, ratio in hosts]
    lately = watch.campaigns[change.first if change else 0 :]
    for place, times in Counter(place for one in lately for place in one.slow).items():
        total = sum(place in one.hosts or place.startswith("rank ") for one in lately)
        if times > 1 and 2 * times > total:
            lines.append(f"By the ranks' own times {place} is slow, in {times} of {total} campaigns.")
    if watch.left_out:
        lines.append(f"Not watched, since some campaigns lack them: {_listed(watch.left_out)}.")
    return lines


def _alarm(watch: Watch, change: Change, folder: HistoryFolder, rate: str) -> list[str]:
    names = [campaign.name for campaign in watch.campaigns]
    first, *ends = (watch.campaigns[at] for at in (change.first, change.earliest - 1, change.latest))
    likely = (names[change.earliest], names[change.latest])
    where = f" (95%: {' to '.join(likely)})" if len(set(likely)) > 1 else ""
    since = f"{first.name}{where} of {first.started[:16].replace('T', ' ')}"
    takes = f"{change.stream} take{'s' * (change.stream != COMMON)} {_longer(*change.ratio)} longer"
    lines = [f"Slower since {since}: {takes}. Alarm at {names[watch.alarm or 0]}. {rate}"]
    if watch.others and change.stream != COMMON:
        lines.append(f"Certain by itself: {_listed(watch.others)}.")
    nothing = "nothing that is recorded (versions, settings, links, clocks, power cap, load)"
    differing = machine_changes(*(folder.folder(end.name) for end in ends)) or [nothing]
    lines.append(f"Changed with it: {_listed(differing, '; ')}.")
    if all(commits := [end.commit for end in ends]) and commits[0] != commits[1]:
        lines.append(f"Commits: {commits[0]:.12}..{commits[1]:.12}; --bisect finds the one.")
    return [*lines, f"If it is to stay so: --accept {first.name}."]


def _longer(ratio: float, interval: tuple[float, float] | None) -> str:
    ends = ", ".join(f"{end - 1:.1%}" for end in interval or ())
    return f"{ratio - 1:.1%} [{ends}]" if ends else f"{ratio - 1:.1%} (one campaign)"


def _listed(items: Sequence[str], between: str = ", ", most: int = 6) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more


def page(watch: Watch, lines: Sequence[str]) -> str:
    what, change, numbers = "Times of each campaign", watch.change, range(1, len(watch.campaigns) + 1)
    usual = np.median(watch.logs[:, : change.first if change else None], axis=1, keepdims=True)
    values = 100 * np.expm1(watch.logs - usual)
    means = values.mean(axis=0)
    with matplotlib.rc_context(SETTINGS):
        drawn, axes = one_plot(what, 3.4)
        axes.plot(numbers, values.T, color=OTHER, linewidth=0.8)
        axes.plot(numbers, means, color=BEST, marker="o", markersize=4)
        if change and watch.alarm is not None:
            axes.axvspan(change.earliest + 0.5, change.latest + 1.5, color=OTHER, alpha=0.3)
            axes.axvline(watch.alarm + 1, color=BOUND, linestyle="--", linewidth=1)
        axes.set(xlabel="campaign (dashed: alarm; band: the change)", ylabel="time against the usual [%]")
        axes.locator_params(axis="x", integer=True)
        svg = svg_of(drawn, "history", what)
    figure, styles = for_page(svg, "history", what), page_styles([svg])
    template = environment(TEMPLATES, autoescape=True).get_template("history.html.j2")
    return template.render(watch=watch, lines=lines, figure=figure, figure_styles=styles, means=means)
