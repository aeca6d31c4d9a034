"""The tables of timed cells and of trainings: a group of cells in human units, a row a cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from scaling.analysis.columns import (
    SEPARATOR,
    Row,
    by_key,
    is_control_arm,
    is_unchanged,
    shares_gpus,
    workers_of,
)
from scaling.analysis.control import AGREEMENT
from scaling.analysis.groups import CellGroup
from scaling.analysis.learning import REACHED, family_key, over_seeds
from scaling.analysis.noise import noise_finding
from scaling.analysis.rates import MEAN_OF_STEPS
from scaling.analysis.summary_findings import without_augmentation
from scaling.files.texts import flops_per_s
from scaling.report.budget_table import budget_table
from scaling.report.formats import (
    MISSING,
    half_width_percent,
    interval,
    listed,
    megabytes,
    milliseconds,
    number,
    of_speedup,
    percent,
    rate,
    ratio,
    seconds_of_seeds,
)
from scaling.report.tables import Column, Table, table_of
from scaling.report.text import recipe_text, text_of, title_of, warnings_of

AGGREGATOR_WIDTH = 26  # in a terminal, where longer labels are folded: what five columns of numbers leave
WIDEST_INTERVAL = 0.1  # half of an interval; a row with a wider one is marked
WIDE, DIFFERS = "~", "†"
"""Marks of an interval, and of an exchange that the difference to the step without does not confirm."""

CONVERGENCE_STATISTIC = (
    "Medians over the repeats; of several seeds the mean accuracy and its standard deviation. Loss and "
    "accuracy are those after the last epoch. Seconds leave evaluation out; those to the target end with the "
    "first epoch that reaches it, if every repeat does. Estimated: step time of the timed cell x steps to "
    "the target. Its 95% interval is that of both; the noise floor stands for that of the step time with one "
    "launch. With one training it has none: how the number of steps varies is unknown."
)


def page_tables(group: CellGroup, groups: Sequence[CellGroup]) -> list[Table]:
    """A group of cells in human units: its table and, where steps were split, its budget."""
    tables = [_convergence_table(group)] if group.kind == "convergence" else []
    if group.kind == "iteration":
        tables = [_iteration_table(group, groups), *filter(None, [budget_table(group)])]
    return [replace(table, group=group.key) for table in tables]


def _iteration_table(group: CellGroup, groups: Sequence[CellGroup]) -> Table:
    noise = noise_finding(group, groups)
    return table_of(
        f"Time of a step: {title_of(group.given)}",
        _iteration_statistic(group),
        columns_of(group, groups),
        group.rows,
        remarks=[text_of(noise)] if noise else [],
        warnings=warnings_of(group),
        cells=[[row["cell_id"]] for row in group.rows],
    )


def columns_of(group: CellGroup, groups: Sequence[CellGroup] = ()) -> list[Column[Row]]:
    """The columns of a group's table, on the page and in a terminal; `groups` are all of the study."""
    throughput, unit = group.throughput
    rates = [Column[Row](unit, lambda row: number(row[throughput]))]
    for name, header in (("mfu", "MFU (measured peak)"), ("mfu_data_sheet", "MFU (data sheet)")):
        if any(row[name] is not None for row in group.rows):
            rates.append(Column(header, lambda row, name=name: percent(row[name])))  # type: ignore[misc]

    def with_state(row: Row) -> str:
        """The cell's name, with the state where not all repeats are in the numbers."""
        partial = row["repeats"] and row["state"] != "done"
        return f"{group.name(row)} ({row['state']})" if partial else group.name(row)

    # In a terminal the one quality that the trainings are judged by.
    quality = replace(quality_of(group), header=None)
    trained = [*CONVERGENCE_COLUMNS[:1], quality, *CONVERGENCE_COLUMNS[1:]]
    gain = _gain_over_itself(group, groups)
    speedups = [*SPEEDUP_COLUMNS[:2], *gain, exchange_column(group.rows), *SPEEDUP_COLUMNS[2:]]
    return [
        Column("aggregator", group.name),
        Column(None, with_state, "aggregator", AGGREGATOR_WIDTH),
        Column(f"{group.unit}s", lambda row: str(row["world_size"]), f"{group.unit}s"),
        Column("batch a worker", lambda row: str(row["local_batch"])),
        *(trained if group.kind == "convergence" else (*TIME_COLUMNS, *rates, *speedups)),
        Column("state", lambda row: str(row["state"])),
    ]


