"""The table in docs/background/reliability.md has all planted faults, with what the tests last saw."""

import ast
import json

from tests.faults.conftest import HERE


def test_table_is_made_of_the_results_of_all_tests(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "benchmarks"))
    import fault_table

    results = json.loads(fault_table.RESULTS.read_text())
    tree = ast.parse((HERE / "test_while_it_runs.py").read_text())
    tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(results) == {name for name in tests if name.startswith("test_")}
    page = fault_table.PAGE.read_text()
    assert page == fault_table.with_table(page, fault_table.table(results)), (
        "run python benchmarks/fault_table.py"
    )
