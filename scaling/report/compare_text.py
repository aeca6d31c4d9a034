"""A comparison in a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scaling.analysis.columns import Row, by_key
from scaling.analysis.comparison import CellComparison, Comparison, Shift
from scaling.analysis.decisions import ONE_LAUNCH_SCATTER, TIE_RATIO, Difference
from scaling.axes import workers
from scaling.report.formats import MISSING, like, listed, number, percent
from scaling.report.tables import bare_table
from scaling.report.terminal import wrapped
from scaling.report.text import text_of, title_of

NAME_WIDTH = 19
SAME = f"same within {percent(TIE_RATIO, 0)}"

VERDICTS = (
    "slower",
    "faster",
    SAME,
    "not resolved (scatter)",
    "not resolved (shift of the others)",
    "not resolved (one launch)",
)
"""In the order in which they are counted."""

HEADINGS = {"iteration": "time of a step", "convergence": "time of a whole training"}
"""Kinds in the order of their tables."""

COUNTED = {"iteration": "timed cells", "convergence": "trainings"}  # what their cells are called
MOST_UNMATCHED = 4  # cells without a partner that are named; more are counted


def render_comparison(comparison: Comparison) -> Iterator[RenderableType]:
    for kind, what in COUNTED.items():
        counts = Counter(verdict_of(cell) for cell in comparison.cells if cell.kind == kind)
        if counted := ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]):
            yield wrapped(f"Of {counts.total()} {what} of B: {counted}.")
    yield from _environment(comparison)
    tables = by_key(comparison.cells, lambda cell: (cell.kind, title_of(cell.given)))
    for kind in HEADINGS:
        for (table_kind, group), cells in tables.items():
            if table_kind == kind:
                yield Text()
                yield _table(f"{HEADINGS[kind]}: {group}", cells)
    yield Text()
    for line in _remarks(comparison):
        yield wrapped(line)


def _environment(comparison: Comparison) -> Iterator[RenderableType]:
    deciding = [key for key in comparison.environment if key.decides]
    code = [key for key in comparison.environment if key.field.startswith("git")]
    further = [key.field for key in comparison.environment if not key.decides and key not in code]
    if not deciding:
        but = ", but the code differs:" if code else ""
        yield wrapped(f"environments: the same hardware, drivers, versions and settings{but}")
    elif comparison.is_paired:
        yield wrapped("environments that took turns, and are compared, differ in")
    else:
        yield wrapped("environments differ: a ratio may be theirs, and not what was changed on purpose")
    for key in (*deciding, *code):
        yield wrapped(f"  {key.line()}")
    if further:
        yield wrapped(f"  (and {listed(further)}, which decide nothing by themselves)")


def _table(title: str, cells: Sequence[CellComparison]) -> Table:
    trained = cells[0].quantity == "train_s"
    unit = "s" if trained else "ms"
    rendered = bare_table(wrapped(title), gap=1)
    rendered.add_column("aggregator", overflow="fold", max_width=NAME_WIDTH)
    for name in ("workers", f"A {unit}", f"B {unit}", "B/A", "95% interval"):
        rendered.add_column(name, justify="right", no_wrap=True)
    rendered.add_column("B is")
    for cell in cells:
        a, b = (row[cell.quantity] for row in (cell.match.a, cell.match.b))
        times = [number(a), number(b)] if trained else [like(a, a), like(b, b)]
        size = str(cell.match.a["world_size"])
        ratio = _ratio(cell.difference.ratio)
        values = [cell.name, size, *times, ratio, _interval(cell.difference), verdict_of(cell)]
        rendered.add_row(*(Text(text) for text in values))
    return rendered


def verdict_of(cell: CellComparison) -> str:
    if cell.reason is not None:
        return f"{cell.verdict} ({cell.reason})"
    return SAME if cell.verdict == "same" else cell.verdict


def _percent(difference: float) -> str:
    """`4.2%`, and of what is more than tenfold `217 times`."""
    if difference >= 10:
        return f"{1 + difference:.0f} times"
    return percent(difference, 1 if difference < 0.1 else 0)


def _interval(difference: Difference) -> str:
    interval = difference.interval
    if interval is None:
        return MISSING
    low, high = interval
    return "any" if high > 100 or low < 0.01 else f"{_ratio(low)} to {_ratio(high)}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.is_paired:
        yield "Launches of A and B took turns in one campaign: what a pair of launches shares cancels."
    yield from map(_shift, comparison.shifts)
    if comparison.num_tests:
        yield (
            f"Method: moderated t tests of the launches' times in {comparison.num_tests} cells, Holm's "
            f"correction: with {percent(comparison.level, 0)} probability at most is any cell called "
            "different that is not. B/A is of the launches' geometric means, A and B are those of the "
            "reports; intervals are of each cell alone."
        )
        yield from _sensitivity(comparison)
    yield from _one_launch(comparison)
    yield from (f"Warning: {text_of(warning).rstrip('.')}." for warning in comparison.warnings)
    yield from _differing(comparison)
    yield from _unmatched(comparison)


def _shift(shift: Shift) -> str:
    ratio = f"{_ratio(shift.difference.ratio)} ({_interval(shift.difference)})"
    what = f"All {shift.num_cells} {COUNTED[shift.kind]} on {workers(shift.world_size)}: B/A {ratio}"
    few = "; with so few cells a campaign's shift is not taken out of their ratios"
    then = "" if shift.is_measured else few
    if shift.is_relative:
        why = "" if shift.is_measured else ", as two campaigns differ by such a shift"
        then = f"; cells are called relative to it{why}"
    return f"{what}, {'shifted' if shift.difference.is_significant else 'no shift shown'}{then}."


def _sensitivity(comparison: Comparison) -> Iterator[str]:
    offset = comparison.offset_ratio
    stays = f", down to the {_percent(offset)} that A/A pairs differ by however many there are"
    for kind, what in COUNTED.items():
        same_kind = [cell for cell in comparison.cells if cell.kind == kind]
        smallest = [ratio - 1 for cell in same_kind if (ratio := comparison.detectable(cell)) is not None]
        if smallest:
            yield (
                f"What it could have found: a difference of {_percent(median(smallest))} in half of the "
                f"{what}, of {_percent(min(smallest))} in the steadiest and {_percent(max(smallest))} in the "
                f"least steady one. More repeats find smaller ones{stays if offset else ''}."
            )


def _one_launch(comparison: Comparison) -> Iterator[str]:
    cells = [cell for cell in comparison.cells if cell.within_one_launch]
    if not cells:
        return
    level = comparison.level / len(comparison.cells)
    needed = [cell.launches_needed(level) for cell in cells]
    known = [number for number in needed if number is not None]
    largest = max(cells, key=lambda cell: abs(cell.difference.log_ratio))
    sentence = f"{len(cells)} not resolved: one launch on a side shows nothing of how launches scatter."
    if known:
        sentence += (
            f" If they scatter by {percent(ONE_LAUNCH_SCATTER, 0)}, repeats={min(known)} on both sides would "
            f"tell the largest ratio seen, {_ratio(largest.difference.ratio)}."
        )
    yield sentence


def _differing(comparison: Comparison) -> Iterator[str]:
    found = [pair for cell in comparison.cells for pair in cell.match.differing.items()]
    for name, same in by_key(found, lambda pair: pair[0]).items():
        pairs = dict.fromkeys(f"{a} against {b}" for _, (a, b) in same)
        yield f"In {len(same)} cells {name} differs: {listed(list(pairs)[:3])}."


def _unmatched(comparison: Comparison) -> Iterator[str]:
    for side, rows in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if rows:
            names = [_named(row) for row in rows[:MOST_UNMATCHED]]
            more = [f"{len(rows) - MOST_UNMATCHED} more"] if len(rows) > MOST_UNMATCHED else []
            yield f"Measured in {side} alone, or not done in the other: {listed([*names, *more])}."
    if comparison.num_left_out:
        yield (
            f"{comparison.num_left_out} cells were left out: neither timings nor trainings, or trainings "
            "with workers that shared GPUs."
        )


def _named(row: Row) -> str:
    reason = f": {row['reason']}" if row["reason"] else ""
    formats = [row["memory_format"]] if row["memory_format"] == "channels_last" else []
    augmentation = [f"augmentation {row['augmentation']}"] if row["augmentation"] == "standard" else []
    details = ", ".join([row["model"], *formats, *augmentation, row["state"]])
    return f"{row['aggregator']} on {workers(row['world_size'])} ({details}{reason})"


def comparison_as_dict(comparison: Comparison) -> dict[str, Any]:
    values = comparison.as_dict()
    for cell, cell_values in zip(comparison.cells, values["cells"], strict=True):
        cell_values["group"] = title_of(cell.given)
    return {**values, "warnings": [text_of(warning) for warning in comparison.warnings]}
