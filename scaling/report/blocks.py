"""What belongs to each workload on the page: first what answers, then the rest of its groups of cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from scaling.analysis.columns import Row, by_key, is_control_arm, workers_of
from scaling.analysis.findings import Finding
from scaling.analysis.groups import CellGroup, in_order_of
from scaling.analysis.learning import over_seeds
from scaling.axes import workers
from scaling.measure.statistics import ONE_LAUNCH
from scaling.report.formats import milliseconds, of_speedup, percent, ratio
from scaling.report.page_tables import answer_columns, answer_legend, best_of_rows, quality_of
from scaling.report.tables import (
    Column,
    SavedFigure,
    Section,
    Table,
    arrange,
    table_of,
    without_empty_columns,
)
from scaling.report.text import short_names, title_parts

ANSWER = "answer"  # the section of figures and tables that stand open
TRAINING = "training: "  # what the name of a variant of trainings begins with


@dataclass(frozen=True)
class BlockVariant:
    """Comparable cells of a workload, as of one step mode or one link."""

    name: str
    summary: str
    figures: list[SavedFigure]
    tables: list[Table]
    sections: list[Section]


@dataclass(frozen=True)
class Block:
    name: str
    variants: list[BlockVariant]


def blocks_of(
    groups: Sequence[CellGroup],
    figures: Sequence[SavedFigure],
    tables: Sequence[Table],
    answers: Sequence[Finding],
    *,
    has_answer_table: bool = False,
) -> list[Block]:
    """All workloads, those of the first answers first; `has_answer_table` has the trainings already."""
    named = {cell for answer in answers for cell in answer.cells}
    ordered = in_order_of([*dict.fromkeys(answer.cells[0] for answer in answers)], groups)
    titles = short_names([title_parts(group.given) for group in ordered])
    blocks = []
    members = by_key(zip(ordered, titles, strict=True), lambda pair: pair[1][0])
    for name, same_workload in members.items():
        variants = [_variant(group, title, figures, tables, named) for group, title in same_workload]
        if has_answer_table:
            variants = [replace(one, tables=[]) if one.name.startswith(TRAINING) else one for one in variants]
        trained = [variant for variant in variants if variant.name.startswith(TRAINING) and variant.figures]
        if trained and trained[0] is not variants[0]:  # time to accuracy is a part of the answer
            variants[0] = replace(variants[0], figures=[*variants[0].figures, *trained[0].figures])
            variants = [replace(v, figures=[]) if v is trained[0] else v for v in variants]
        blocks.append(Block(name, variants))
    return blocks


def _variant(
    group: CellGroup,
    title: Sequence[str],
    figures: Iterable[SavedFigure],
    tables: Iterable[Table],
    named: Collection[str],
) -> BlockVariant:
    group_figures = [figure for figure in figures if figure.group == group.key]
    group_tables = [table for table in tables if table.group == group.key]
    kind = TRAINING if group.kind == "convergence" else ""
    differs = ", ".join(title[1:])
    answer = _answer_table(group, named)
    return BlockVariant(
        f"{kind}{differs or title[0]}",
        _summary(group),
        [figure for figure in group_figures if figure.section == ANSWER],
        [answer] if answer else [],
        arrange([figure for figure in group_figures if figure.section != ANSWER], group_tables),
    )


def _summary(group: CellGroup) -> str:
    if group.kind == "convergence":
        reached = [row for row in over_seeds(group.rows) if row["seconds_to_target"] is not None]
        if not reached:
            return ""
        best = min(reached, key=lambda row: float(row["seconds_to_target"]))
        bits = best["target_bits_per_byte"]
        target = percent(best["target_accuracy"]) if bits is None else f"{bits:g} bits per byte"
        return f"{group.name(best)} on {workers_of(best)}: {best['seconds_to_target']:.4g} s to {target}"
    best_row = best_of_rows(group.rows)
    if best_row is None:
        return ""
    shown = best_row["speedup"] is not None and best_row["world_size"] > 1
    speedup = f", speedup {ratio(best_row['speedup'])}{of_speedup(best_row)}" if shown else ""
    return (
        f"{group.name(best_row) if best_row['world_size'] > 1 else 'best'} on {workers_of(best_row)}: "
        f"{milliseconds(best_row['iteration_s'])} ms a step{speedup}"
    )


def _answer_table(group: CellGroup, named: Collection[str]) -> Table | None:
    """Six columns of the settings on the best number of workers, the fastest first; None without any."""
    if group.kind == "convergence":
        return _training_table(group, named)
    best = best_of_rows(group.rows)
    if best is None:
        return None
    timed = [row for row in group.rows if row["iteration_s"] is not None]
    size = best["world_size"] if best["world_size"] > 1 else max(row["world_size"] for row in timed)
    rows = [row for row in timed if row["world_size"] == size]
    rows.sort(key=lambda row: float(row["iteration_s"]))
    what = "Aggregators" if rows[0]["arm"] is None else "Variants of the script"
    is_one_launch = all(row["interval_method"] == ONE_LAUNCH for row in rows)
    has_no_speedup = all(row["speedup"] is None for row in rows) and rows[0]["arm"] is None
    said = {
        f"Step time ± half of its 95% interval{' within the only launch' * is_one_launch}.": True,
        "No exchange: about the bound on speed, not a choice.": size > 1 and any(map(is_control_arm, rows)),
        "Exchange: exposed communication, waits, copies, encoding and sums, from profiled steps.": True,
        f"No speedup: no step without exchange was timed on one {group.unit}.": size > 1 and has_no_speedup,
        "Green: the answer's aggregators.": bool(_named(rows, named)),
    }
    table = table_of(
        f"{what} on {workers(size, group.unit)}, fastest first",
        " ".join(sentence for sentence, is_so in said.items() if is_so),
        answer_columns(group, rows),
        rows,
        remarks=[*filter(None, [answer_legend(rows)])],
    )
    return _marked(without_empty_columns(table), rows, group, named)


def _training_table(group: CellGroup, named: Collection[str]) -> Table | None:
    rows = [row for row in group.rows if row["repeats"]]
    if not rows:
        return None
    quality, has_target = quality_of(group), any(row["target_state"] for row in rows)

    def place(row: Row) -> tuple[float, float]:
        """The fastest to the target first, and then what ended best."""
        bits, accuracy = row["bits_per_byte"], row["final_test_accuracy"]
        return row["seconds_to_target"] or math.inf, -(accuracy or 0.0) if bits is None else float(bits)

    rows.sort(key=place)
    columns = [
        Column("aggregator", group.name),
        Column(f"{group.unit}s", lambda row: str(row["world_size"])),
        quality,
        *([Column("s to target", _to_target)] if has_target else []),
        Column("training, s", lambda row: f"{row['train_s']:.4g}" if row["train_s"] else ""),
        Column("seed", lambda row: str(row["seed"])),
    ]
    title = f"All trainings, the {'fastest to the target' if has_target else 'best'} first"
    statistic = f"{str(quality.header).capitalize()} after the last epoch; seconds leave evaluation out."
    return _marked(table_of(title, statistic, columns, rows), rows, group, named)


def _marked(table: Table, rows: Sequence[Row], group: CellGroup, named: Collection[str]) -> Table:
    return replace(
        table,
        section=ANSWER,
        group=group.key,
        cells=[[row["cell_id"]] for row in rows],
        bounds=[place for place, row in enumerate(rows) if row["world_size"] > 1 and is_control_arm(row)],
        best=_named(rows, named),
    )


def _named(rows: Sequence[Row], named: Collection[str]) -> list[int]:
    return [place for place, row in enumerate(rows) if row["cell_id"] in named and not is_control_arm(row)]


def _to_target(row: Row) -> str:
    if row["seconds_to_target"] is not None:
        return f"{row['seconds_to_target']:.4g}"
    return str(row["target_state"] or "no target")