def _gain_over_itself(group: CellGroup, groups: Sequence[CellGroup]) -> Iterator[Column[Row]]:
    """What more workers bring a strategy that costs something on one too, which has no peers to access."""
    timed = [row for row in group.rows if row["samples_per_s"] and not is_control_arm(row)]
    same = [other for other in groups if _but_peer_access(other) == _but_peer_access(group)]
    alone = {
        of.name(row): row["samples_per_s"]
        for of in (*same, group)
        for row in of.rows
        if row["world_size"] == 1 and row["samples_per_s"] and not is_control_arm(row)
    }

    def gain(row: Row) -> str:
        one = alone.get(group.name(row)) if row["world_size"] > 1 else None
        return percent(row["samples_per_s"] / one - 1) if one and row["samples_per_s"] else MISSING

    if any(gain(row) != MISSING for row in timed):
        yield Column(f"gain over the same strategy on one {group.unit}", gain)


def _but_peer_access(group: CellGroup) -> tuple[str, dict[str, Any]]:
    further = {name: value for name, value in group.given["further"].items() if name != "peer_access"}
    return group.kind, {**group.given, "further": further}


def quality_of(group: CellGroup) -> Column[Row]:
    """How good trainings are: bits per byte of a text without a target accuracy, else accuracy."""
    trained = [row for row in group.rows if row["repeats"]]
    is_of_bytes = any(row["bits_per_byte"] is not None for row in trained)
    is_of_bytes &= all(row["target_accuracy"] is None for row in trained)
    return BITS if trained and is_of_bytes else ACCURACY


def best_of_rows(rows: Sequence[Row]) -> Row | None:
    """Highest throughput that is a choice: no control arm of several workers. One worker exchanges nothing;
    where it was timed without, that is its row. Of a script of the user's, only what it does unchanged."""
    timed = [row for row in rows if row["iteration_s"] is not None]
    measured = [row for row in timed if is_unchanged(row) or row["world_size"] == 1]
    has_single = any(row["world_size"] == 1 and is_control_arm(row) for row in measured)
    choices = [row for row in measured if is_control_arm(row) == (row["world_size"] == 1 and has_single)]
    return max(choices, key=lambda row: float(row["samples_per_s"]), default=None)


def answer_columns(group: CellGroup, rows: Sequence[Row]) -> list[Column[Row]]:
    throughput, unit = group.throughput
    return [
        Column(
            "aggregator" if all(row["arm"] is None for row in group.rows) else "variant",
            lambda row: f"no exchange ({group.name(row)})" if is_control_arm(row) else group.name(row),
        ),
        Column(
            "ms a step",
            lambda row: (
                milliseconds(row["iteration_s"])
                + (f" ±{_width(row)}" if _width(row) else "")
                + (f" {WIDE}" if _is_wide(row) else "")
            ),
        ),
        Column(unit, lambda row: rate(row[throughput])),
        Column("speedup", lambda row: ratio(row["speedup"]) + of_speedup(row)),
        Column("efficiency", lambda row: percent(row["parallel_efficiency"], 0) + of_speedup(row)),
        exchange_column(rows),
    ]


def answer_legend(rows: Sequence[Row]) -> str:
    """What the marks in `answer_columns` of some rows mean; "" where there are none."""
    wide = f"{WIDE}: an interval wider than ±{percent(WIDEST_INTERVAL, 0)}."
    return " ".join([*([wide] if any(map(_is_wide, rows)) else []), *_legend_of_exchange(rows)])


def _legend_of_exchange(rows: Sequence[Row]) -> Iterator[str]:
    """Where an exchange is not what the difference to the step without shows."""
    marked = [row for row in rows if _exchange_differs(row)]
    if not marked:
        return
    more = all(row["exposed_by_difference_s"] > row["exchange_overhead_s"] for row in marked)
    checks = [row["exposed_check"].values for row in marked]
    slow = [one.get("cause") == "phases" and one["exchange_slows"] for one in checks]
    control_s = max((row["update_s"] or 0.0 for row in rows if is_control_arm(row)), default=0.0)
    late = [row for row in marked if 0 < _gap_s(row) < 2 * ((row["update_s"] or 0.0) - control_s)]
    whys = [f"{'it slows' if all(slow) else 'some slow'} the computation too"] if any(slow) else []
    whys += ["the exchange does not count a longer update, for example in the host's memory"] if late else []
    why = f" ({'; '.join(whys)})" if whys else ""
    is_sure = all(row["exposed_check"].kind == "exposed_times_differ" for row in marked)
    unsure = "" if is_sure else ", or not resolved"
    which = f"{DIFFERS}:" if _tells_apart(rows) else "In most rows"
    yield (
        f"{which} the difference to the step without exchange is "
        f'{"larger" if more else "not the same"}{unsure}{why}; see "Where a step\'s time goes".'
    )


def _width(row: Row) -> str:
    return half_width_percent(row["iteration_s"], row["iteration_s_low"], row["iteration_s_high"])


def _is_wide(row: Row) -> bool:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    return low is not None and high is not None and (high - low) / 2 > WIDEST_INTERVAL * row["iteration_s"]


