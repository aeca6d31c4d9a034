"""Numbers for people: the only place where seconds become milliseconds and ratios percent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from scaling.axes import workers

MISSING = "–"  # noqa: RUF001 (an en dash is what stands in an empty field)
_RATES = ((1e9, " G"), (1e6, " M"), (1e3, " k"))


def milliseconds(seconds: float | None, width_s: float | None = None) -> str:
    """`12.3`, without its unit: three significant digits, or as many as the interval's width calls for."""
    if seconds is None:
        return MISSING
    decimals = _decimals(1000 * seconds, 3)
    if width_s:
        decimals = max(decimals, _decimals(1000 * width_s, 2))
    return f"{1000 * seconds:.{min(decimals, 4)}f}"


def two_digits(seconds: float) -> str:
    """`0.31`: milliseconds, without the unit, as exactly as a part of a step is known."""
    return f"{1000 * seconds:.{min(_decimals(1000 * seconds, 2), 4)}f}"


def like(seconds: float | None, largest_s: float) -> str:
    """Milliseconds with the decimals that show four digits of `largest_s`: a column to be added up."""
    return MISSING if seconds is None else f"{1000 * seconds:.{min(_decimals(1000 * largest_s, 4), 4)}f}"


def half_width_percent(value: float, low: float | None, high: float | None) -> str:
    """Half of an interval's width as a share of the value, as `spread` shows it; "" without an interval."""
    return "" if low is None or high is None or not value else spread((high - low) / 2 / value)


def spread(half_ratio: float | None) -> str:
    """Half of an interval's width over the value: `0.8%`, `12%`; never a number above 100%; "" for None."""
    if half_ratio is None:
        return ""
    if half_ratio > 1:  # two launches that differ much show no more than that
        return ">100%"
    return "<0.1%" if half_ratio < 0.0005 else percent(half_ratio, 1 if half_ratio < 0.1 else 0)


def of_speedup(values: Mapping[str, Any]) -> str:
    """` ±0.8%`: half the interval of a row's speedup, behind it or the efficiency; "" without an interval."""
    width = half_width_percent(values["speedup"], values["speedup_low"], values["speedup_high"])
    return f" ±{width}" if width else ""


def of_times(values: Mapping[str, Any]) -> str:
    """` ±1.2%`: behind a ratio `times` with its `interval`; nothing where one launch shows none."""
    return f" ±{half_width_percent(values['times'], *values['interval'])}" if values["interval"] else ""


def interval(low: float | None, high: float | None) -> str:
    """`12.1 to 12.5`, in milliseconds, without its unit."""
    if low is None or high is None:
        return MISSING
    return f"{milliseconds(low, high - low)} to {milliseconds(high, high - low)}"


def megabytes(num_bytes: int | None) -> str:
    """`1.25`, in 10^6 bytes, without its unit."""
    return MISSING if num_bytes is None else f"{num_bytes / 1e6:.{min(_decimals(num_bytes / 1e6, 3), 4)}f}"


def percent(ratio: float | None, decimals: int = 1) -> str:
    """`97.2%`."""
    return MISSING if ratio is None else f"{100 * ratio:.{decimals}f}%"


BAR = 24
BAR_CHARACTERS = {
    "ideal": "█",
    "computation": "▓",
    "all but the exchange": "▓",
    "other": "░",
    "exchange": "▒",
}


def bar(shares: Mapping[str, float]) -> str:
    """`█████▓▓▒`: shares of a step, in their order."""
    ends = [round(BAR * end) for end in accumulate(shares.values())]
    starts = [0, *ends[:-1]]
    lengths = (end - start for start, end in zip(starts, ends, strict=True))
    return "".join(BAR_CHARACTERS[name] * length for name, length in zip(shares, lengths, strict=True))


def points(difference: float) -> str:
    """`+0.25`: a difference of two ratios in percentage points, without its unit."""
    text = f"{100 * difference:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text


def ratio(value: float | None) -> str:
    """Two decimals, for what is compared with 1."""
    return MISSING if value is None else f"{value:.2f}"


def number(value: float | None, digits: int = 3) -> str:
    """So many significant digits, never an exponent."""
    return MISSING if value is None else f"{value:,.{min(_decimals(value, digits), 4)}f}"


def seconds_of_seeds(row: Mapping[str, Any]) -> str:
    """A training's seconds to its target, with their 95% interval over seeds, or of how little they are."""
    value, low = number(row["seconds_to_target"]), row.get("seconds_to_target_low")
    if low is not None:
        return f"{value} ({number(low)} to {number(row['seconds_to_target_high'])})"
    if row["seconds_to_target"] is None or row["num_seeds"] != 1:
        return value
    return f"{value}, one {'training' if row['repeats'] == 1 else 'seed'}"


def rate(per_s: float | None) -> str:
    """`1.62 M`, `25.3 k`, `153`: a throughput in three significant digits."""
    if per_s is None:
        return MISSING
    size, unit = next(((size, unit) for size, unit in _RATES if per_s >= 0.9995 * size), (1.0, ""))
    return f"{per_s / size:.{_decimals(float(f'{per_s / size:.3g}'), 3)}f}{unit}"


def duration(seconds: float) -> str:
    """`3:52` or `1:03:52`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def on_gpus(cell: Mapping[str, Any]) -> str:
    """`4 workers on 2 GPUs`: for a cell, or a row of it, with workers that share GPUs."""
    num_gpus = -(-cell["world_size"] // cell["workers_per_gpu"])
    return f"{workers(cell['world_size'])} on {num_gpus} GPU{'s' if num_gpus > 1 else ''}"


def listed(words: list[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _decimals(value: float, digits: int) -> int:
    """Decimals that show so many significant digits."""
    if not value or not math.isfinite(value):
        return 0
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.999 shows as 10.0
    return max(0, digits - 1 - exponent)
