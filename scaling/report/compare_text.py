"""A comparison in a terminal of 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from scaling.analysis.columns import Row
from scaling.analysis.compare import CellComparison, Comparison
from scaling.analysis.explain_doubts import LARGE_FLOOR
from scaling.analysis.formats import MISSING, like, listed, number, percent, workers
from scaling.report.terminal import wrapped
from scaling.report.text import text_of

NAME_WIDTH = 19
WITHIN = "*"
"""Marks a verdict that holds for these launches only."""

HEADINGS = {"iteration": "time of an iteration", "convergence": "time of a whole training"}
"""Kinds in the order of their tables."""

COUNTED = {"iteration": "timed cells", "convergence": "trainings"}
"""What their cells are called."""

MOST_ALONE = 4
"""Cells without a partner that are named; more are counted."""


def render_comparison(comparison: Comparison) -> Iterator[RenderableType]:
    """The environments' differences, a table a kind and group, and what stands behind the verdicts."""
    yield from _environment(comparison)
    tables: dict[tuple[str, str], list[CellComparison]] = {}
    for cell in comparison.cells:
        tables.setdefault((cell.kind, cell.group), []).append(cell)
    for kind in HEADINGS:
        for (own, group), cells in tables.items():
            if own == kind:
                yield Text()
                yield _table(f"{HEADINGS[kind]}: {group}", cells)
    yield Text()
    for line in _remarks(comparison):
        yield wrapped(line)


def _environment(comparison: Comparison) -> Iterator[RenderableType]:
    deciding = [one for one in comparison.environment if one.decides]
    minor = [one.field for one in comparison.environment if not one.decides]
    if not deciding:
        yield wrapped("environments: the same hardware, drivers, versions and settings")
    else:
        yield wrapped("environments differ: a ratio may be theirs, and not what was changed on purpose")
        for one in deciding:
            yield wrapped(f"  {one.line()}")
    if minor:
        yield wrapped(f"  (and {listed(minor)}, which decide nothing by themselves)")


