"""`run` ends with the verdict, and with few lines above it."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import scaling.cli
from scaling.report import write_report
from scaling.store import ResultsFolder

running = sys.modules[f"{scaling.cli.__name__}.run"]  # `scaling.cli.run` is the verb
REFERENCE = Path(__file__).parents[2] / "results/reference"
MOST_LINES = 40


@pytest.fixture(params=["transfer-2xh200", "quickstart-2xh100"])
def made(request, tmp_path):
    """The report of a folder with long tables, and of one with a verdict."""
    ignored = shutil.ignore_patterns("figures")
    copied = shutil.copytree(REFERENCE / request.param, tmp_path / request.param, ignore=ignored)
    return write_report(ResultsFolder(copied))


def test_few_lines_stand_above_the_verdict(made, capsys):
    running._show(made)
    above, _, answer = capsys.readouterr().out.rpartition("\n\n")
    assert 3 < above.count("\n") + 1 <= MOST_LINES
    assert f"all rows: scaling report {made.page.parent}" in above
    assert " ".join(answer.split()).startswith(" ".join(made.answer[0].split()))


def test_verdict_comes_after_what_failed(monkeypatch):
    said = []
    made, scope = object(), SimpleNamespace(launcher=SimpleNamespace(leaves_the_rest=False))
    scope.records = lambda _: [SimpleNamespace(state="failed")]
    monkeypatch.setattr("scaling.study.scope.scope_for", lambda *_: scope)
    monkeypatch.setattr(running, "measured", lambda *_, **__: (SimpleNamespace(path="x"), made, ["left out"]))
    monkeypatch.setattr(running, "say_rest", lambda failed, left: said.append((len(failed), left)))
    monkeypatch.setattr(running, "_show", said.append)
    with pytest.raises(typer.Exit) as ended:
        running._run("quickstart", [], None, False, "local", None, None, None)
    assert ended.value.exit_code == 1
    assert said == [(1, ["left out"]), made]
