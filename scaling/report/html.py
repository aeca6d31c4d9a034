"""One self-contained page: no request, figures inline, one small script. All text is escaped."""

from __future__ import annotations

from scaling.report.content import Content
from scaling.report.evidence import PATHS
from scaling.report.figures.svg import for_page, page_styles
from scaling.report.glosses import name_in
from scaling.report.sections import SavedFigure, Section
from scaling.report.text import TEMPLATES, environment, text_of
from scaling.report.titles import title_parts
from scaling.report.verdict_text import facts_of, lead_of_command, names_of

TEMPLATE = "report.html.j2"

MOST_NAMED = 4
"""So many of several workloads are named below the title."""


def render_page(content: Content) -> str:
    """The page's text.

    Args:
        content: what it says; the SVG files of its figures are read.
    """
    templates = environment(TEMPLATES, autoescape=True)
    templates.filters |= {"facts": facts_of, "lead": lead_of_command, "text": text_of, "name": name_in}
    figures = [figure for section in content.sections for figure in section.figures]
    texts = {figure.name: figure.svg.read_text(encoding="utf-8") for figure in figures}
    return templates.get_template(TEMPLATE).render(
        content=content,
        rest=[rest for section in content.sections if (rest := _of_no_group(section)) is not None],
        names=names_of(content.verdicts),
        subtitle=_subtitle(content),
        svgs={figure.name: for_page(texts[figure.name], figure.name, _label(figure)) for figure in figures},
        figure_styles=page_styles(texts.values()),
        paths=PATHS,
    )


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


def _of_no_group(section: Section) -> Section | None:
    """A section without what belongs to a workload; None where nothing is left."""
    figures = [figure for figure in section.figures if not figure.group]
    tables = [table for table in section.tables if not table.group]
    if not (figures or tables):
        return None
    return Section(section.name, section.title, figures, tables)


def _label(figure: SavedFigure) -> str:
    return f"{figure.name.partition('-')[0]}: {figure.title}"
