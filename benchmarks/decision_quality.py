"""How often do `compare`, its gate and `recommend` find what is there, and nothing else?

    python benchmarks/decision_quality.py --out FOLDER
    python benchmarks/decision_quality.py --table FOLDER

Studies are synthetic, with samples of which the truth is known (`decision_models`, `decision_trials`).
`quality.csv` in FOLDER has how often each thing happened, with the bound that it is held against; --table
prints it as Markdown. The first pair of each row is also written as two results folders, of which the command
line has to say the same as the functions.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from decision_models import MODELS, QUIET, TYPICAL, UNEQUAL_TYPICAL, Noise
from decision_trials import (
    AT_DETECTABLE,
    CELL,
    FAILED,
    FALSE,
    FOUND,
    RATIO,
    RIGHT,
    SHIFTED,
    TIE,
    WRONG,
    Pairs,
    best_of_8,
)

from scaling.measure.environment import collect

LAUNCHES = (2, 3, 5, 9)
PAIRS = {9: 400, 40: 300}
"""Number of cells -> pairs of studies of each model and number of launches."""

CHOICES = 400
"""Studies of eight aggregators, of each of these models."""

CHOICE_MODELS = (QUIET, TYPICAL, UNEQUAL_TYPICAL)
GAP = 0.15
FILE = "quality.csv"
SAME = "the command line says the same"

AT_MOST, AT_LEAST = "at most", "at least"


def bound(
    quantity: str, noise: str, num_launches: int, gap: float | None = None, *, num_cells: int = 9
) -> tuple[str, float] | None:
    """What is asked for, such as (AT_MOST, 0.01); None where nothing is: 10% found, of more than 9 cells."""
    if quantity == FOUND and noise == TYPICAL.name and num_cells != 9:
        return None
    if quantity in (FALSE, SHIFTED):
        return None if num_launches < 3 else (AT_MOST, 0.045 if num_launches == 3 else 0.04)
    by_launches: dict[tuple[str, str | None], dict[int, float]] = {
        (CELL, None): {2: 0.91, 3: 0.92, 5: 0.935},
        (FOUND, TYPICAL.name): {3: 0.30, 5: 0.65, 9: 0.95},
        (FOUND, QUIET.name): {3: 0.9, 5: 0.9, 9: 0.9},
        (RIGHT, UNEQUAL_TYPICAL.name): {3: 0.82},
    }
    for name in (noise, None):
        if num_launches in by_launches.get((quantity, name), {}):
            return AT_LEAST, by_launches[quantity, name][num_launches]
    if quantity == TIE:
        return (AT_LEAST, 0.85) if noise == QUIET.name and not gap else None
    fixed = {
        FAILED: (AT_MOST, 0.01),
        RATIO: (AT_LEAST, 0.94),
        SAME: (AT_LEAST, 1.0),
        WRONG: (AT_MOST, 0.03),
    }
    return fixed.get(quantity)


def pair_rows(
    noise: Noise, num_cells: int, num_launches: int, number: int, seed: int
) -> list[dict[str, Any]]:
    """A row a quantity, of so many pairs of studies."""
    pairs, counts = Pairs(noise, num_cells, num_launches), Counter[str]()
    for index in range(number):
        counts += pairs.count(seed, index)
    by_cells = dict.fromkeys((RATIO, CELL), number * num_cells)
    names = (FALSE, SHIFTED, FAILED, RATIO, CELL, FOUND, AT_DETECTABLE)
    found = [
        _row(noise, num_cells, num_launches, name, counts[name], by_cells.get(name, number), number)
        for name in names
    ]
    same = pairs.same_by_command(seed, 0)
    return [*found, _row(noise, num_cells, num_launches, SAME, int(same), 1, 1)]


def choice_rows(noise: Noise, num_launches: int, gap: float, number: int, seed: int) -> list[dict[str, Any]]:
    """A row an answer of `recommend`, of so many studies."""
    counts = Counter(best_of_8(noise, num_launches, gap, seed, index) for index in range(number))
    return [
        {**_row(noise, 8, num_launches, name, counts[name], number, number, gap), "gap": gap}
        for name in ((RIGHT, WRONG, TIE) if gap else (WRONG, TIE))
    ]


def _row(
    noise: Noise,
    num_cells: int,
    num_launches: int,
    quantity: str,
    count: int,
    of: int,
    independent: int,
    gap: float | None = None,
) -> dict[str, Any]:
    share, asked = count / of, bound(quantity, noise.name, num_launches, gap, num_cells=num_cells)
    # One more either way, so that none or all of them is not said to be certain; cells of a pair go together.
    near = (count * independent / of + 1) / (independent + 2)
    return {
        "cells": num_cells,
        "noise": noise.name,
        "launches": num_launches,
        "gap": None,
        "quantity": quantity,
        "count": count,
        "of": of,
        "share": share,
        "standard_error": math.sqrt(near * (1 - near) / independent),
        "bound": "" if asked is None else f"{asked[0]} {asked[1]:g}",
        "holds": "" if asked is None else share <= asked[1] if asked[0] == AT_MOST else share >= asked[1],
    }


def all_rows(seed: int, share: float, processes: int, chosen: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Everything of these numbers of cells (8: choices), of that share of the numbers of pairs."""
    with ProcessPoolExecutor(processes) as pool:
        futures = [
            pool.submit(pair_rows, noise, cells, launches, max(2, round(share * number)), seed)
            for cells, number in PAIRS.items()
            if cells in chosen
            for launches in LAUNCHES
            for noise in MODELS
        ]
        futures += [
            pool.submit(choice_rows, noise, launches, gap, max(2, round(share * CHOICES)), seed)
            for launches in LAUNCHES[:3]
            if 8 in chosen
            for noise in CHOICE_MODELS
            for gap in (GAP, 0.0)
        ]
        for future in futures:
            yield from future.result()