def exchange_column(rows: Sequence[Row]) -> Column[Row]:
    """What the exchange adds, with a mark where that tells rows apart."""
    marked = [row["cell_id"] for row in rows if _exchange_differs(row)] if _tells_apart(rows) else []

    def text(row: Row) -> str:
        return milliseconds(row["exchange_overhead_s"]) + (f" {DIFFERS}" if row["cell_id"] in marked else "")

    return Column("exchange, ms", text)


def _tells_apart(rows: Sequence[Row]) -> bool:
    """Whether at most half of several rows with an exchange have DIFFERS: else a sentence says it."""
    with_one = [row for row in rows if row["exchange_overhead_s"] is not None and not is_control_arm(row)]
    return len(with_one) < 3 or 2 * sum(map(_exchange_differs, with_one)) <= len(with_one)


def _exchange_differs(row: Row) -> bool:
    """Whether the difference to the step without exchange is another, even if it is not known exactly."""
    check = row["exposed_check"]
    if check is None or check.kind == "exposed_times_agree":
        return False
    larger_s = max(abs(row["exposed_by_difference_s"]), abs(row["exchange_overhead_s"]))
    return bool(check.kind == "exposed_times_differ" or abs(_gap_s(row)) > AGREEMENT * larger_s)


def _gap_s(row: Row) -> float:
    """By how much the difference to the step without exchange is larger than what the spans show."""
    return float(row["exposed_by_difference_s"] - row["exchange_overhead_s"])


def _convergence_table(group: CellGroup) -> Table:
    merged, members = over_seeds(group.rows), by_key(group.rows, family_key)
    return table_of(
        f"Convergence: {title_of(group.given)}",
        f"Recipe: {recipe_text(group.rows[0])}. {CONVERGENCE_STATISTIC}",
        columns_of(group),
        merged,
        remarks=[*_unpredicted(group, merged), *_unaugmented(group, merged), *_other_seeds(group, merged)],
        warnings=warnings_of(group),
        cells=[[row["cell_id"] for row in rows] for rows in members.values()],
        section="training",
    )


def _unpredicted(group: CellGroup, merged: Sequence[Row]) -> Iterator[str]:
    aimed = [row for row in merged if row["epochs_to_target"] is not None and not shares_gpus(row)]
    without = [row for row in aimed if row["predicted_s_to_target"] is None]
    names = [f"{group.name(row)} on {workers_of(row)}" for row in without]
    who = "no combination" if len(without) == len(aimed) else f"not {listed(names)}"
    if without:
        yield (
            f"Estimated: {who}, as no cell of kind: iteration here was measured with the same step (model, "
            "aggregator, batch, workers, step, threads, input on the device; and, where the training has no "
            "augmentation, without it). A study that has such a part with the training predicts it."
        )


def _unaugmented(group: CellGroup, merged: Sequence[Row]) -> Iterator[str]:
    """Which predicted times to the target lack the augmentation that the seconds of training contain."""
    predicted = [row for row in merged if row["predicted_s_to_target"] is not None]
    lacking = without_augmentation(predicted)
    if not lacking:
        return
    names = [f"{group.name(row)} on {workers_of(row)}" for row in lacking]
    which = "" if len(lacking) == len(predicted) else f" for {listed(names)}"
    yield (
        f"Estimated: without augmentation{which}, which the seconds of training contain and the timed steps "
        "do not; the interval does not hold that either. With augmentation: standard in the timed part it is "
        "in both."
    )


def _other_seeds(group: CellGroup, merged: Sequence[Row]) -> Iterator[str]:
    if len({row["num_seeds"] for row in merged if row["repeats"]}) < 2:
        return
    for row in merged:
        seeds = [seed for seed in group.rows if family_key(seed) == family_key(row) and seed["repeats"]]
        epochs = [seed["epochs_to_target"] for seed in seeds if seed["epochs_to_target"] is not None]
        if len(epochs) > 1:
            some = "" if len(epochs) == len(seeds) else f"{len(epochs)} of "
            median = "its seconds are their median, and not to be compared with a single seed's"
            yield (
                f"{group.name(row)} on {workers_of(row)}: {some}its {len(seeds)} seeds reach the target "
                f"after {min(epochs):g} to {max(epochs):g} epochs"
                f"{'' if row['seconds_to_target'] is None else f'; {median}'}."
            )


def _iteration_statistic(group: CellGroup) -> str:
    methods = dict.fromkeys(row["interval_method"] for row in group.rows if row["interval_method"])
    intervals = f"Interval: {'; '.join(methods)}. " if methods else ""
    return (
        f"{_form(group)} "
        f"{intervals}Speedup: throughput divided by that of one worker without exchange, equal in all else."
        f"{_utilization(group)} {' '.join(_legend_of_exchange(group.rows))}"
    ).rstrip()


