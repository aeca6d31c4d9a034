"""Durations are differences of a monotonic clock: one of the wall clock is wrong where that is set."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WALL = {
    *("time.time", "time.time_ns", "time.clock_gettime"),
    *("datetime.now", "datetime.utcnow", "datetime.today"),
}
ENDS = {name.rpartition(".")[2] for name in WALL}
TIMES_OF_DAY = {
    "scaling/attach/launch.py": "compared with times of files",
    "scaling/attach/study.py": "compared with times of files",
    "scaling/attach/inside/agent.py": "compared with times of files; which rank raised first",
    "scaling/cli/status.py": "age of what another command recorded",
    "scaling/store/records.py": "when a run was made",
    "scaling/measure/probe/run.py": "the day",
    "scaling/study/kinds/transfer.py": "the day",
}
DIFFERENCES = {"scaling/analysis/progress.py": "_since_s, of records; never negative"}


def wall_clock(tree: ast.AST) -> list[int]:
    """Lines that read the wall clock, by whatever name it was imported."""
    names = {
        name.asname or name.name: f"{node.module}.{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime")
        for name in node.names
    }
    found = []
    for node in ast.walk(tree):
        is_one = node.attr in ENDS if isinstance(node, ast.Attribute) else isinstance(node, ast.Name)
        text = ast.unparse(node) if is_one else ""
        if names.get(text, text) in WALL or text.removeprefix("datetime.") in WALL:
            found.append(node.lineno)
    return found


def test_wall_clock_is_read_for_times_of_day_alone_which_are_subtracted_at_one_place():
    paths = [path for one in ("scaling", "launchers", "topologies") for path in (ROOT / one).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert {name for name, text in texts.items() if wall_clock(ast.parse(text))} == set(TIMES_OF_DAY)
    users = {name: text.count("total_seconds(") for name, text in texts.items()}
    assert {name: count for name, count in users.items() if count} == dict.fromkeys(DIFFERENCES, 1)


@pytest.mark.parametrize(
    "text",
    [
        "import time\nx = time.time() - y",
        "from time import time\nx = time()",
        "from time import time as now\nx = now()",
        "import datetime\nx = datetime.datetime.now()",
        "from datetime import datetime\nx = datetime.now(timezone.utc)",
    ],
)
def test_wall_clock_is_found_by_any_name(text):
    assert wall_clock(ast.parse(text))
    assert not wall_clock(ast.parse("import time\nx = time.monotonic() - time.perf_counter()"))
