"""One self-contained page: no script, no request, figures inline. Everything that is text is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from scaling.report.budget_table import READING, BudgetTable, budget_table
from scaling.report.cautions import cautions_of
from scaling.report.columns import SEPARATOR, Row, to_rows
from scaling.report.figures import SavedFigure
from scaling.report.formats import (
    MISSING,
    interval,
    megabytes,
    milliseconds,
    number,
    percent,
    ratio,
)
from scaling.report.groups import Group, group_rows
from scaling.report.learning import over_seeds
from scaling.report.noise import noise_line
from scaling.report.recipes import recipe_text
from scaling.report.sentence import findings
from scaling.report.wall_time import WallTime

TEMPLATE = "report.html.j2"

_ITERATION_HEADINGS = (
    *(
        "aggregator",
        "workers",
        "batch a worker",
        "ms an iteration",
        "95% interval, ms",
        "samples/s",
        "speedup",
    ),
    *("efficiency", "exposed, ms", "MB sent a rank", "repeats", "iterations", "state"),
)
_CONVERGENCE_HEADINGS = (
    *("aggregator", "workers", "batch a worker", "test accuracy", "training accuracy", "training loss"),
    *("epochs", "training, s", "target", "s to target", "predicted, s", "seeds", "state"),
)

CONVERGENCE_STATISTIC = (
    "Medians over the repeats; accuracies of several seeds are the mean with its standard deviation. Loss "
    "and accuracy are those after the last epoch. Seconds of training leave evaluation out; to the target: "
    "at the end of the first epoch that reaches it, if every repeat does. Predicted: iteration time of the "
    "timed cell x iterations to the target."
)


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it: a title, its statistic, headings, text in rows, and what stands below."""

    title: str
    statistic: str
    headings: Sequence[str]
    rows: list[list[str]]
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()


def render_page(
    study: Mapping[str, Any],
    environment: Mapping[str, Any] | None,
    table: pd.DataFrame,
    figures: Sequence[SavedFigure],
    times: WallTime | None = None,
    *,
    more_tables: Sequence[PageTable] = (),
    more_findings: Sequence[str] = (),
) -> str:
    """The page's text.

    Args:
        study: the resolved study; its name, notes are shown.
        environment: where it was run, nested as it comes; None where it was not recorded.
        table: what `summary_table` made.
        figures: what is shown inline; their SVG files are read.
        times: how the wall time divided; None where that was not recorded.
        more_tables, more_findings: of cells without a model, behind those of the others.
    """
    rows = to_rows(table)
    groups = group_rows(rows)
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    templates = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return templates.get_template(TEMPLATE).render(
        name=study.get("name", "study"),
        findings=[*findings(table, num_cores(environment)), *more_findings],
        tables=[*(table for group in groups for table in page_tables(group, groups)), *more_tables],
        wall_time=times.line() if times else None,
        notes=[str(note) for note in study.get("notes") or []],
        cell_notes=_notes(rows),
        figures=[(figure, inline_svg(figure)) for figure in figures],
        failed=[row for row in rows if row["state"] == "failed"],
        states={
            state: sum(row["state"] == state for row in rows) for state in ("planned", "running", "done")
        },
        num_cells=len(rows),
        environment=None if environment is None else flatten(environment),
    )


def num_cores(environment: Mapping[str, Any] | None) -> int | None:
    """The CPU cores that workers could use: cpu.usable_cores or cpu.cores; None where neither is there."""
    cpu = (environment or {}).get("cpu")
    cores = cpu.get("usable_cores", cpu.get("cores")) if isinstance(cpu, Mapping) else None
    return cores if isinstance(cores, int) else None


