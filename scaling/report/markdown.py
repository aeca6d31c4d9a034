"""The report as Markdown, for a pull request or an issue: what the page says, with its figures as links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.report.content import Content
from scaling.report.sections import Section
from scaling.report.tables import Table
from scaling.report.verdict_text import verdict_lines

OPEN_SECTIONS = ("speedup", "training", "devices")
"""Their tables stand open; others unfold."""


def render_markdown(content: Content) -> str:
    """The text, in GitHub's Markdown; figures are PNG files in figures/, in its folder."""
    return "\n".join(_lines(content)).rstrip() + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield f"# {_escaped(content.name)}: how it scales"
    yield ""
    lines = verdict_lines(content.verdicts)
    yield from (f"> {_escaped(line)}  " for line in lines)
    if lines:
        yield ""
    rest = content.findings if lines else content.findings[1:]
    if not lines:
        yield _escaped(content.findings[0].text)
        yield ""
    yield from (f"- {_escaped(finding.text)}" for finding in rest)
    yield ""
    for section in content.sections:
        yield from _section(section)
    yield from _rest(content)


def _section(section: Section) -> Iterator[str]:
    yield f"## {section.title}"
    yield ""
    for remark in section.remarks:
        yield _escaped(remark)
        yield ""
    captions: list[str] = []
    for figure in section.figures:
        yield f"![{_escaped(figure.title)}](figures/{figure.name}.svg)"
        yield ""
        if figure.caption not in captions:
            yield f"{_escaped(figure.caption)} Values: `{figure.source}`."
            yield ""
            captions.append(figure.caption)
    for table in section.tables:
        yield from _table(table, is_open=section.name in OPEN_SECTIONS)


def _table(table: Table, *, is_open: bool) -> Iterator[str]:
    yield f"### {_escaped(table.title)}" if is_open else _summary(table.title)
    yield ""
    cells = [[", ".join(own)] for own in table.cells] or [[] for _ in table.rows]
    headings = [*table.headings, *(["cell"] if table.cells else [])]
    yield _row(headings)
    yield _row(["---", *["---:"] * (len(headings) - 1)])
    yield from (_row([*row, *own]) for row, own in zip(table.rows, cells, strict=True))
    yield ""
    for text in (f"{table.statistic} In full: `{table.source}`.", *table.remarks, *table.warnings):
        yield _escaped(text)
        yield ""
    if not is_open:
        yield "</details>"
        yield ""


def _rest(content: Content) -> Iterator[str]:
    notes = [*content.notes, *content.cell_notes]
    if notes:
        yield "## Notes"
        yield ""
        yield from (f"- {_escaped(note)}" for note in notes)
        yield ""
    if content.failed:
        yield "## Failed cells"
        yield ""
        for row in content.failed:
            reason = row["reason"] or "no reason was recorded"
            yield f"- `{row['cell_id']}`: {_escaped(reason)}"
        yield ""
    yield "## Environment"
    yield ""
    if content.wall_time:
        yield f"{content.wall_time[0].upper()}{content.wall_time[1:]}."
        yield ""
    if content.environment is None:
        yield "It was not recorded: there is no `environment.json` in the folder."
        return
    yield _summary("All of it")
    yield ""
    yield _row(["what", "value"])
    yield _row(["---", "---"])
    yield from (_row([key, value]) for key, value in content.environment)
    yield ""
    yield "</details>"
    yield ""
    yield (
        f"Made from the raw samples by `scaling report {content.folder} --markdown`; report.html in the "
        "folder says how they were measured, and how each number follows from them."
    )


def _summary(title: str) -> str:
    return f"<details><summary>{_escaped(title)}</summary>"


def _row(values: Sequence[str]) -> str:
    return f"| {' | '.join(_escaped(value).replace('|', chr(92) + '|') for value in values)} |"


def _escaped(text: str) -> str:
    """Text whose markup is none; a line."""
    for mark, written in (("&", "&amp;"), ("<", "&lt;"), ("*", r"\*"), ("[", r"\["), ("]", r"\]")):
        text = text.replace(mark, written)
    return " ".join(text.split())
