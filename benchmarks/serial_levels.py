"""From which level of von Neumann's test on are launches taken to be correlated? What it gives, and costs.

    python benchmarks/serial_levels.py --out FILE

Pairs of folders of nine cells with four A/A pairs (`matrix_trials`), with launches that are independent, or
like the one before (correlation 0.8).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from decision_models import TYPICAL, Noise
from matrix_trials import called, compared, drawn, held, ratios_held

from scaling.analysis import launch_effects

LEVELS = (0.01, 0.05, 0.1)
CASES = [(noise, launches) for noise in (TYPICAL, replace(TYPICAL, serial=0.8)) for launches in (3, 5)]
NAMES = ("false", "found", "ratio", "cell", "widened")
"""Any false alarm; 10% in one cell found; intervals of ratios and of cells hold the truth; studies with wider
intervals."""


def shares(noise: Noise, launches: int, level: float, seed: int, number: int) -> dict[str, float]:
    """How often each of NAMES happened, of so many pairs."""
    launch_effects.SERIAL_LEVEL, found = level, []
    for index in range(number):
        a, b, factors = drawn(noise, launches, seed, index)
        same, slower = compared(a, b), compared(a, b, math.log(1.1))
        own = (ratios_held(same), held(noise, a, factors), a.scatter.serial.total > 0)
        found.append((any(called(same)), called(slower)[0], *own))
    return dict(zip(NAMES, np.mean(np.array(found, dtype=float), axis=0).tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates; a row for each noise, number of launches and level."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    parser.add_argument("--number", type=int, default=400, help="of pairs")
    parser.add_argument("--seed", type=int, default=77)
    options = parser.parse_args(arguments)
    rows = [
        {"correlation": noise.serial, "launches": launches, "level": level, "pairs": options.number}
        | shares(noise, launches, level, options.seed, options.number)
        for noise, launches in CASES
        for level in LEVELS
    ]
    pd.DataFrame(rows).to_csv(options.out, index=False, float_format="%.4g")


if __name__ == "__main__":
    main()
