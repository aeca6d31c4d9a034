"""Matplotlib's SVG made small, for files, and fit for the inside of a page.

What makes it small: coordinates to a hundredth of a point, no ids that nothing refers to, no groups that hold
one thing, the font's name once. What was drawn with a tip (`with_tip`) carries it as an SVG title, which
browsers show on hovering, also in the file itself.
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import TypeVar

from markupsafe import Markup
from matplotlib.artist import Artist

SVG = "http://www.w3.org/2000/svg"
XLINK = "http://www.w3.org/1999/xlink"
FONT = "text{font-family:'DejaVu Sans',Verdana,Arial,sans-serif}*{stroke-linejoin:round;stroke-linecap:butt}"

PAGE_COLOURS = {
    "#ffffff": "--paper",
    "#000000": "--ink",
    "#dddddd": "--grid",
    "#999999": "--ideal",
    "#202020": "--edge",
    "#404040": "--dim",
    "#444444": "--dim",
    "#d9d9d9": "--pale",
    "#0b6e4f": "--best",
    "#2457a6": "--reference",
    "#111111": "--bound",
    "#6b7280": "--ideal",
    "#b5b5b5": "--other",
    "#6f9bd1": "--computation",
    "#d1662e": "--communication",
    "#b9a3cc": "--coding",
    "#d8c26a": "--host",
    "#8f8f8f": "--rest",
    "#a3195b": "--line-3",
    "#00838f": "--line-4",
    "#8a5a00": "--line-5",
    "#6a3fb5": "--line-6",
    "#8ba3b8": "--measured",
    "#3d4852": "--predicted",
}
"""Colours that differ between a light and a dark page -> the page's variables."""

POINTS_PER_INCH = 72.0
_TIP, _SERIES = "tip:", "\ue000"
"""What an id begins with that carries a tip, a series or both, and what stands between these."""

_GEOMETRY = ("d", "x", "y", "width", "height")
_NUMBER = re.compile(r"-?\d+\.\d+")
AnyArtist = TypeVar("AnyArtist", bound=Artist)


def with_tip(artist: AnyArtist, text: str, series: str = "") -> AnyArtist:
    """The artist, which shows the text when the pointer is over it."""
    artist.set_gid(f"{_TIP}{text}{_SERIES}{series}" if series else _TIP + text)
    return artist


def compact(text: str, description: str = "") -> str:
    """The same picture in fewer bytes, and what it shows in words."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(text)  # noqa: S314 (matplotlib wrote it)
    for child in root.findall(f"{{{SVG}}}metadata"):
        root.remove(child)
    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    for element in root.iter():
        _shorten(element, used)
    _flatten(root)
    _name_styles(root)
    if description:
        root.insert(0, ElementTree.Element(f"{{{SVG}}}desc"))
        root[0].text = description
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def resized(text: str, width_inches: float) -> str:
    """The same picture (of `compact`) at another width, its text and height with it."""
    opening = text[text.index("<svg") : text.index(">", text.index("<svg"))]
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening)
    assert size is not None, "matplotlib writes a viewBox"
    width_pt = POINTS_PER_INCH * width_inches
    height_pt = width_pt * float(size[2]) / float(size[1])
    new = re.sub(r'\bwidth="[^"]*"', f'width="{width_pt:.2f}pt"', opening)
    return text.replace(opening, re.sub(r'\bheight="[^"]*"', f'height="{height_pt:.2f}pt"', new), 1)


def _name_styles(root: ElementTree.Element) -> None:
    """Styles become classes, named after what they say: figures of one page share them."""
    style = root.find(f".//{{{SVG}}}style")
    if style is None:
        return
    rules = {}
    for element in root.iter():
        # A reference stays in its element: ids are another figure's where two stand in one page.
        if (style_text := element.get("style")) and "url(" not in style_text:
            name = f"s{hashlib.sha256(style_text.encode()).hexdigest()[:6]}"
            rules[name] = style_text
            del element.attrib["style"]
            element.set("class", name)
    style.text = FONT + "".join(f".{name}{{{style_text}}}" for name, style_text in sorted(rules.items()))


def _shorten(element: ElementTree.Element, used: set[str]) -> None:
    """Drops what is not needed of one element, and turns its tip into a title."""
    attributes = element.attrib
    for name in _GEOMETRY:
        if name in attributes:
            short = _NUMBER.sub(_rounded, attributes[name])
            attributes[name] = re.sub(r"\s*([A-Zz ])\s*", r"\1", short).strip()
    if "style" in attributes:
        parts = (part.strip() for part in attributes["style"].split(";"))
        attributes["style"] = ";".join(
            part.replace(": ", ":") for part in parts if part and not part.startswith("font-family")
        )
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    name = attributes.get("id", "")
    if name.startswith(_TIP):
        tip, _, series = name.removeprefix(_TIP).partition(_SERIES)
        if tip:
            title = ElementTree.Element(f"{{{SVG}}}title")
            title.text = tip
            element.insert(0, title)
        if series:
            attributes["data-series"] = series
    if name not in used:
        attributes.pop("id", None)
    if element.tag != f"{{{SVG}}}text" and not (element.text or "").strip():
        element.text = None
    element.tail = None


def _flatten(parent: ElementTree.Element) -> None:
    """Groups without attributes that hold no title give way to what they hold."""
    children = []
    for child in parent:
        _flatten(child)
        if child.tag == f"{{{SVG}}}g" and not child.attrib and child.find(f"{{{SVG}}}title") is None:
            children += list(child)
        else:
            children.append(child)
    parent[:] = children


def _rounded(match: re.Match[str]) -> str:
    text = f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def for_page(text: str, name: str, label: str) -> Markup:
    """A figure's SVG for the inside of a page: without its styles, with ids of its own."""
    text = re.sub(r"<(style|desc)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href").replace(" />", "/>")
    prefix = f"f{hashlib.sha256(name.encode()).hexdigest()[:6]}"
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text).replace("url(#", f"url(#{prefix}-")
    # A variable is read in a style, not in an attribute of its own.
    text = re.sub(rf'(fill|stroke)="({"|".join(PAGE_COLOURS)})"', r'style="\1:\2"', text)
    text = re.sub(r'style="[^"]*"', lambda match: _with_variables(match[0]), text)
    opening = f'<svg role="group" aria-label="{Markup.escape(label)}" viewBox="'
    return Markup(re.sub(r'<svg[^>]*?viewBox="', lambda _: opening, text, count=1).strip())  # noqa: S704 (matplotlib's, the label escaped)


def page_styles(texts: Iterable[str]) -> Markup:
    """The styles of several figures for their page: each once, in the page's colours."""
    styles = [style for text in texts for style in re.findall(r"<style\b.*?</style>", text, flags=re.DOTALL)]
    rules = dict.fromkeys(rule for style in styles for rule in re.findall(r"\.s[0-9a-f]{6}\{[^}]*\}", style))
    return Markup(_with_variables("".join(rules)))  # noqa: S704 (our own style rules)


def _with_variables(style: str) -> str:
    """Colours that a dark page changes become the page's variables."""

    def as_variable(match: re.Match[str]) -> str:
        variable = PAGE_COLOURS.get(match[2])
        return f"{match[1]}:var({variable})" if variable else match[0]

    return re.sub(r"(fill|stroke):(#[0-9a-f]{6})", as_variable, style)
