"""The call trace counts moves between files of scaling/study."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call_trace(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import call_trace

    return call_trace


def test_every_file_but_the_first_is_come_to_and_counts_do_not_change(call_trace):
    moves = call_trace.trace("mnist")
    assert {"overrides.py", "schema.py", "resolve.py", "training_cells.py", "cell.py"} <= set(moves)
    assert moves.total() > len(moves) - 1
    assert call_trace.trace("mnist") == moves
    assert sys.getprofile() is None
