"""The tables of the page: a group of cells in human units, a row a cell.

Every row knows its cells, whose raw samples it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scaling.analysis.columns import Row, shares_gpus
from scaling.analysis.formats import (
    MISSING,
    interval,
    listed,
    megabytes,
    milliseconds,
    number,
    percent,
    ratio,
    workers,
)
from scaling.analysis.groups import Group
from scaling.analysis.learning import family_key, over_seeds
from scaling.analysis.noise import noise_line
from scaling.analysis.recipes import recipe_text
from scaling.analysis.training_findings import without_augmentation
from scaling.report.budget_table import READING, BudgetTable, budget_table
from scaling.report.warnings_text import warnings_of

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
    *("efficiency", "exposed, ms", "MB moved a rank", "repeats", "iterations", "state"),
)
_CONVERGENCE_HEADINGS = (
    *("aggregator", "workers", "batch a worker", "test accuracy", "training accuracy", "training loss"),
    *("epochs", "training, s", "target", "s to target", "predicted, s", "seeds", "state"),
)

CONVERGENCE_STATISTIC = (
    "Medians over the repeats; accuracies of several seeds are the mean with its standard deviation. Loss "
    "and accuracy are those after the last epoch. Seconds of training leave evaluation out; to the target: "
    "at the end of the first epoch that reaches it, if every repeat does. Predicted: iteration time of the "
    "timed cell x iterations to the target, with the 95% interval of both (of one launch with its noise "
    "floor); with one training (one seed, one repeat) without that of the iterations."
)


@dataclass(frozen=True)
class PageTable:
    """A table as the page shows it.

    Attributes:
        title, statistic: what is in it, and what its values are.
        headings, rows: text.
        remarks, warnings: what stands below it.
        cells: of each row, the ids of the cells that it is made of; [] where rows are not of cells.
        section: where it stands (`scaling.report.sections`).
        source: the file that has the same values in full.
    """

    title: str
    statistic: str
    headings: Sequence[str]
    rows: list[list[str]]
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()
    cells: list[list[str]] = field(default_factory=list)
    section: str = "speedup"
    source: str = "summary.csv"


def page_tables(group: Group, groups: Sequence[Group]) -> list[PageTable]:
    """A group of cells in human units: its table and, where steps were split, its budget.

    Args:
        group: comparable cells.
        groups: all of the summary.
    """
    if group.kind == "convergence":
        return [_convergence_table(group)]
    if group.kind != "iteration":
        return []
    line = noise_line(group, groups)
    table = PageTable(
        f"Time per iteration: {group.title}",
        _iteration_statistic(group),
        _ITERATION_HEADINGS,
        [_iteration_row(group, row) for row in group.rows],
        [line] if line else [],
        warnings_of(group),
        [[row["cell_id"]] for row in group.rows],
    )
    budgets = budget_table(group)
    return [table] if budgets is None else [table, _budget_page_table(group, budgets)]


def _convergence_table(group: Group) -> PageTable:
    merged = over_seeds(group.rows)
    members: dict[tuple[object, ...], list[str]] = {}
    for row in group.rows:
        members.setdefault(family_key(row), []).append(row["cell_id"])
    return PageTable(
        f"Convergence: {group.title}",
        f"Recipe: {recipe_text(group.rows[0])}. {CONVERGENCE_STATISTIC}",
        _CONVERGENCE_HEADINGS,
        [_convergence_row(group, row) for row in merged],
        [*_unpredicted(group, merged), *_unaugmented(group, merged), *_other_seeds(group, merged)],
        warnings_of(group),
        list(members.values()),
        section="training",
    )


def _unpredicted(group: Group, merged: Sequence[Row]) -> Iterator[str]:
    """Why a time to the target is not predicted, and what a study needs for that."""
    aimed = [row for row in merged if row["epochs_to_target"] is not None and not shares_gpus(row)]
    without = [row for row in aimed if row["predicted_s_to_target"] is None]
    if not without:
        return
    names = [f"{group.name(row)} on {workers(row['world_size'])}" for row in without]
    who = "no combination" if len(without) == len(aimed) else f"not {listed(names)}"
    yield (
        f"Predicted: {who}, as no cell of kind: iteration here was measured with the same step (model, "
        "aggregator, batch, workers, step, threads, input on the device; and, where the training has no "
        "augmentation, without it). A study that has such a part beside the training predicts it."
    )


def _unaugmented(group: Group, merged: Sequence[Row]) -> Iterator[str]:
    """Which predicted times to the target lack the augmentation that the seconds of training contain."""
    predicted = [row for row in merged if row["predicted_s_to_target"] is not None]
    lacking = without_augmentation(predicted)
    if not lacking:
        return
    names = [f"{group.name(row)} on {workers(row['world_size'])}" for row in lacking]
    which = "" if len(lacking) == len(predicted) else f" for {listed(names)}"
    yield (
        f"Predicted: without augmentation{which}, which the seconds of training contain and the timed steps "
        "do not; the interval does not hold that either. With augmentation: standard in the timed part it is "
        "in both."
    )


def _other_seeds(group: Group, merged: Sequence[Row]) -> Iterator[str]:
    """Between which epochs the seeds of a combination reach the target, where others are of fewer seeds."""
    if len({row["num_seeds"] for row in merged if row["repeats"]}) < 2:
        return
    for row in merged:
        own = [one for one in group.rows if family_key(one) == family_key(row) and one["repeats"]]
        epochs = [one["epochs_to_target"] for one in own if one["epochs_to_target"] is not None]
        if len(epochs) > 1:
            who = (
                f"its {len(own)} seeds"
                if len(epochs) == len(own)
                else f"{len(epochs)} of its {len(own)} seeds"
            )
            median = "its seconds are their median, and not to be compared with a single seed's"
            yield (
                f"{group.name(row)} on {workers(row['world_size'])}: {who} reach the target after "
                f"{min(epochs):g} to {max(epochs):g} epochs"
                f"{'' if row['seconds_to_target'] is None else f'; {median}'}."
            )


def _budget_page_table(group: Group, budgets: BudgetTable) -> PageTable:
    columns = budgets.columns
    return PageTable(
        f"Where a step's time goes, ms: {group.title}",
        READING,
        ["aggregator", "workers", *budgets.lines],
        [[column.aggregator, str(column.world_size), *column.values] for column in columns],
        [column.remark for column in columns if column.remark is not None],
        cells=[[column.cell_id] for column in columns],
        section="budget",
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
