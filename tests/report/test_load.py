"""`scaling.load`: a folder as tables."""

import re
from pathlib import Path

import pytest

import scaling
from scaling.errors import StoreError
from scaling.report import summary_table
from scaling.store import ResultsFolder

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"


@pytest.mark.parametrize("name", ["mnist-4xh200", "gpt-2xh200"])
def test_cells_are_the_summary_and_their_times_are_those_of_the_timed_steps(name):
    """In the first all steps have phases and count; in the second profiled steps are others."""
    results = scaling.load(REFERENCE / name)
    assert results.cells.equals(summary_table(ResultsFolder(REFERENCE / name)))
    steps = results.samples[results.samples.timed]
    expected = (True,) * 2 if name == "mnist-4xh200" else (False,) * 2
    assert (steps.profiled.any(), steps.profiled.all()) == expected
    slowest = steps.groupby(["cell_id", "repeat", "iteration"]).step_s.max()
    found = (slowest.groupby("cell_id").mean() / results.cells.set_index("cell_id").iteration_s).dropna()
    assert found.between(0.95, 1.05).all()  # gaps, and how launches are combined
    assert len(found) > 10


def test_findings_begin_with_the_verdicts_and_samples_of_every_kind_are_rows():
    findings = scaling.load(REFERENCE / "gpt-2xh200").findings
    assert findings.kind.iloc[0] == "verdict"
    assert findings.kind.nunique() > 3
    assert findings.text.str.len().min() > 0
    assert scaling.load(REFERENCE / "converge-fcn-2xh200").samples.test_accuracy.notna().any()
    assert scaling.load(REFERENCE / "device-batch-sizes-cpu").samples.seconds.notna().any()


def test_a_folder_that_is_none_is_refused(tmp_path):
    with pytest.raises(StoreError, match=re.escape(str(tmp_path))):
        scaling.load(tmp_path)


def test_the_example_of_the_page_runs(monkeypatch, capsys):
    page = (ROOT / "docs" / "how-to" / "own-analysis.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(code, {})
    assert "fcn-r" in capsys.readouterr().out
