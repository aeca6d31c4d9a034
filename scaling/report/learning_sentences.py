"""What trainings showed, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from scaling.analysis.columns import Row, shares_gpus
from scaling.analysis.formats import listed, number, on_gpus, percent, workers
from scaling.analysis.groups import Group
from scaling.analysis.learning import over_seeds
from scaling.analysis.samples import CellResult, Training


def convergence_findings(group: Group) -> Iterator[str]:
    """What a group of trainings says, one sentence each.

    Args:
        group: of kind convergence.
    """
    done = [row for row in over_seeds(group.rows) if row["repeats"]]
    scored = sorted(
        (row for row in done if row["final_test_accuracy"] is not None),
        key=lambda row: float(row["final_test_accuracy"]),
    )
    if scored:
        yield f"{group.title}: {_accuracy_range(scored)}"
    if diverged := [_named(row) for row in done if row["train_loss"] is None]:
        yield f"{group.title}: the loss was not finite in the end for {listed(diverged)}."
    aimed = [row for row in done if row["target_accuracy"] is not None]
    for target in sorted({row["target_accuracy"] for row in aimed}):
        rows = [row for row in aimed if row["target_accuracy"] == target]
        missed = [_named(row) for row in rows if row["epochs_to_target"] is None]
        reached = (
            f"{len(rows) - len(missed)} of {len(rows)} combinations reached {percent(target)} in every repeat"
        )
        yield f"{group.title}: {reached}{f'; not so {listed(missed)}' if missed else ''}."
    if predicted := [row for row in done if row["predicted_s_to_target"] is not None]:
        lacking = without_augmentation(predicted)
        some = 0 < len(lacking) < len(predicted)
        told = "; ".join(_predicted(row, says_what_lacks=some) for row in predicted)
        how = f"iteration time x iterations{', without augmentation' if lacking and not some else ''}"
        yield f"{group.title}: seconds to the target, predicted as {how}: {told}."
    if shared := list(dict.fromkeys(on_gpus(row) for row in done if shares_gpus(row))):
        yield (
            f"{group.title}: {listed(shared)}: the accuracy is that of so many workers; nothing is said of "
            "their time, which is not that of as many GPUs."
        )


def begun_sentences(groups: Sequence[Group], cells: Mapping[str, CellResult]) -> Iterator[str]:
    """How far each training is that runs, or was cut off and will go on.

    Args:
        groups: of the report.
        cells: the samples, by cell id.
    """
    for group in groups:
        for row in group.rows if group.kind == "convergence" else ():
            cell = cells[row["cell_id"]]
            of_seed = f", seed {row['seed']}" if group.differs("seed") else ""
            for training in cell.begun:
                of_repeat = f", repeat {training.repeat}" if training.repeat else ""
                epochs = f"{training.epochs[-1]} of {cell.cell['epochs']} epochs"
                yield (
                    f"{group.title}: {_named(row)}{of_seed}{of_repeat} is not over: after {epochs} "
                    f"{_so_far(training)}."
                )


def _so_far(training: Training) -> str:
    loss, accuracy = float(training.train_loss[-1]), float(training.test_accuracy[-1])
    if not math.isfinite(loss) or not math.isfinite(accuracy):
        return "the loss is not finite"
    return f"the training loss is {loss:.4g} and the test accuracy {percent(accuracy, 2)}"


def without_augmentation(rows: Sequence[Row]) -> list[Row]:
    """Those whose time to the target was predicted from a timed step without it, though their own has it."""
    return [row for row in rows if row["prediction_lacks"] is not None]


def _accuracy_range(scored: Sequence[Row]) -> str:
    worst, best = scored[0], scored[-1]
    if len(scored) == 1:
        return (
            f"{_named(worst)} ends with a test accuracy of {_accuracy(worst)} after {worst['epochs']} epochs."
        )
    if worst["final_test_accuracy"] == best["final_test_accuracy"]:
        return (
            f"the final test accuracy is {percent(worst['final_test_accuracy'], 2)} in all {len(scored)} "
            "combinations of aggregator and world size."
        )
    num_once = sum(row["repeats"] == 1 for row in scored)
    who = "One run each" if num_once == len(scored) else f"{num_once} of them are one run each"
    caution = f" {who}: part of the spread may be chance." if num_once else ""
    return (
        f"the final test accuracy lies between {_accuracy(worst)} and {_accuracy(best)} over {len(scored)} "
        f"combinations of aggregator and world size; the lowest is that of {_named(worst)}.{caution}"
    )


def _accuracy(row: Row) -> str:
    spread = row["seed_sd_accuracy"]
    mean = percent(row["final_test_accuracy"], decimals=2)
    if spread is None:
        return mean
    return f"{mean} (standard deviation over {row['num_seeds']} seeds {percent(spread, 2)})"


def _predicted(row: Row, *, says_what_lacks: bool) -> str:
    low, high = row["predicted_s_to_target_low"], row["predicted_s_to_target_high"]
    bounds = "" if low is None else f" ({number(low)} to {number(high)})"
    measured = number(row["seconds_to_target"])
    lacks = ", without augmentation" if says_what_lacks and row["prediction_lacks"] else ""
    return f"{_named(row)} {number(row['predicted_s_to_target'])}{bounds}{lacks}, measured {measured}"


def _named(row: Row) -> str:
    return f"{row['aggregator']} on {workers(row['world_size'])}"
