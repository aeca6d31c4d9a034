"""The table in docs/background/reliability.md has all planted faults, with what the tests last saw."""

import ast
import json

from tests.faults.conftest import HERE

PLACES = [*HERE.glob("test_*.py"), *(HERE.parent / "slurm").glob("test_*.py")]
"""Where faults are planted: tests that say what they `found`."""


def test_table_is_made_of_the_results_of_all_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "tools"))
    import fault_table

    results = json.loads(fault_table.RESULTS.read_text())
    trees = [ast.parse(path.read_text()) for path in PLACES]
    tests = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert set(results) == {test.name for test in tests if "found" in [one.arg for one in test.args.args]}
    page = fault_table.PAGE.read_text()
    assert page == fault_table.with_table(page, fault_table.table(results)), "run python tools/fault_table.py"
