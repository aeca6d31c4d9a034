"""Scores of predictions against measured cells: errors, coverage, regret and order, as rows and tables.

A row a predicted cell goes in, with `measured_s`, `predicted_s`, `low_s`, `high_s`, `error_ratio`, `inside`,
`fold`, `family` and `workload`; `benchmarks/prediction_quality.py` says what the scores mean.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

FOLD_COLUMNS = (
    *("fold", "family", "cells", "not_predicted", "median_error", "p95_error", "coverage", "interval_ratio"),
    *("workloads", "mean_regret", "worst_regret", "pairs", "order"),
)
ALL = "all"


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a fold and family, and one of all families."""
    for fold in dict.fromkeys(row["fold"] for row in rows):
        of_fold = [row for row in rows if row["fold"] == fold]
        for family in (ALL, *sorted({row["family"] for row in of_fold})):
            chosen = [row for row in of_fold if family in (ALL, row["family"])]
            yield {"fold": fold, "family": family, **figures(chosen)}


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the columns of folds.csv say of these cells; empty where there is nothing to say."""
    known = [row for row in rows if row["error_ratio"] != ""]
    values: dict[str, Any] = dict.fromkeys(FOLD_COLUMNS[2:], "")
    values |= {"cells": len(rows), "not_predicted": len(rows) - len(known)}
    if not known:
        return values
    errors = sorted(abs(row["error_ratio"]) for row in known)
    values["median_error"] = statistics.median(errors)
    values["p95_error"] = errors[max(0, math.ceil(0.95 * len(errors)) - 1)]
    values["coverage"] = statistics.fmean(row["inside"] for row in known)
    values["interval_ratio"] = statistics.median(row["high_s"] / row["low_s"] for row in known)
    workloads = _rivals(known)
    regrets = [regret(rivals) for rivals in workloads]
    pairs = [right for rivals in workloads for right in ordered_right(rivals)]
    values |= {"workloads": len(regrets), "pairs": len(pairs)}
    if regrets:
        values |= {"mean_regret": statistics.fmean(regrets), "worst_regret": max(regrets)}
    if pairs:
        values["order"] = statistics.fmean(pairs)
    return values


def _rivals(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["family"] != "no exchange":
            grouped[row["workload"]].append(row)
    return [rivals for rivals in grouped.values() if len(rivals) > 1]


def regret(rivals: Sequence[Mapping[str, Any]]) -> float:
    """What the predicted best takes above the measured best, as a ratio of the latter."""
    chosen = min(rivals, key=lambda row: float(row["predicted_s"]))
    best = min(float(row["measured_s"]) for row in rivals)
    return float(chosen["measured_s"]) / best - 1


def ordered_right(rivals: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    """Of each pair that differs by over 10% as measured: whether it is predicted in that order."""
    for pair in combinations(rivals, 2):
        fast, slow = sorted(pair, key=lambda row: float(row["measured_s"]))
        if slow["measured_s"] > 1.10 * fast["measured_s"]:
            yield bool(fast["predicted_s"] < slow["predicted_s"])


def line(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Median error, largest and coverage."""
    ratios = [row["error_ratio"] for row in rows]
    inside = sum(row["inside"] for row in rows)
    return (
        f"{name}: {len(rows)} cells, median error {statistics.median(map(abs, ratios)):.1%}, largest "
        f"{max(map(abs, ratios)):.1%}, {inside} inside; {sum(ratio < 0 for ratio in ratios)} too fast"
    )


def table(folds: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """folds.csv in Markdown."""
    yield "| fold | family | cells | median error | 95th percentile | coverage | regret (worst) | order |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in folds:
        shown = [_percent(row[name]) for name in ("median_error", "p95_error", "coverage")]
        lost = (
            f"{_percent(row['mean_regret'])} ({_percent(row['worst_regret'])})" if row["workloads"] else "-"
        )
        yield (
            f"| {row['fold']} | {row['family']} | {row['cells'] - row['not_predicted']} of {row['cells']} | "
            f"{' | '.join(shown)} | {lost} | {_percent(row['order'])} |"
        )


def _percent(value: Any) -> str:
    return "-" if value == "" else f"{value:.1%}"


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """As CSV, numbers to five digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}
            )
