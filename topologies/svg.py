"""The few SVG elements that the drawing needs, as text; labels are escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK = "#222222"
BACKGROUND = "#ffffff"

Point = tuple[float, float]


def document(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" font-family={quoteattr(FONT)}>'
    )
    background = f'<rect width="100%" height="100%" fill="{BACKGROUND}"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", background, *parts, "</svg>", ""])


def text(
    at: Point,
    label: str,
    *,
    size: float = 12,
    anchor: str = "middle",
    bold: bool = False,
    color: str = INK,
    halo: bool = False,
) -> str:
    """One line of text; its baseline's start, middle or end is at the point. A halo keeps it off lines."""
    weight = ' font-weight="bold"' if bold else ""
    outline = f' stroke="{BACKGROUND}" stroke-width="4" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{_n(at[0])}" y="{_n(at[1])}" font-size="{_n(size)}" text-anchor="{anchor}" '
        f'fill="{color}"{weight}{outline}>{escape(label)}</text>'
    )


def plate(at: Point, label: str, *, size: float) -> str:
    """What hides lines behind a text that is centred on the point; its width is that of usual letters."""
    width, height = len(label) * size * 0.5 + 2, size + 2
    return (
        f'<rect x="{_n(at[0] - width / 2)}" y="{_n(at[1] - size * 0.9)}" width="{_n(width)}" '
        f'height="{_n(height)}" fill="{BACKGROUND}"/>'
    )


def line(points: Sequence[Point], *, color: str, width: float) -> str:
    path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{_n(width)}" '
        'stroke-linejoin="round"/>'
    )


def box(
    at: Point, size: Point, *, fill: str, stroke: str, dashed: bool = False, label: str | None = None
) -> str:
    """A rectangle with round corners; the label shows when the pointer rests on it."""
    dashes = ' stroke-dasharray="6 4"' if dashed else ""
    inside = f"<title>{escape(label)}</title>" if label else ""
    return (
        f'<rect x="{_n(at[0])}" y="{_n(at[1])}" width="{_n(size[0])}" height="{_n(size[1])}" rx="6" '
        f'fill="{fill}" stroke="{stroke}" stroke-width="1.5"{dashes}>{inside}</rect>'
    )


def _n(number: float) -> str:
    """Two decimals at most, the same on every machine."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