def _table(title: str, cells: Sequence[CellComparison]) -> Table:
    trained = cells[0].quantity == "train_s"
    unit = "s" if trained else "ms"
    rendered = Table(
        title=wrapped(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    rendered.add_column("aggregator", overflow="fold", max_width=NAME_WIDTH)
    for name in ("n", f"A {unit}", f"B {unit}", "B/A", "95% interval"):
        rendered.add_column(name, justify="right", no_wrap=True)
    rendered.add_column("B is", no_wrap=True)
    for cell in cells:
        a, b = (row[cell.quantity] for row in (cell.match.a, cell.match.b))
        times = [number(a), number(b)] if trained else [like(a, a), like(b, b)]
        verdict = f"{cell.verdict}{WITHIN if _is_starred(cell) else ''}"
        size = str(cell.match.a["world_size"])
        values = [cell.name, size, *times, _ratio(cell.ratio.ratio), _interval(cell), verdict]
        rendered.add_row(*(Text(text) for text in values))
    return rendered


def _percent(difference: float) -> str:
    """`4.2%`, and of what is more than tenfold `217 times`."""
    if difference >= 10:
        return f"{1 + difference:.0f} times"
    return percent(difference, 1 if difference < 0.1 else 0)


def _is_starred(cell: CellComparison) -> bool:
    return cell.within_one_launch and cell.verdict != "undecided"


def _interval(cell: CellComparison) -> str:
    low, high = cell.ratio.low, cell.ratio.high
    if low is None or high is None:
        return MISSING
    return "any" if high > 100 or low < 0.01 else f"{_ratio(low)} to {_ratio(high)}"


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _remarks(comparison: Comparison) -> Iterator[str]:
    for kind, what in COUNTED.items():
        counts = Counter(cell.verdict for cell in comparison.cells if cell.kind == kind)
        told = ", ".join(
            f"{counts[verdict]} {verdict}"
            for verdict in ("slower", "faster", "indistinguishable", "undecided")
            if counts[verdict]
        )
        if told:
            yield f"Of {counts.total()} {what} of B: {told}."
    if comparison.num_tests:
        yield (
            f"Method: Welch's t test of the launches' medians in {comparison.num_tests} cells, Holm's "
            f"correction: with {percent(comparison.level, 0)} probability at most is any cell called faster "
            "or slower that is not. B/A is of the launches' geometric means, A and B are medians of all "
            "samples; intervals are of each cell alone."
        )
        yield from _sensitivity(comparison)
    if any(_is_starred(cell) for cell in comparison.cells):
        yield (
            f"{WITHIN} One launch on a side: within these launches only, beyond the noise floor of their A/A "
            "pairs. How much launches scatter is not known; repeats=3 would tell."
        )
    yield from _reasons(comparison)
    yield from _alone(comparison)


def _sensitivity(comparison: Comparison) -> Iterator[str]:
    for kind, what in COUNTED.items():
        own = [cell for cell in comparison.cells if cell.kind == kind]
        smallest = [one - 1 for cell in own if (one := comparison.detectable(cell)) is not None]
        if smallest:
            yield (
                f"What it could have found: a difference of {_percent(median(smallest))} in half of the "
                f"{what}, of {_percent(min(smallest))} in the steadiest and {_percent(max(smallest))} in the "
                "least steady one. More repeats find smaller ones."
            )


def _reasons(comparison: Comparison) -> Iterator[str]:
    reasons = Counter((cell.verdict, cell.reason) for cell in comparison.cells if cell.reason)
    texts = {cell.reason: text_of(found) for cell in comparison.cells if (found := cell.reason_finding)}
    floors = [cell.noise_floor or 0.0 for cell in comparison.cells]
    for (verdict, reason), count in reasons.items():
        largest = f" (at most {_percent(max(floors))})" if reason == "below_noise_floor" else ""
        yield f"{count} {verdict}: {texts[reason]}{largest}."
    if max(floors) > LARGE_FLOOR:
        yield "A noise floor so large hides differences: a quieter machine, or longer measuring, shows them."
    differing = Counter(name for cell in comparison.cells for name in cell.match.differing)
    for name, count in differing.items():
        pairs = dict.fromkeys(
            f"{a} against {b}"
            for cell in comparison.cells
            for a, b in [cell.match.differing.get(name, (None, None))]
            if name in cell.match.differing
        )
        yield f"In {count} cells {name} differs: {listed(list(pairs)[:3])}."


def _alone(comparison: Comparison) -> Iterator[str]:
    for side, rows in (("A", comparison.only_in_a), ("B", comparison.only_in_b)):
        if rows:
            names = [_named(row) for row in rows[:MOST_ALONE]]
            more = [f"{len(rows) - MOST_ALONE} more"] if len(rows) > MOST_ALONE else []
            yield f"Measured in {side} alone, or not done in the other: {listed([*names, *more])}."
    if comparison.num_left_out:
        yield (
            f"{comparison.num_left_out} cells of other kinds than timings and trainings, or whose workers "
            "shared GPUs, were left out."
        )


def _named(row: Row) -> str:
    reason = f": {row['reason']}" if row["reason"] else ""
    formats = [row["memory_format"]] if row["memory_format"] == "channels_last" else []
    augmentation = [f"augmentation {row['augmentation']}"] if row["augmentation"] == "standard" else []
    told = ", ".join([row["model"], *formats, *augmentation, row["state"]])
    return f"{row['aggregator']} on {workers(row['world_size'])} ({told}{reason})"


def comparison_as_dict(comparison: Comparison) -> dict[str, Any]:
    """A comparison for JSON, with the reasons in words."""
    values = comparison.as_dict()
    for entry, cell in zip(values["cells"], comparison.cells, strict=True):
        entry["reason"] = text_of(found) if (found := cell.reason_finding) else None
    return values
