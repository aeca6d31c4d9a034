"""Figures and lists as people read them. Inside, all is bytes, seconds, bytes a second."""

from __future__ import annotations

from collections.abc import Sequence


def gigabytes_per_s(bytes_per_s: float) -> str:
    """`8.0 GB/s`, `1.25 GB/s`, `371 GB/s`."""
    return f"{gigabytes(bytes_per_s)} GB/s"


def gigabytes(bytes_: float) -> str:
    """`8.0`, `1.25`, `371`."""
    value = bytes_ / 1e9
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 or abs(value - round(value, 1)) < 1e-9 else f"{value:.2f}"


def microseconds(seconds: float) -> str:
    """`0.25 us`, `6.0 us`, `131 us`."""
    value = seconds * 1e6
    return f"{value:.2f} us" if value < 1 else f"{value:.1f} us" if value < 100 else f"{value:.0f} us"


def compact(names: Sequence[str]) -> str:
    """`gpu0, gpu2..gpu5`: three and more that follow one another are told by the first and the last."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    texts = [[f"{run[0]}..{run[-1].rpartition('/')[2]}"] if len(run) > 2 else run for run in runs]
    return ", ".join(text for run in texts for text in run)


def _follows(name: str, other: str) -> bool:
    """Whether `other` is `name` with its last number one higher."""
    stem, other_stem = name.rstrip("0123456789"), other.rstrip("0123456789")
    number, other_number = name[len(stem) :], other[len(other_stem) :]
    return stem == other_stem and number != "" != other_number and int(number) + 1 == int(other_number)
