"""`run` ends with the answer."""

import shlex
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

import scaling.cli
from launchers.local import LocalLauncher
from scaling.report import write_report
from scaling.store import ResultsFolder
from scaling.study.session import RunResult

running = sys.modules[f"{scaling.cli.__name__}.run"]  # `scaling.cli.run` is the verb
REFERENCE = Path(__file__).parents[2] / "results/reference"


@pytest.fixture(params=["transfer-2xh200", "quickstart-2xh100"])
def made(request, tmp_path, without_figures):
    """The report of a folder with long tables, and of one with a verdict."""
    ignored = shutil.ignore_patterns("figures")
    copied = shutil.copytree(REFERENCE / request.param, tmp_path / request.param, ignore=ignored)
    return write_report(ResultsFolder(copied))


def test_run_ends_with_the_screen_of_the_report(made, capsys):
    running._show(made)
    shown = capsys.readouterr().out
    assert " ".join(made.answer[0].split()) in " ".join(shown.split())
    assert f"All tables: scaling report {shlex.quote(str(made.page.parent))} --all" in shown


def test_verdict_comes_after_what_failed(monkeypatch):
    said, made = [], object()
    failed = [SimpleNamespace(cell={"kind": "transfer", "world_size": 2}, repeat=0, reason="rank 1: no")]
    outcome = RunResult(SimpleNamespace(path=Path("x")), made, failed, ["left out"], leaves_the_rest=False)
    monkeypatch.setattr("scaling.study.session.run_session", lambda *_, **__: outcome)
    monkeypatch.setattr(running, "note", said.append)
    monkeypatch.setattr(running, "load_text", lambda: "other programs take 85% of the cores")
    monkeypatch.setattr(running, "_show", said.append)
    monkeypatch.setattr(LocalLauncher, "forks_workers", False)
    with pytest.raises(typer.Exit) as ended:
        running.run("quickstart")
    assert ended.value.exit_code == 1
    warned, first, again, left_out, shown = said
    assert warned.startswith("warning: other programs take 85% of the cores")
    assert (first, "--retry-failed" in again) == ("failed: transfer, 2 workers, repeat 0: rank 1: no", True)
    assert (left_out, shown) == ("left out", made)
