"""What slow and correlated launches, and offsets of cells, do to decisions: before and after their remedies.

    python benchmarks/launch_effects.py --out FILE
    python benchmarks/launch_effects.py --table FILE

"Before" recognises neither, and has one A/A pair; "after" has four. Studies and trials are those of
decision_quality.py; the table is in docs/background/statistics.md.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from decision_models import QUIET, TYPICAL, UNEQUAL_TYPICAL, Noise
from decision_trials import CELL, FALSE, FOUND, NUM_PAIRS, RATIO, RIGHT, WRONG, Pairs, best_of_8

from scaling.analysis import launch_effects

SLOW = 0.3
"""A slow launch takes 9 to 51% longer, cell by cell: half of its cells more than 30%."""

GAP = 0.15
UNDECIDED = "best of 8: undecided"
CHOICES = [
    replace(noise, name=f"{noise.name}, one slow launch", slow=SLOW)
    for noise in (QUIET, TYPICAL, UNEQUAL_TYPICAL)
]
PAIRS = [
    TYPICAL,
    replace(TYPICAL, name="typical, one slow launch", slow=SLOW),
    replace(TYPICAL, name="correlated launches (0.8)", serial=0.8),
    replace(TYPICAL, name="typical, offsets of cells (2%)", offset=0.02),
    Noise("offsets of cells (3%)", 0.01, 0.01, 0.02, offset=0.03),
]


@contextmanager
def rules(which: str) -> Iterator[None]:
    """In which launches' effects are recognised or, "before", not."""
    names = [name for name in ("SLOW_LEVEL", "SERIAL_LEVEL") if hasattr(launch_effects, name)]
    levels = {name: getattr(launch_effects, name) for name in names}
    for name in names if which == "before" else ():
        setattr(launch_effects, name, 0.0)
    try:
        yield
    finally:
        for name, level in levels.items():
            setattr(launch_effects, name, level)


def rows(number: int, seed: int) -> Iterator[dict[str, Any]]:
    """A row a quantity, of so many studies of each noise, number of launches and rule."""
    for which in ("before", "after"):
        for launches in (3, 5):
            with rules(which):
                for noise in (*CHOICES, TYPICAL):
                    found = Counter(best_of_8(noise, launches, GAP, seed, index) for index in range(number))
                    found[UNDECIDED] = found[None]
                    for name in (RIGHT, WRONG, UNDECIDED):
                        yield _row(which, noise, launches, name, found[name], number)
                for noise in PAIRS:
                    half = number // 2
                    pairs = Pairs(noise, 9, launches, 1 if which == "before" else NUM_PAIRS)
                    counts = sum(
                        (pairs.count(seed, index, is_short=True) for index in range(half)), Counter[str]()
                    )
                    for name in (FALSE, FOUND, RATIO, CELL):
                        of = 9 * half if name in (RATIO, CELL) else half
                        yield _row(which, noise, launches, name, counts[name], of)


def _row(which: str, noise: Noise, launches: int, name: str, count: int, of: int) -> dict[str, Any]:
    return {
        "rule": which,
        "noise": noise.name,
        "launches": launches,
        "quantity": name,
        "share": count / of,
        "of": of,
    }


def table(found: pd.DataFrame) -> str:
    """As Markdown: before and after, by number of launches."""
    shares = found.pivot(index=["quantity", "noise"], columns=["launches", "rule"], values="share")
    lines = ["| | noise | n = 3: before | after | n = 5: before | after |", "|---|---|---|---|---|---|"]
    for quantity in (UNDECIDED, RIGHT, WRONG, FALSE, FOUND, RATIO, CELL):
        for noise in dict.fromkeys(found[found.quantity == quantity].noise):
            of = shares.loc[quantity, noise]
            values = [of[n, which] for n in (3, 5) for which in ("before", "after")]
            lines.append(f"| {quantity} | {noise} | {' | '.join(f'{value:.0%}' for value in values)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates, or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, help="the CSV file to write")
    place.add_argument("--table", type=Path, help="such a file: print its table")
    parser.add_argument("--number", type=int, default=100, help="choices of each noise; half as many pairs")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.table:
        print(table(pd.read_csv(options.table)))
    else:
        pd.DataFrame(rows(options.number, options.seed)).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
