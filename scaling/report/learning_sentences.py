"""What trainings showed, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.columns import Row
from scaling.report.formats import listed, number, percent, workers
from scaling.report.groups import Group
from scaling.report.learning import over_seeds

NOISE_DEVIATIONS = 2
"""Accuracies that differ from a combination's mean over seeds by no more standard deviations are within the
noise of its seeds."""


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
    if noise := _seed_noise(scored):
        yield f"{group.title}: {noise}"
    if diverged := [_named(row) for row in done if row["train_loss"] is None]:
        yield f"{group.title}: the loss was not finite in the end for {listed(diverged)}."
    aimed = [row for row in done if row["target_accuracy"] is not None]
    for target in sorted({row["target_accuracy"] for row in aimed}):
        rows = [row for row in aimed if row["target_accuracy"] == target]
        missed = [_named(row) for row in rows if row["seconds_to_target"] is None]
        reached = (
            f"{len(rows) - len(missed)} of {len(rows)} combinations reached {percent(target)} in every repeat"
        )
        yield f"{group.title}: {reached}{f'; not so {listed(missed)}' if missed else ''}."
    if predicted := [row for row in done if row["predicted_s_to_target"] is not None]:
        told = "; ".join(_predicted(row) for row in predicted)
        yield f"{group.title}: seconds to the target, predicted as iteration time x iterations: {told}."


def _accuracy_range(scored: Sequence[Row]) -> str:
    worst, best = scored[0], scored[-1]
    if len(scored) == 1:
        return (
            f"{_named(worst)} ends with a test accuracy of {_accuracy(worst)} after {worst['epochs']} epochs."
        )
    repeats = min(row["repeats"] for row in scored)
    caution = " One run each: part of the spread may be chance." if repeats == 1 else ""
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


def _seed_noise(scored: Sequence[Row]) -> str | None:
    """Whether the others lie within what seeds of one combination do; None where that was not measured."""
    known = [row for row in scored if row["seed_sd_accuracy"] is not None]
    if not known or len(scored) < 2:
        return None
    reference = max(known, key=lambda row: (row["num_seeds"], row["seed_sd_accuracy"]))
    mean, spread = reference["final_test_accuracy"], reference["seed_sd_accuracy"]
    apart = [
        _named(row)
        for row in scored
        if row is not reference and abs(row["final_test_accuracy"] - mean) > NOISE_DEVIATIONS * spread
    ]
    others = (
        f"{listed(apart)} lie{'s' if len(apart) == 1 else ''} further" if apart else "no other lies further"
    )
    return (
        f"{_named(reference)} has a test accuracy of {_accuracy(reference)}; {others} from it than "
        f"{NOISE_DEVIATIONS} deviations."
    )


def _predicted(row: Row) -> str:
    low, high = row["predicted_s_to_target_low"], row["predicted_s_to_target_high"]
    bounds = "" if low is None else f" ({number(low)} to {number(high)})"
    measured = number(row["seconds_to_target"])
    return f"{_named(row)} {number(row['predicted_s_to_target'])}{bounds}, measured {measured}"


def _named(row: Row) -> str:
    return f"{row['aggregator']} on {workers(row['world_size'])}"
