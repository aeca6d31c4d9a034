"""Seconds to the target accuracy, measured and predicted: one bar a combination of a group of trainings."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.columns import Row, shares_gpus
from scaling.analysis.formats import workers
from scaling.analysis.groups import Group
from scaling.analysis.learning import over_seeds


@dataclass(frozen=True)
class TargetBar:
    """One combination of aggregator and world size.

    Attributes:
        name: of it, for people.
        target: the accuracy, 0 to 1.
        seconds: measured; None where it was not reached.
        state: why not, or `reached`.
        predicted_s, low_s, high_s: iteration time x iterations, with its interval; None where there is none.
    """

    name: str
    target: float
    seconds: float | None
    state: str
    predicted_s: float | None
    low_s: float | None
    high_s: float | None


def target_bars(group: Group) -> list[TargetBar]:
    """Those that aimed at a target and have a time, in the table's order; [] where none reached it."""
    bars = [
        TargetBar(
            f"{group.name(row)}, {workers(row['world_size'])}{_seeds(row)}",
            row["target_accuracy"],
            row["seconds_to_target"],
            str(row["target_state"] or ""),
            row["predicted_s_to_target"],
            row["predicted_s_to_target_low"],
            row["predicted_s_to_target_high"],
        )
        for row in over_seeds(group.rows)
        if row["target_accuracy"] is not None and row["repeats"] and not shares_gpus(row)
    ]
    return bars if any(bar.seconds is not None for bar in bars) else []


def _seeds(row: Row) -> str:
    """How many, where the seconds are their median."""
    return f", {row['num_seeds']} seeds" if (row["num_seeds"] or 1) > 1 else ""
