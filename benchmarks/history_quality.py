"""How often `scaling history` gives a false alarm, and when it finds a slowdown, by simulation:

    python benchmarks/history_quality.py --out benchmarks/results/history-quality.csv

Six times (streams) a campaign, one campaign a day. Noise models: `normal` (1% for all times of a campaign,
0.5% for each), `heavy` (the same with t of 3 degrees), `outliers` (one campaign in 20 is 30% longer),
`correlated` (each campaign's offset is half of the one before, plus noise), `drift` (0.02% longer each day: a
change, not noise), `missing` (`normal`, each day lacks its campaign with a probability of 0.3),
`missing_drift` (`drift` likewise) and `committed` (deviations of launches, drawn from the committed results
folders). False alarms are counted over 365 days, the history being accepted anew after each; slowdowns begin
on the 13th, the 31st and the 121st day. Of `one_outlier`, `normal` but for one campaign that is 30% longer,
`alarm_share` is in how many of the histories without an alarm before it that one gives an alarm.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.history import RUNS_PER_FALSE_ALARM, first_alarm
from scaling.analysis.samples import read_cells
from scaling.analysis.study_scatter import cell_times
from scaling.errors import ScalingError
from scaling.store import ResultsFolder

Floats = NDArray[np.float64]
STREAMS, YEAR, MOST, OUTLIER = 6, 365, 60, 0.26
ROOT = Path(__file__).parents[1]


def normal(random: np.random.Generator, count: int) -> Floats:
    """[stream, campaign] logarithms."""
    return random.normal(0, 0.01, (1, count)) + random.normal(0, 0.005, (STREAMS, count))


def heavy(random: np.random.Generator, count: int) -> Floats:
    return 0.01 * random.standard_t(3, (1, count)) + 0.005 * random.standard_t(3, (STREAMS, count))


def outliers(random: np.random.Generator, count: int) -> Floats:
    return normal(random, count) + OUTLIER * (random.random((1, count)) < 0.05)


def correlated(random: np.random.Generator, count: int) -> Floats:
    offsets = np.zeros(count)
    for index in range(1, count):
        offsets[index] = 0.5 * offsets[index - 1] + random.normal(0, 0.01 * math.sqrt(0.75))
    return offsets + random.normal(0, 0.005, (STREAMS, count))


def drift(random: np.random.Generator, count: int) -> Floats:
    return normal(random, count) + 0.0002 * np.arange(count)


def missing(random: np.random.Generator, count: int) -> Floats:
    """Without some of the days: NaN."""
    return np.where(random.random(count) < 0.3, np.nan, normal(random, count))


def missing_drift(random: np.random.Generator, count: int) -> Floats:
    return np.where(random.random(count) < 0.3, np.nan, drift(random, count))


def committed(random: np.random.Generator, count: int) -> Floats:
    deviations = _deviations()
    drawn = random.choice(deviations, (STREAMS + 1, count))
    return drawn[:1] + drawn[1:]


_KNOWN: list[Floats] = []


def _deviations() -> Floats:
    """Of launches' logarithms from their cell's mean, of committed folders with three launches or more."""
    if not _KNOWN:
        found = []
        for path in sorted(
            [*ROOT.glob("results/*/*/study.yaml"), *ROOT.glob("benchmarks/results/*/study.yaml")]
        ):
            try:
                times = cell_times(read_cells(ResultsFolder(path.parent)))
            except ScalingError:
                continue
            for cell in times.values():
                logs = np.log([*cell.by_launch.values()])
                if len(logs) >= 3:
                    found.append((logs - logs.mean()) * math.sqrt(len(logs) / (len(logs) - 1)))
        _KNOWN.append(np.concatenate(found))
    return _KNOWN[0]


MODELS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": normal,
    "heavy": heavy,
    "outliers": outliers,
    "correlated": correlated,
    "drift": drift,
    "missing": missing,
    "missing_drift": missing_drift,
    "committed": committed,
}


def false_alarms(logs: Floats) -> int:
    """In a history without a change; after each the machine is accepted, and the history begins anew."""
    count, left = 0, logs[:, ~np.isnan(logs[0])]
    while left.shape[1]:
        at, _ = first_alarm(left, RUNS_PER_FALSE_ALARM)
        if at is None:
            break
        count, left = count + 1, left[:, at + 1 :]
    return count


def days_to_find(
    make: Callable[[np.random.Generator, int], Floats],
    random: np.random.Generator,
    slowdown: float,
    known: int,
) -> float:
    """Days from the change to the alarm; NaN where there was one before."""
    logs = make(random, known + MOST)
    logs[:, known:] += math.log1p(slowdown)
    (days,) = np.nonzero(~np.isnan(logs[0]))
    at, _ = first_alarm(logs[:, days], RUNS_PER_FALSE_ALARM)
    if at is None:
        return math.inf
    return math.nan if days[at] < known else days[at] - known + 1.0


def alarms_of_one(random: np.random.Generator, known: int, changes: int) -> tuple[float, int]:
    """The share of histories in which an outlier as the last campaign gives an alarm; of how many of them."""
    found = []
    for _ in range(changes):
        logs = normal(random, known + 1)
        logs[:, known] += OUTLIER
        at, _ = first_alarm(logs, RUNS_PER_FALSE_ALARM)
        if at is None or at == known:
            found.append(at is not None)
    return float(np.mean(found)), len(found)


HEAD = "noise,days_before,slowdown,false_alarms_a_year,median_days_to_alarm,q90_days_to_alarm,alarm_before"


def main() -> None:
    """Writes one row a noise model, history and slowdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--years", type=int, default=40)
    parser.add_argument("--changes", type=int, default=200)
    options = parser.parse_args()
    lines = [f"{HEAD},alarm_share,n"]

    def add(*values: object) -> None:
        lines.append(",".join(map(str, values)))
        print(lines[-1], flush=True)

    for name, make in MODELS.items():
        random = np.random.default_rng(7)
        counts = [false_alarms(make(random, YEAR)) for _ in range(options.years)]
        add(name, "", "", f"{np.mean(counts):.2f}", "", "", "", "", options.years)
        for known, slowdown in itertools.product((12, 30, 120), (0.03, 0.05, 0.1)):
            days = np.array([days_to_find(make, random, slowdown, known) for _ in range(options.changes)])
            after = days[~np.isnan(days)] if not np.isnan(days).all() else days
            median, most = (f"{np.quantile(after, at, method='higher'):g}" for at in (0.5, 0.9))
            before = f"{np.mean(np.isnan(days)):.3f}"
            add(name, known, slowdown, "", median, most, before, "", options.changes)
    random = np.random.default_rng(7)
    for known in (12, 30, 120, YEAR):
        share, count = alarms_of_one(random, known, options.changes)
        add("one_outlier", known, f"{math.expm1(OUTLIER):.1f}", "", "", "", "", f"{share:.3f}", count)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
