"""One self-contained page: no request, figures inline, one small script. All text is escaped.

Every row of a table, every bar and every point belongs to cells, whose ids stand in the row; the samples of a
cell are runs/<cell>/<repeat>/rank<r>.jsonl, or rows of samples.csv.gz. `page_evidence.j2` says, for each kind
of claim, which lines of these files are taken and what is done with them. A test follows each by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scaling.report.blocks import ANSWER
from scaling.report.content import Content, name_in
from scaling.report.figures.parts import DRAWN_OTHERS, SHOW_OTHERS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.tables import Section
from scaling.report.text import TEMPLATES, environment, title_parts
from scaling.report.verdict_text import names_of

TEMPLATE = "report.html.j2"
MOST_NAMED = 4  # so many of several workloads are named below the title


def render_page(content: Content) -> str:
    templates = environment(TEMPLATES, autoescape=True)
    templates.filters |= {"name": name_in, "first_sentence": first_sentence}
    figures = [figure for section in content.sections for figure in section.figures]
    texts = {figure.name: figure.svg.read_text(encoding="utf-8") for figure in figures}
    labels = {figure.name: f"{figure.name.partition('-')[0]}: {figure.title}" for figure in figures}
    rest = [rest for rest in map(_of_no_group, content.sections) if rest.figures or rest.tables]
    return templates.get_template(TEMPLATE).render(
        content=content,
        asked=[figure for section in rest if section.name == ANSWER for figure in section.figures],
        rest=[section for section in rest if section.name != ANSWER],
        subtitle=_subtitle(content),
        svgs={name: for_page(text, name, labels[name]) for name, text in texts.items()},
        figure_styles=page_styles(texts.values()),
    )


def first_sentence(text: str) -> tuple[str, str]:
    first, stop, others = text.partition(". ")
    return first + stop.rstrip(), others


def _subtitle(content: Content) -> str:
    """What was measured, and on what: the workload, or of several each by what distinguishes it."""
    titles = [title_parts(verdict.values["workload"]) for verdict in content.verdicts]
    shared = [part for part in titles[0][1:] if all(part in title for title in titles)] if titles else []
    first = content.blocks[0].name if content.blocks else ""
    given = [verdict.values["workload"] for verdict in content.verdicts]
    models = {f"{one['model']} on {one['dataset']}" for one in given}
    if len(titles) > 1 and len(models) == 1:
        first = f"{models.pop()}, {len(titles)} answers"
    elif len(titles) > 1:
        names = names_of(content.verdicts)
        named = (
            names if len(names) <= MOST_NAMED else [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
        )
        first = f"{len(names)} workloads: {'; '.join(named)}"
    return " · ".join(filter(None, [first, ", ".join(shared), content.machine]))


def _of_no_group(section: Section) -> Section:
    figures = [figure for figure in section.figures if not figure.group]
    tables = [table for table in section.tables if not table.group]
    return replace(section, figures=figures, tables=tables, remarks=[])


OPEN_SECTIONS = ("speedup", "training", "devices")  # their tables stand open; others unfold


def render_markdown(content: Content) -> str:
    """The text, in GitHub's Markdown; figures are SVG files in figures/, in its folder."""
    templates = environment(TEMPLATES, autoescape=False)
    templates.filters |= {"md": _escaped, "row": _row}
    # A figure's caption where the page's buttons are not.
    templates.filters["in_file"] = lambda caption: caption.replace(SHOW_OTHERS, DRAWN_OTHERS)
    template = templates.get_template("report.md.j2")
    return template.render(content=content, open_sections=OPEN_SECTIONS).rstrip() + "\n"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(value).replace('|', chr(92) + '|') for value in values)} |"


def _escaped(text: str) -> str:
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), ("*", r"\*"), ("[", r"\["), ("]", r"\]")):
        text = text.replace(mark, written)
    return " ".join(text.split())
