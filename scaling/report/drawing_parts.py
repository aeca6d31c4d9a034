"""What the drawings have in common."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from scaling.report.columns import aggregator_name
from scaling.report.figure_style import Look

Looks = dict[str, Look]

OUTSIDE: dict[str, Any] = {"loc": "outside right center", "alignment": "left"}

WIDTH = 7.6
"""Of every figure, in inches."""

LONGEST_LABEL = 18
"""A longer label is set on two lines, so that the legend leaves room for the plot."""


def set_title(figure: Figure, title: str) -> None:
    """On the left, wrapped."""
    figure.suptitle("\n".join(textwrap.wrap(title, 90)), x=0.01, horizontalalignment="left", fontsize=10)


def aggregator_handle(label: str, looks: Looks, name: str | None = None) -> Line2D:
    """An aggregator's entry in a legend, under `name` if that is not its label."""
    look = looks[label]
    return Line2D([], [], color=look.colour, marker=look.marker, label=_broken(name or label))


def _broken(label: str) -> str:
    name = aggregator_name(label)
    return label if len(label) <= LONGEST_LABEL or name == label else f"{name}\n{label[len(name) :]}"


def plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Ticks at those values of x, and numbers without exponents on both axes."""
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(plain)
    axes.yaxis.set_major_formatter(plain)
