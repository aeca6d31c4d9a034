"""Figures and lists as people read them. Inside, all is bytes, seconds, bytes a second."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

WIDTH = 80  # of a terminal

NO_BREAK = "\N{NO-BREAK SPACE}"


def folded(start: str, text: str, indent: int | None = None, width: int = WIDTH) -> str:
    """`start`, as it is, and `text` in lines of that width; names, paths and addresses are never cut, nor
    what a no-break space holds together. `indent`: of later lines; None: where `text` begins."""
    margin = " " * (len(start) if indent is None else indent)
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=start,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(NO_BREAK, " ") or start.rstrip()


def gigabytes_per_s(bytes_per_s: float) -> str:
    """`8.0 GB/s`, `1.25 GB/s`, `371 GB/s`."""
    return f"{gigabytes(bytes_per_s)} GB/s"


def flops_per_s(rate: float) -> str:
    """`612 TFLOP/s`, `98.2 GFLOP/s`."""
    return f"{rate / 1e12:.3g} TFLOP/s" if rate >= 1e12 else f"{rate / 1e9:.3g} GFLOP/s"


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
    """`gpu0, gpu2..gpu5`: three and more that follow one another are named by the first and the last."""
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


_BIDIRECTIONAL = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_clean(text: str) -> bool:
    """Whether a text can be shown: it has no control characters but ends of lines and tabs."""
    return text.isprintable() or not any(map(_is_control, text))


def _is_control(character: str) -> bool:
    return (
        unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\t"
    ) or character in _BIDIRECTIONAL


def clean(text: str) -> str:
    """The text with each control character as an escape, as `\\x1b`: for terminals and records."""
    if is_clean(text):
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii") if _is_control(character) else character
        for character in text
    )
