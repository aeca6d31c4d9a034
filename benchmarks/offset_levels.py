"""From which level of an F test on do A/A pairs count in full? False alarms, and changes found, by level.

    python benchmarks/offset_levels.py --out FILE
    python benchmarks/offset_levels.py --table FILE

Pairs of folders of nine cells and four A/A pairs (`matrix_trials`) are compared twice: with what their
A/A pairs differ by beyond the scatter of launches in full, and with the part of it that counts where the test
does not show it. The test's p value tells which of both answers a level gives.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from decision_models import MODELS, TYPICAL, Noise
from matrix_trials import called, compared, drawn, held, ratios_held

from scaling.analysis import study_scatter
from scaling.analysis.study_scatter import UNSHOWN_WEIGHT

LEVELS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
OFFSETS = next(one for one in MODELS if one.offset)
TYPICAL_OFFSETS = replace(TYPICAL, name="typical, offsets of cells (2%)", offset=0.02)
CASES: tuple[tuple[Noise, int, float], ...] = (
    *((OFFSETS, launches, 1.0) for launches in (9, 5, 3)),
    *((TYPICAL, launches, 0.4) for launches in (3, 5)),
    *((TYPICAL_OFFSETS, launches, 0.4) for launches in (3, 5)),
)
"""Noise, launches and the part of the number of pairs."""

WEIGHTS = {"part": UNSHOWN_WEIGHT, "whole": 1.0}
SLOWER = math.log(1.1)
QUANTITIES = {
    "false": "any false alarm",
    "found": "10% in one cell found",
    "ratio": "interval of a ratio holds it",
    "cell": "interval of a cell holds its time",
}


def trials(noise: Noise, launches: int, seed: int, indices: range) -> list[dict[str, Any]]:
    """Of each pair of folders: the p value, and what is said with each weight."""
    study_scatter.SHOWN_LEVEL, rows = 0.0, []
    for index in indices:
        row: dict[str, Any] = {"noise": noise.name, "launches": launches}
        for name, weight in WEIGHTS.items():
            study_scatter.UNSHOWN_WEIGHT = weight
            a, b, factors = drawn(noise, launches, seed, index)
            row["p_value"] = study_scatter.offset_test([*a.scatter.pairs, *b.scatter.pairs])[2]
            row["p_value_a"] = study_scatter.offset_test(a.scatter.pairs)[2]
            same = compared(a, b)
            row |= {
                f"false_{name}": float(any(called(same))),
                f"found_{name}": float(called(compared(a, b, SLOWER))[0]),
                f"ratio_{name}": ratios_held(same),
                f"cell_{name}": held(noise, a, factors),
            }
        rows.append(row)
    return rows


def by_level(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each noise, number of launches and level: shares with their standard errors."""
    rows = []
    for (noise, launches), own in found.groupby(["noise", "launches"], sort=False):
        for level in LEVELS:
            row: dict[str, Any] = {"noise": noise, "launches": launches, "level": level, "pairs": len(own)}
            for name in QUANTITIES:
                is_shown = own["p_value_a" if name == "cell" else "p_value"] < level
                shares = own[f"{name}_part"].where(~is_shown, own[f"{name}_whole"])
                row |= {name: shares.mean(), f"{name}_error": shares.std() / len(own) ** 0.5}
            rows.append(row)
    return pd.DataFrame(rows)


def table(shares: pd.DataFrame) -> str:
    """As Markdown: a row a quantity, noise and number of launches, a column a level."""
    levels = list(dict.fromkeys(shares.level))
    lines = ["| | n | " + " | ".join(f"{level:.0%}" for level in levels) + " |"]
    lines.append("|---" * (2 + len(levels)) + "|")
    for name, what in QUANTITIES.items():
        for (noise, launches), own in shares.groupby(["noise", "launches"], sort=False):
            pairs = zip(own[name], own[f"{name}_error"], strict=True)
            cells = " | ".join(f"{share:.1%} ± {error:.1%}" for share, error in pairs)
            lines.append(f"| {what}: {noise} | {launches} | {cells} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates, or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, help="the CSV file to write")
    place.add_argument("--table", type=Path, help="such a file: print its table")
    parser.add_argument("--number", type=int, default=2500, help="of pairs with offsets; fewer of others")
    parser.add_argument("--seed", type=int, default=4601)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.table:
        print(table(pd.read_csv(options.table)))
        return
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for noise, launches, share in CASES:
            number = round(options.number * share)
            parts = [range(start, min(start + 50, number)) for start in range(0, number, 50)]
            futures = [pool.submit(trials, noise, launches, options.seed, part) for part in parts]
            found += [row for future in futures for row in future.result()]
            by_level(pd.DataFrame(found)).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
