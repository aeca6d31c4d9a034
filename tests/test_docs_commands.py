"""Commands in the documents exist with their options; the README's table is what `make figures` gives."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from scaling.analysis.columns import is_of_older_code, to_rows
from scaling.analysis.summary import read_study, summary_table
from scaling.cli import app
from scaling.store import ResultsFolder
from tests.made import loaded

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "background" / "measured.md"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands(page):
    """Every `scaling ...` in code of a page: between backticks, or on a line of its own."""
    text = page.read_text()
    blocks = re.findall(r"```(?:console|bash)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    lines += re.findall(r"^ {4}(?:\.venv/bin/)?(scaling .*)$", text, re.MULTILINE)
    lines += re.findall(r"`(scaling [^`]*)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.split("#")[0].strip() for line in lines if line.startswith("scaling ")]


def command_of(words):
    """The command that words name, and the words after it."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0].startswith("--"):
            break
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_a_page_exist_with_their_options(page):
    for line in commands(page):
        words = shlex.split(re.sub(r" > [\w.]+$", "", line))[1:]
        try:
            command, rest = command_of(words)
        except KeyError as error:
            pytest.fail(f"{page.name}: `{line}`: there is no verb {error}")
        known = {option for one in command.params for option in one.opts} | {"--help"}
        for word in rest[: rest.index("--")] if "--" in rest else rest:
            if word.startswith("--"):
                assert word.partition("=")[0] in known, f"{page.name}: `{line}`"


def test_tutorial_and_faq_show_the_verbs_that_answer():
    pages = ("tutorial/first-study.md", "how-to/questions.md")
    shown = {name: " ".join(commands(ROOT / "docs" / name)) for name in pages}
    for verb in ("explain", "recommend", "compare", "export", "status"):
        for name, text in shown.items():
            assert f"scaling {verb}" in text, (name, verb)


def test_links_of_the_documents_lead_somewhere_and_make_has_the_targets_that_they_name():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"docs", "figures"} <= targets
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets, page.name


@pytest.fixture(scope="module")
def readme_figures():
    return loaded(ROOT / "tools" / "readme_figures.py")


@pytest.fixture(scope="module")
def of_the_table(readme_figures):
    return read_study(ResultsFolder(readme_figures.OF_THE_TABLE))


def test_readme_is_what_make_figures_gives(readme_figures, of_the_table):
    study, rows = of_the_table, to_rows(of_the_table.table)
    readme = (ROOT / "README.md").read_text()
    assert readme_figures.updated(readme, study) == readme
    measured = (ROOT / "docs" / "background" / "measured.md").read_text()
    changed = measured.replace("| `tree` (ours) | 2.91", "| `tree` (ours) | 2.79")
    assert changed != measured
    assert readme_figures.updated_measured(changed, rows) == measured


def test_readme_is_short_and_narrow():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 100] == []


def test_images_are_of_folders_that_make_figures_draws_and_budgets_of_no_older_code(readme_figures):
    images = readme_figures.figures(*(path.read_text() for path in DOCUMENTS))
    folders = [str(folder.relative_to(ROOT)) for folder in readme_figures.OF_THE_FIGURES]
    assert any("/budget-" in image for image in images)
    for image in images:
        assert (ROOT / image).is_file()
        assert any(image.startswith(f"{folder}/figures/") for folder in folders), image
        if "/budget-" in image:
            rows = to_rows(summary_table(ResultsFolder((ROOT / image).parents[1])))
            assert not [row["cell_id"] for row in rows if is_of_older_code(row)], image


def test_table_leaves_out_what_was_measured_with_older_code(readme_figures, of_the_table):
    rows = to_rows(of_the_table.table)
    older = {row["aggregator"] for row in rows if is_of_older_code(row)}
    shown = set(re.findall(r"^\| `([^`]+)`", readme_figures.table(rows), re.MULTILINE))
    assert (older, shown) == ({"cntk"}, {row["aggregator"] for row in rows if row["world_size"] == 4} - older)
