"""The report for a pull request."""

import json

import pytest
from typer.testing import CliRunner

from scaling.cli import app
from scaling.report import write_report


@pytest.fixture
def filled(study, epoch_line):
    """Two kinds of cells, a note with markup in it, a failed cell."""
    for size in (1, 2):
        for aggregator, slower in (("none", 1.0), ("ring", 1.2)):
            steps = [[slower / size, 1.01 * slower / size]] * 3
            aggregator_label = f"{aggregator}(a=[1|2])"
            study.add_steps(steps, aggregator=aggregator, aggregator_label=aggregator_label, world_size=size)
    study.add([[[epoch_line(1, 1.0, 0.5, 0.9)]]], kind="convergence", notes=["a *note* with <marks>"])
    study.add(["failed: killed by <signal> 9"], aggregator="tree", world_size=2)
    return study.folder


def test_markdown_says_what_the_page_says(filled):
    made = write_report(filled)
    text = made.markdown()
    assert text.startswith("# by-hand: how many workers\n")
    for figure in (filled.path / "figures").glob("*.svg"):
        assert f"(figures/{figure.name})" in text
    for row in made.as_dict()["cells"]:
        assert row["cell_id"] in text
    for shown in ("> Use 2 workers", "## The answer", "## Failed cells", "cpu.usable_cores"):
        assert shown in text


@pytest.mark.usefixtures("without_figures")
def test_tables_markup_and_what_unfolds_are_well_formed(filled):
    lines = (text := write_report(filled).markdown()).splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("| ---")]
    assert len(heads) >= 3
    for at in heads:
        width = fields(lines[at])
        assert fields(lines[at - 1]) == width
        below = at + 1
        while lines[below].startswith("|"):
            assert fields(lines[below]) == width
            below += 1
        assert below > at + 1
    assert r"ring(a=\[1\|2\])" in text
    assert (r"a \*note\* with &lt;marks>" in text, "<signal>" in text) == (True, False)
    assert text.count("<details>") == text.count("</details>") >= 1


def fields(line):
    return line.replace(r"\|", "").count("|") - 1


@pytest.mark.usefixtures("without_figures")
def test_command_prints_markdown_or_json_but_not_both(filled):
    runner = CliRunner()
    printed = runner.invoke(app, ["report", str(filled.path), "--markdown"])
    assert printed.exit_code == 0
    assert printed.stdout.startswith("# by-hand")
    assert json.loads(runner.invoke(app, ["report", str(filled.path), "--json"]).stdout)["cells"]
    assert runner.invoke(app, ["report", str(filled.path), "--json", "--markdown"]).exit_code != 0