def flatten(value: Any, path: str = "") -> list[tuple[str, str]]:
    """Nested mappings and lists -> (dotted path, text) rows; a list of plain values stays one row."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        values = value if isinstance(value, list) else [value]
        return [(path, ", ".join(MISSING if item is None else str(item) for item in values) or MISSING)]
    return [row for key, item in items for row in flatten(item, f"{path}.{key}" if path else key)]


def inline_svg(figure: SavedFigure) -> Markup:
    """A figure's SVG for the inside of a page: described, scaled by the page, its ids prefixed with its name.

    Matplotlib calls things `axes_1` and `text_3` in every figure, and a reference takes the first thing of
    that id in the page.
    """
    text = figure.svg.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href")
    prefix = re.sub(r"[^\w-]", "-", figure.name)
    text = re.sub(r'\bid="', f'id="{prefix}--', text)
    text = re.sub(r'href="#', f'href="#{prefix}--', text)
    text = text.replace("url(#", f"url(#{prefix}--")
    label = Markup.escape(f"{figure.name.partition('-')[0]}: {figure.title}")
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1))


def page_tables(group: Group, groups: Sequence[Group]) -> list[PageTable]:
    """A group of cells in human units: its table and, where steps were split, its budget.

    Args:
        group: comparable cells.
        groups: all of the summary.
    """
    if group.kind == "convergence":
        rows = [_convergence_row(group, row) for row in over_seeds(group.rows)]
        title, recipe = f"Convergence: {group.title}", f"Recipe: {recipe_text(group.rows[0])}."
        statistic = f"{recipe} {CONVERGENCE_STATISTIC}"
        return [PageTable(title, statistic, _CONVERGENCE_HEADINGS, rows, (), cautions_of(group))]
    rows = [_iteration_row(group, row) for row in group.rows]
    title, line = f"Time per iteration: {group.title}", noise_line(group, groups)
    remarks = [line] if line else []
    table = PageTable(
        title, _iteration_statistic(group), _ITERATION_HEADINGS, rows, remarks, cautions_of(group)
    )
    budgets = budget_table(group)
    return [table] if budgets is None else [table, _budget_page_table(group, budgets)]


def _budget_page_table(group: Group, budgets: BudgetTable) -> PageTable:
    columns = budgets.columns
    return PageTable(
        f"Where a step's time goes, ms: {group.title}",
        READING,
        ["aggregator", "workers", *budgets.lines],
        [[column.aggregator, str(column.world_size), *column.values] for column in columns],
        [column.remark for column in columns if column.remark is not None],
    )


def _iteration_statistic(group: Group) -> str:
    methods = dict.fromkeys(row["interval_method"] for row in group.rows if row["interval_method"])
    intervals = f"Interval: {'; '.join(methods)}. " if methods else ""
    return (
        "Median over the iterations of all repeats, each as long as its slowest rank; warm-up left out. "
        f"{intervals}Speedup: throughput over that of one worker without exchange, equal in everything else."
    )


def _iteration_row(group: Group, row: Row) -> list[str]:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    width = None if low is None or high is None else high - low
    return [
        *_first_columns(group, row),
        milliseconds(row["iteration_s"], width) if row["repeats"] else row["state"],
        interval(low, high),
        number(row["samples_per_s"]),
        ratio(row["speedup"]),
        percent(row["parallel_efficiency"], decimals=0),
        milliseconds(row["exposed_s"]),
        megabytes(row["wire_bytes_per_rank"]),
        str(row["repeats"]),
        number(row["iterations"], digits=1),
        row["state"],
    ]


def _convergence_row(group: Group, row: Row) -> list[str]:
    return [
        *_first_columns(group, row),
        _accuracy(row) if row["repeats"] else row["state"],
        percent(row["train_accuracy"], decimals=2),
        number(row["train_loss"]),
        number(row["epochs"], digits=1),
        number(row["train_s"]),
        percent(row["target_accuracy"]),
        _to_target(row),
        _predicted(row),
        str(row["num_seeds"] or MISSING),
        row["state"],
    ]


def _accuracy(row: Row) -> str:
    spread = row["seed_sd_accuracy"]
    mean = percent(row["final_test_accuracy"], decimals=2)
    return mean if spread is None else f"{mean} ± {100 * spread:.2f}"


def _to_target(row: Row) -> str:
    """The seconds, or why there are none."""
    if row["seconds_to_target"] is None and row["target_state"] is not None:
        return str(row["target_state"])
    return number(row["seconds_to_target"])


def _predicted(row: Row) -> str:
    low, high = row["predicted_s_to_target_low"], row["predicted_s_to_target_high"]
    value = number(row["predicted_s_to_target"])
    return value if low is None else f"{value} ({number(low)} to {number(high)})"


def _first_columns(group: Group, row: Row) -> list[str]:
    return [group.name(row), str(row["world_size"]), str(row["local_batch"])]


def _notes(rows: Sequence[Row]) -> list[str]:
    """The cells' notes, each once, with the cells that it belongs to."""
    cells: dict[str, list[str]] = {}
    for row in rows:
        for note in filter(None, (row["notes"] or "").split(SEPARATOR)):
            cells.setdefault(note, []).append(f"{row['aggregator'] or row['kind']} x {row['world_size']}")
    return [f"{note} ({', '.join(dict.fromkeys(names))})" for note, names in cells.items()]
