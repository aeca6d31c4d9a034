"""Which tests can see a module, and what they say of a mutant of it."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TEST_LIMIT_S, CALL_LIMIT_S = 120.0, 900.0
NO_TEST = "no test began"
"""In place of the test's name, where pytest ends or hangs before the first."""

KERNELS = "scaling/codecs/kernels/"
TESTS_OF_KERNELS = tuple(
    f"tests/codecs/test_{name}.py" for name in ("one_bit_kernels", "chunk_kernels", "chunk_aggregators")
)


@dataclass(frozen=True)
class Stage:
    """One call of pytest.

    Attributes:
        limit_s: processor time after which no further test is begun.
        marks: which tests are chosen.
        environment: variables besides.
    """

    limit_s: float
    marks: str = "not processes and not slurm and not gpu"
    environment: Mapping[str, str] = field(default_factory=dict)


STAGES = {
    "own": Stage(60.0),
    "near": Stage(30.0),
    "far": Stage(30.0),
    "interpreted": Stage(60.0, environment={"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}),
    "processes": Stage(30.0, "processes and not slurm and not gpu"),
}
"""In their order; the limits are multiplied by `--patience`."""


class Tests:
    """The test files of a checkout, by how many imports they are away from a module."""

    def __init__(self, root: Path) -> None:
        self._root = root
        files = [
            path
            for top in ("scaling", "launchers", "topologies", "tests")
            for path in (root / top).rglob("*.py")
        ]
        self._imports = {
            str(path.relative_to(root)): _imported(path.read_text(encoding="utf-8")) for path in files
        }

    def of(self, file: str) -> dict[str, list[str]]:
        """Stage -> those that can see a module of the core."""
        distances = self._distances(file)
        parts = Path(file).with_suffix("").parts
        package = parts[1] if parts[0] == "scaling" else parts[0]
        mirrors = (f"tests/{package}/", f"tests/test_{package}.py")
        tests = [name for name in self._imports if re.search(r"(^|/)test_\w+\.py$", name)]
        named = {name for name in tests if Path(name).stem == f"test_{parts[-1]}"}
        folder = {name for name in tests if name.startswith(mirrors)}
        least = min((distances[name] for name in folder if name in distances), default=0)
        mirrored = {name for name in folder if name in named or distances.get(name) == least}
        near = {name for name in tests if distances.get(name) == 1} - mirrored
        far = folder.union(name for name in tests if name in distances) - mirrored - near

        def order(name: str) -> tuple[bool, int, bool, int, str]:
            own = sum(imported.startswith(("scaling", "launchers")) for imported in self._imports[name])
            return name not in named, distances.get(name, 2), not name.startswith(mirrors), own, name

        kernels = set(TESTS_OF_KERNELS) if file.startswith(KERNELS) else set()
        stages = zip(STAGES, (mirrored, near, far, kernels, mirrored | near | folder), strict=True)
        return {stage: sorted(names, key=order) for stage, names in stages}

    def _distances(self, file: str) -> dict[str, int]:
        """File -> the number of imports that lead from it to `file`, if any do."""
        distances, newest = {file: 0}, [file]
        while newest:
            wanted = {_module(name) for name in newest}
            step = distances[newest[0]] + 1
            newest = [
                name
                for name, imported in self._imports.items()
                if name not in distances and imported & wanted
            ]
            distances |= dict.fromkeys(newest, step)
        return distances


def _module(file: str) -> str:
    return ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")


def _imported(source: str) -> set[str]:
    """Names of modules (and of what is imported from them) in a source, wherever they are."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return modules


@dataclass(frozen=True)
class Outcome:
    """Of one call of pytest: killed, timed out or survived; by which test; whether all were run; how many."""

    outcome: str
    killed_by: str
    complete: bool
    tests: int


def run_tests(root: Path, tests: Sequence[str], stage: Stage, patience: float = 1.0) -> Outcome:
    """Runs tests of a checkout until one fails or the time is over."""
    if not tests:
        return Outcome("survived", "", True, 0)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record"
        record.touch()
        environment = {
            **os.environ,
            **stage.environment,
            "PYTHONPATH": os.pathsep.join([str(root), str(Path(__file__).parent)]),
            "MUTANT_RECORD": str(record),
            "MUTANT_LIMIT_S": str(patience * stage.limit_s),
            "MUTANT_TEST_LIMIT_S": str(TEST_LIMIT_S),
        }
        words = [
            "-x",
            "-q",
            "-p",
            "mutant_record",
            "-p",
            "no:cacheprovider",
            "-m",
            stage.marks,
            f"--basetemp={folder}/tests",
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(CALL_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = record.read_text(encoding="utf-8").splitlines()
    if not lines and process.returncode not in (0, 5):  # 5: none of the tests is chosen
        return Outcome("killed", NO_TEST, False, 0)
    return outcome_of(lines)


def outcome_of(record: Sequence[str]) -> Outcome:
    """What the lines of `mutant_record` say."""
    begun = [line.removeprefix("begun ") for line in record if line.startswith("begun ")]
    failed = [line.removeprefix("failed ") for line in record if line.startswith("failed ")]
    ended = sum(line.startswith("ended ") for line in record)
    if failed:
        return Outcome("killed", failed[0], False, len(begun))
    if len(begun) > ended:
        return Outcome("timed out", begun[-1], False, len(begun))
    return Outcome("survived", "", "limit " not in record, len(begun))
