"""What a machine's history says: in a line, and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from scaling.analysis.environments import machine_changes
from scaling.analysis.history import COMMON, LEARNED, Change, Watch
from scaling.report.figures.draw import svg_of
from scaling.report.figures.parts import BEST, BOUND, OTHER, SETTINGS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.text import TEMPLATES, environment
from scaling.store.history import HistoryFolder


def sentences(watch: Watch, folder: HistoryFolder) -> list[str]:
    num, change = len(watch.campaigns), watch.change
    rate = f"False alarms: on average at most one in {watch.runs_per_false_alarm:g} campaigns."
    if num <= LEARNED:
        lines = [f"{num} campaign{'s' * (num > 1)} so far: an alarm needs {LEARNED + 1}."]
    elif change is None:
        last = {by: f"in the last {runs} campaigns" if runs else "not yet" for by, runs in watch.seen.items()}
        seen = f"seen by now: {', '.join(f'{by:.0%} {when}' for by, when in last.items())}."
        none = f"No change in {num} campaigns of {len(watch.streams)} times. A slowdown would have been"
        lines = [f"{none} {seen} {rate}"]
    else:
        lines = _alarm(watch, change, folder, rate)
    for host, ratio in watch.hosts.items():
        lines.append(f"Campaigns on {host} take {_longer(*ratio)} longer than the others.")
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
    first, (before, after) = watch.campaigns[change.first], watch.around(change)
    likely = (names[change.earliest], names[change.latest])
    where = f" (95%: {' to '.join(likely)})" if len(set(likely)) > 1 else ""
    since = f"{first.name}{where} of {first.started[:16].replace('T', ' ')}"
    takes = f"{change.stream} take{'s' * (change.stream != COMMON)} {_longer(*change.ratio)} longer"
    lines = [f"Slower since {since}: {takes}. Alarm at {names[watch.alarm or 0]}. {rate}"]
    if watch.others and change.stream != COMMON:
        lines.append(f"Certain by itself: {_listed(watch.others)}.")
    nothing = "nothing that is recorded (versions, settings, links, clocks, power cap, load)"
    differing = machine_changes(folder.folder(before.name), folder.folder(after.name)) or [nothing]
    lines.append(f"Changed with it: {_listed(differing, '; ')}.")
    if before.commit and after.commit and before.commit != after.commit:
        lines.append(f"Commits: {before.commit[:12]}..{after.commit[:12]}; --bisect finds the one.")
    return [*lines, f"If it is to stay so: --accept {first.name}."]


def _longer(ratio: float, interval: tuple[float, float] | None) -> str:
    ends = ", ".join(f"{end - 1:.1%}" for end in interval or ())
    return f"{ratio - 1:.1%} [{ends}]" if ends else f"{ratio - 1:.1%} (one campaign)"


def _listed(items: Sequence[str], between: str = ", ", most: int = 6) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more


def page(watch: Watch, lines: Sequence[str]) -> str:
    what, values = "Times of each campaign against the usual ones", watch.relative
    numbers = range(1, len(watch.campaigns) + 1)
    with matplotlib.rc_context(SETTINGS):
        drawn = Figure(figsize=(8, 3.4), layout="constrained")
        axes = drawn.add_subplot()
        axes.plot(numbers, 100 * values.T, color=OTHER, linewidth=0.8)
        axes.plot(numbers, 100 * values.mean(axis=0), color=BEST, marker="o", markersize=4)
        if watch.change and watch.alarm is not None:
            axes.axvspan(watch.change.earliest + 0.5, watch.change.latest + 1.5, color=OTHER, alpha=0.3)
            axes.axvline(watch.alarm + 1, color=BOUND, linestyle="--", linewidth=1)
        axes.set_xlabel("campaign (dashed: alarm; band: where the change is)")
        axes.set_ylabel("time against the usual [%]")
        axes.locator_params(axis="x", integer=True)
        svg = svg_of(drawn, "history", what)
    figure, styles = for_page(svg, "history", what), page_styles([svg])
    rows = [*zip(watch.campaigns, values.mean(axis=0).tolist(), strict=True)]
    template = environment(TEMPLATES, autoescape=True).get_template("history.html.j2")
    return template.render(watch=watch, lines=lines, figure=figure, styles=styles, rows=rows)
