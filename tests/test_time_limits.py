"""No test measures time, nor gives up a wait before the shared limit: a busy machine is no fault."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.waiting import LIMIT_S

TESTS = Path(__file__).parent
CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
OTHER_CLOCKS = {"resource.getrusage", "os.times", "timeit.timeit", "timeit.default_timer"}
WAITS = ("wait", "join", "communicate")
NAMES = {*CLOCKS, *(clock.rpartition(".")[2] for clock in OTHER_CLOCKS), "sleep", *WAITS}
LONGEST_POLL_S = 0.5

PROGRAM = re.compile(rf"\b({'|'.join(sorted(NAMES))})\(|timeout=|from time import")
"""In any source that may be wrong: most need not be parsed."""

ALLOWED = {
    "waiting.py": "it is the limit",
    "attach/test_guard.py": "a run is told when it began, to know files that are older",
    "attach/test_runs.py": "a run is told when it began, to know files that are older",
    "faults/test_clocks.py": "its texts are what it refuses in the packages",
    "faults/mutants.py": "by hand it draws for so many minutes, and notes seconds; its tests count calls",
    "launchers/test_slurm.py": "a signal that was not heard is sent again",
    "launchers/test_two_hosts.py": "a delayed packet comes no sooner: a slow machine is no failure",
    "measure/test_clock.py": "a clock's marks lie between two readings",
    "process_group/test_in_process.py": "counters.wait(number) is of counters",
    "process_group/test_over_torch.py": "a clock that is ahead",
}
"""Files that read a clock or have a shorter limit, and why that fails on no machine."""


def _number(node: ast.AST | None, names: dict[str, float]) -> float | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    is_number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return float(node.value) if is_number else None


def _wrong_call(call: ast.Call, names: dict[str, float]) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name not in NAMES and not any(word.arg == "timeout" for word in call.keywords):
        return False
    module = ast.unparse(call.func).rpartition(".")[0]
    called = f"{module}.{name}"
    if (module == "time" and name in CLOCKS) or called in OTHER_CLOCKS:
        return True
    first = _number(call.args[0] if call.args else None, names)
    if called == "time.sleep" and first is not None:
        return LONGEST_POLL_S < first < LIMIT_S
    limits = [_number(word.value, names) for word in call.keywords if word.arg == "timeout"]
    if name in WAITS and module:
        limits.append(first)
    return any(limit is not None and 0 < limit < LIMIT_S for limit in limits)


def wrong_in(source: str) -> Iterator[str]:
    """Calls that read a clock, give up early or sleep long; also those of programs in the file's texts."""
    if not PROGRAM.search(source):
        return
    tree = ast.parse(source)
    assigned = (node for node in tree.body if isinstance(node, ast.Assign))
    pairs = ((target, _number(node.value, {})) for node in assigned for target in node.targets)
    names = {target.id: n for target, n in pairs if isinstance(target, ast.Name) and n is not None}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _wrong_call(node, names):
            yield f"line {node.lineno}: {ast.unparse(node)[:80]}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield f"line {node.lineno}: {ast.unparse(node)}; import time instead"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PROGRAM.search(node.value):
            try:
                found = list(wrong_in(dedent(node.value)))
            except (SyntaxError, ValueError):
                continue
            yield from (f"line {node.lineno}, in its text: {one}" for one in found)


def test_no_test_measures_time_or_gives_up_early_but_for_the_exceptions():
    files = (path for path in sorted(TESTS.rglob("*.py")) if path != Path(__file__))
    wrong = {str(path.relative_to(TESTS)): list(wrong_in(path.read_text())) for path in files}
    found = {path: calls for path, calls in wrong.items() if calls}
    allowed = {path: found.pop(path, None) for path in ALLOWED}
    assert not found, "wait with tests/waiting.py, count calls with tests/counting.py, or make the clock up"
    assert all(allowed.values()), "these exceptions are needed no more"


@pytest.mark.parametrize(("source", "wrong"), [*((source, True) for source in (
    "assert time.monotonic() - began < 5", "began = time.process_time_ns()",
    "used = resource.getrusage(resource.RUSAGE_SELF)", "from time import perf_counter",
    "process.communicate(timeout=60)", "process.wait(60)", "thread.join(timeout=30.0)",
    "SOON_S = 20\nprocess.communicate(timeout=SOON_S)", "time.sleep(2)",
    'PROGRAM = """\n    import time\n    time.sleep(60)\n"""',
)), *((source, False) for source in (
    "process.communicate(timeout=LIMIT_S)", "process.wait()", "time.sleep(0.05)", "time.sleep(600)",
    "monkeypatch.setattr(module.time, 'perf_counter', made_up.now)",
    "text = ', '.join(words)", "LONG_S = 3600\nprocess.wait(LONG_S)",
))])  # fmt: skip
def test_what_fails_on_a_slow_machine_is_found_and_no_wait_for_an_end_or_a_made_up_clock(source, wrong):
    assert bool(list(wrong_in(source))) == wrong
