"""The table that a device study's report begins with: a row for each value that its answer distinguishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from scaling.device_studies.declaration import DEVICES, BreakEven, Enough, Fastest, Variant
from scaling.report.device.comparisons import Reached, crossing_text
from scaling.report.device.findings import ahead, crossings, needs
from scaling.report.device.results import ON, DeviceResults
from scaling.report.device.tables import Cells, fastest_and_slowest, table_by
from scaling.report.formats import MISSING, number, rate
from scaling.report.tables import Table, without_empty_columns


def _enough(declared: Enough, results: DeviceResults) -> Table:
    known, longer = needs(declared, results), ahead(declared, results)
    gain = [f"x as long with {results.ends(declared.x)['least']}"] if "{times}" in declared.bracket else []
    headings = [f"{on.name}: {name}" for on in DEVICES for name in (declared.x, "samples/s", *gain)]

    def best(value: Any, device: Variant) -> Reached | None:
        arms = [each for arm, each in known.items() if arm.where["device"] == device.where["device"]]
        every = [each[value] for each in arms if value in each]
        return min(every, key=lambda one: one.best.sample_s, default=None)

    def texts(cells: Cells) -> Iterator[str]:
        value = cells[0].value(declared.by)
        for device in DEVICES:
            need = best(value, device)
            yield need.text(declared.x) if need else MISSING
            yield rate(need.best.per_s() if need else None)
            yield from [number(need.gain.ratio if need and need.gain else None, 2)] * len(gain)
        yield number(longer[value].ratio if value in longer else None, 2)

    groups = []
    for value in results.grouped(results.cells, declared.by):
        found = [need for device in DEVICES if (need := best(value, device))]
        groups += [[cell for need in found for cell in (need.shown, need.best)]] if found else []
    what = f"A sample takes at most {declared.ratio - 1:.0%} more than its least time; samples/s: the most."
    headings.append("x as long on the CPU")
    return table_by(results, "The least that is enough", [declared.by], groups, headings, texts, what)


def _break_even(declared: BreakEven, results: DeviceResults) -> Table:
    found = crossings(declared, results)

    def texts(cells: Cells) -> Iterator[str]:
        for each in found.values():
            yield crossing_text(each[cells[0].value(declared.by)], declared.unit)

    cells = results.where(declared.where) if found and declared.by else []
    groups = results.grouped(cells, declared.by).values()
    title, what = "Where the GPU takes less time", "Interpolated; in brackets the 95% interval."
    return replace(table_by(results, title, [declared.by], groups, [*found], texts, what), cells=[])


def _fastest(declared: Fastest, results: DeviceResults) -> Table:
    every = results.grouped(results.where(declared.where), *declared.by, "device").values()
    over = [cells for cells in every if all(cell.is_over for cell in cells)]
    groups = [timed for cells in over if (timed := [cell for cell in cells if cell.estimate()])]
    by, headings = [*declared.by, "device"], ["fastest", "ms", "slowest", "x as long"]

    def texts(cells: Cells) -> Iterator[str]:
        best, best_ms, _, slowest, _, longer = fastest_and_slowest(results, declared.choice, cells)
        yield from (best, best_ms, slowest, longer)

    return table_by(results, "The fastest choice", by, groups, headings, texts, "Medians of an operation.")


TABLES: dict[type, Callable[[Any, DeviceResults], Table]] = {
    BreakEven: _break_even,
    Enough: _enough,
    Fastest: _fastest,
}


def answer_table(results: DeviceResults) -> Table | None:
    """Of all declared answers that have one, without the study's name; None where nothing is known."""
    labels = {"device": "on", **ON, **results.report.labels}
    named = replace(results, report=replace(results.report, labels=labels))
    made = [TABLES[type(one)](one, named) for one in results.report.answer if type(one) in TABLES]
    known = [table for table in made if table.rows]
    if not known:
        return None
    title = known[0].title.partition(": ")[2]
    rows = [row for table in known for row in table.rows]
    cells = [[*dict.fromkeys(ids)] for table in known for ids in table.cells]
    return without_empty_columns(replace(known[0], title=title, rows=rows, cells=cells))
