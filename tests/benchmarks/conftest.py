"""Programs of benchmarks/, imported for a test and forgotten after it."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def program(monkeypatch):
    """program(name): one of them, and what it imports from there."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for path in BENCHMARKS.glob("*.py"):
        sys.modules.pop(path.stem, None)
