"""The report as Markdown, for a pull request or an issue: what the page says, with its figures as links."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.report.content import Content
from scaling.report.figures.style import DRAWN_OTHERS, SHOW_OTHERS
from scaling.report.text import TEMPLATES, environment

OPEN_SECTIONS = ("speedup", "training", "devices")  # their tables stand open; others unfold


def render_markdown(content: Content) -> str:
    """The text, in GitHub's Markdown; figures are SVG files in figures/, in its folder."""
    templates = environment(TEMPLATES, autoescape=False)
    templates.filters |= {"md": _escaped, "row": _row, "in_file": _in_file}
    template = templates.get_template("report.md.j2")
    return template.render(content=content, open_sections=OPEN_SECTIONS).rstrip() + "\n"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(value).replace('|', chr(92) + '|') for value in values)} |"


def _in_file(caption: str) -> str:
    """A figure's caption where the page's buttons are not."""
    return caption.replace(SHOW_OTHERS, DRAWN_OTHERS)


def _escaped(text: str) -> str:
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), ("*", r"\*"), ("[", r"\["), ("]", r"\]")):
        text = text.replace(mark, written)
    return " ".join(text.split())