def _form(group: CellGroup) -> str:
    if MEAN_OF_STEPS in {row["iteration_form"] for row in group.rows}:
        return "Mean of steps, each of its slowest rank, without warm-up: gaps between steps are not in it."
    paused_s = sum(row["pauses_s"] or 0.0 for row in group.rows)
    window_s = sum((row["iteration_s"] or 0.0) * (row["iterations"] or 0) for row in group.rows)
    left_out = f" ({percent(paused_s / (window_s + paused_s))} of the time)" if paused_s and window_s else ""
    return (
        "Wall clock over steps of the slowest rank, without warm-up, launches combined on the log scale; "
        f"pauses in which ranks compare notes are left out{left_out}."
    )


def _utilization(group: CellGroup) -> str:
    """What MFU refers to; "" where it is not known."""
    known = [row for row in group.rows if row["mfu"] is not None]
    if not known:
        return ""
    rates = sorted(row["matrix_flops_per_s"] for row in known)
    sizes = sorted({int(size) for row in known for size in row["matrix_size"].split(SEPARATOR)})
    rows = listed([str(size) for size in sizes], "or")
    peak = known[0]["data_sheet_flops_per_s"]
    sheet = f"; or over the dense peak of the GPU's data sheet, {flops_per_s(peak)}" if peak else ""
    reached = " to ".join(dict.fromkeys(flops_per_s(rate) for rate in (rates[0], rates[-1])))
    return (
        " MFU: the model's floating-point operations over those of matrix products in the same time, "
        f"{reached} a worker in {known[0]['precision']}, measured in the run with square matrices of {rows} "
        f"rows, the best size{sheet}."
    )


def _time(row: Row) -> str:
    low, high = row["iteration_s_low"], row["iteration_s_high"]
    width = None if low is None or high is None else high - low
    return milliseconds(row["iteration_s"], width) if row["repeats"] else str(row["state"])


def _accuracy(row: Row) -> str:
    return percent(row["final_test_accuracy"], decimals=2) if row["repeats"] else str(row["state"])


def _accuracy_with_spread(row: Row) -> str:
    spread, bits = row["seed_sd_accuracy"] if row["repeats"] else None, row["bits_per_byte"]
    accuracy = _accuracy(row) if spread is None else f"{_accuracy(row)} ± {100 * spread:.2f}"
    return accuracy + ("" if bits is None else f", {bits:.3f} bits a byte")


def _to_target(row: Row) -> str:
    if row["seconds_to_target"] is None and row["target_state"] is not None:
        return str(row["target_state"])
    return seconds_of_seeds(row)


def _to_target_in_short(row: Row) -> str:
    if row["target_state"] not in (None, REACHED):
        return "not reached"
    return REACHED if shares_gpus(row) and row["target_state"] == REACHED else seconds_of_seeds(row)


def _predicted(row: Row) -> str:
    value, low, high = (number(row[f"predicted_s_to_target{end}"]) for end in ("", "_low", "_high"))
    return value if low == MISSING else f"{value} ({low} to {high})"


TIME_COLUMNS: tuple[Column[Row], ...] = (
    Column("ms a step", _time, "ms/step"),
    Column("95% interval, ms", lambda row: interval(row["iteration_s_low"], row["iteration_s_high"])),
    Column(None, lambda row: _width(row) or MISSING, "±"),
)
SPEEDUP_COLUMNS: tuple[Column[Row], ...] = (
    Column("speedup", lambda row: ratio(row["speedup"]) + of_speedup(row), "speedup"),
    Column("efficiency", lambda row: percent(row["parallel_efficiency"], 0) + of_speedup(row), "efficiency"),
    Column("MB moved a rank", lambda row: megabytes(row["wire_bytes_per_rank"])),
    Column("repeats", lambda row: str(row["repeats"])),
    Column("steps", lambda row: number(row["iterations"], digits=1)),
)
ACCURACY = Column[Row]("test accuracy", _accuracy, "accuracy")
BITS = Column[Row](
    "bits per byte",
    lambda row: number(row["bits_per_byte"], digits=4) if row["repeats"] else str(row["state"]),
    "bits/byte",
)
CONVERGENCE_COLUMNS: tuple[Column[Row], ...] = (
    Column("test accuracy", _accuracy_with_spread),
    Column("training accuracy", lambda row: percent(row["train_accuracy"], decimals=2)),
    Column("training loss", lambda row: number(row["train_loss"])),
    Column("epochs", lambda row: number(row["epochs"], digits=1), "epochs"),
    Column("training, s", lambda row: number(row["train_s"]), "train s"),
    Column("target", lambda row: percent(row["target_accuracy"])),
    Column("s to target", _to_target),
    Column(None, _to_target_in_short, "s to target"),
    Column("estimated, s", _predicted),
    Column("seeds", lambda row: str(row["num_seeds"] or MISSING)),
)