def table(rows: pd.DataFrame) -> str:
    """As Markdown: a row a quantity, a column a number of launches, the worst or the named noise in each."""
    lines = ["| | n = 2 | n = 3 | n = 5 | n = 9 |", "|---|---|---|---|---|"]
    for text, chosen, is_worst in _lines(rows):
        if chosen.empty:
            continue
        cells = [_shown(chosen[chosen.launches == launches], at_most=is_worst) for launches in LAUNCHES]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _lines(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, bool]]:
    """(text, its rows, whether the largest is the worst)."""
    for cells in PAIRS:
        own = rows[(rows.cells == cells) & rows.gap.isna()]
        for quantity in (FALSE, SHIFTED, FAILED):
            yield f"{cells} cells: {quantity}, worst noise", own[own.quantity == quantity], True
        yield f"{cells} cells: {FAILED}, all noises", _together(own[own.quantity == FAILED]), True
        for quantity in (RATIO, CELL):
            yield f"{quantity}, worst noise", own[own.quantity == quantity], False
        for noise in MODELS:
            slowdown = "3%" if noise.launch < 0.01 else "10%"
            chosen = own[(own.quantity == FOUND) & (own.noise == noise.name)]
            yield f"{slowdown} in one cell found: {noise.name}", chosen, False
        yield f"{AT_DETECTABLE}, worst noise", own[own.quantity == AT_DETECTABLE], False
    for model in CHOICE_MODELS:
        for gap in (GAP, 0.0):
            own = rows[(rows.noise == model.name) & (rows.gap == gap)]
            for quantity in (RIGHT, WRONG, TIE) if gap else (WRONG, TIE):
                what = f"a gap of {gap:.0%}" if gap else "no gap"
                yield f"{quantity}, {what}, {model.name}", own[own.quantity == quantity], quantity == WRONG


def _together(rows: pd.DataFrame) -> pd.DataFrame:
    """A row a number of launches: the pairs of all noises as one."""
    sums = rows.groupby("launches", as_index=False)[["count", "of"]].sum()
    near = (sums["count"] + 1) / (sums["of"] + 2)
    error = (near * (1 - near) / sums["of"]) ** 0.5
    return sums.assign(share=sums["count"] / sums["of"], standard_error=error, holds="")


def _shown(rows: pd.DataFrame, *, at_most: bool) -> str:
    if rows.empty:
        return ""
    worst = rows.sort_values("share").iloc[-1 if at_most else 0]
    missed = " (missed)" if (rows.holds.astype(str) == "False").any() else ""
    return f"{worst['share']:.1%} ± {worst['standard_error']:.1%}{missed}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 3 where a bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, help="a folder for quality.csv and environment.json")
    place.add_argument("--table", type=Path, help="such a folder: print its table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the numbers of pairs: 0.1 is a short run"
    )
    parser.add_argument(
        "--cells",
        type=int,
        nargs="+",
        default=[9, 40, 8],
        help="8: the best of eight; what FOLDER has of others stays",
    )
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(arguments)
    if options.table:
        print(table(pd.read_csv(options.table / FILE)))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "environment.json").write_text(json.dumps(collect(), indent=1) + "\n", encoding="utf-8")
    rows = pd.DataFrame(all_rows(options.seed, options.share, options.processes, options.cells))
    if (options.out / FILE).exists():
        before = pd.read_csv(options.out / FILE)
        rows = pd.concat([before[~before["cells"].isin(options.cells)], rows])
    rows.to_csv(options.out / FILE, index=False, float_format="%.4g")
    missed = rows[rows["holds"].astype(str) == "False"]
    print(missed.to_string() if len(missed) else "all bounds hold")
    return 3 if len(missed) else 0


if __name__ == "__main__":
    raise SystemExit(main())
