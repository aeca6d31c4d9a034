"""Which small faults in the core do the tests find?

    python benchmarks/mutants.py --out benchmarks/results/mutants/mutants.csv
    python benchmarks/mutants.py --only 17,nesterov --tests tests/training

draws mutants by a seed (`mutation_sites`), adds those of NAMED, puts one after the other into a checkout of
HEAD, and runs the tests that can see it, until the first that fails:
1. `own`: the test files of the package's folder that are named after the module or import it (if none does,
   through one other module), those that import the fewest others first;
2. `near`: the others that import it;
3. `far`: those of the package's folder of tests, and those that import it through other modules, the fewest
   modules first;
4. `interpreted`: of a kernel, those of the kernels in Triton's interpreter;
5. `processes`: those of the first two, and of the package's folder, that start worker processes.
Tests of Slurm and of GPUs are left out, and each stage has a limit of processor time: what survives says in
`scope` whether every such test was run ("all") or some were not ("limit"). A test that takes more than
TEST_LIMIT_S counts as one that never ends. In the end the tests that failed are run without a mutant; what
they say counts only if they pass then.

mutmut (3.8.1) has no option that draws a sample, by a seed or otherwise, and finds a mutant's tests by what
one process calls: not those of worker processes, nor of kernels, which Triton reads as source.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from mutant_tests import NO_TEST, STAGES, Outcome, Tests, run_tests
from mutation_sites import Mutant, draw

REPOSITORY = Path(__file__).parents[1]
NAMED: dict[str, tuple[str, str, str]] = {
    "nesterov": ("scaling/training/optimizers.py", "nesterov=self.nesterov", "nesterov=False"),
    "weight-decay": (
        "scaling/training/optimizers.py",
        "weight_decay=self.weight_decay,\n            nesterov",
        "weight_decay=0.0,\n            nesterov",
    ),
    "sent-slice": ("scaling/process_group/in_process.py", "append(tensor.clone())", "append(tensor)"),
    "broadcast-slice": (
        "scaling/process_group/in_process.py",
        "self._gathered(tensor.clone())[source]",
        "self._gathered(tensor)[source]",
    ),
    "one-way-ring": (
        "scaling/collectives/ring.py",
        "n - 1 - forth.source),\n            np.append(forth.target, n - 1 - forth.target),",
        "forth.source),\n            np.append(forth.target, forth.target),",
    ),
    "unaligned-chunks": (
        "scaling/collectives/schedule.py", "unit = 1 if fine else ALIGNMENT_ELEMENTS", "unit = 1",
    ),
    "qsgd-clamp": ("scaling/aggregators/qsgd.py", "levels.clamp_(max=self.num_levels)", "levels"),
    "goes-along": (
        "scaling/analysis/decisions.py",
        "absolute.log_ratio * relative.log_ratio > 0 and abs(absolute",
        "abs(absolute",
    ),
    "tie-half": (
        "scaling/analysis/decisions.py",
        "abs(self.log_ratio) + half < math.log1p(within_ratio)",
        "abs(self.log_ratio) < math.log1p(within_ratio)",
    ),
    "detectable-alone": (
        "scaling/analysis/comparison.py",
        "self.level / max(1, self.num_tests)",
        "self.level",
    ),
    "no-shrinkage": ("scaling/prediction/fitting.py", "(share * log, math.sqrt", "(log, math.sqrt"),
    "plain-loss": ("scaling/prediction/fitting.py", "_soft(off / sds)", "off / sds"),
    "no-requeue": ("launchers/slurm.py", '        "--requeue",\n', ""),
    "no-kill": (
        "launchers/processes.py",
        "for number in (signal.SIGTERM, signal.SIGKILL):",
        "for number in (signal.SIGTERM,):",
    ),
}  # fmt: skip
"""Faults put in by hand that no test found once: file, text, what replaces it."""


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes:
        id: number in the draw, or name.
        kind, file, line, was, now: the mutant.
        outcome: killed, timed out or survived.
        killed_by: the first test that failed, or that did not end.
        scope: the stage that found it; else all or limit: whether all tests were run.
        tests: that were run.
        seconds: that they took.
        commit: the last one that changed the core.
    """

    id: str
    kind: str
    file: str
    line: int
    was: str
    now: str
    outcome: str
    killed_by: str
    scope: str
    tests: int
    seconds: float
    commit: str


def named_mutants(root: Path) -> dict[str, Mutant]:
    """Those of NAMED; each text is in its file once."""
    found = {}
    for name, (file, was, now) in NAMED.items():
        source = (root / file).read_text(encoding="utf-8")
        if source.count(was) != 1:
            raise SystemExit(f"{name}: {file} has {source.count(was)} times {was!r}; once is needed")
        start = len(source[: source.index(was)].encode())
        line = source[: source.index(was)].count("\n") + 1
        found[name] = Mutant("by hand", file, start, start + len(was.encode()), line, was, now)
    return found


def try_mutant(
    root: Path,
    name: str,
    mutant: Mutant,
    stages: Mapping[str, Sequence[str]],
    commit: str,
    patience: float = 1.0,
) -> Result:
    """Puts the mutant into the checkout, runs the stages' tests, and takes it out again."""
    path = root / mutant.file
    source, began, tests = path.read_bytes(), time.monotonic(), 0
    outcome, scope = Outcome("survived", "", True, 0), "all" if set(stages) == set(STAGES) else "limit"
    try:
        _write(path, mutant.apply(source))
        for stage, files in stages.items():
            outcome = run_tests(root, files, STAGES[stage], patience)
            tests += outcome.tests
            if outcome.outcome != "survived":
                scope = stage
                break
            scope = scope if outcome.complete else "limit"
    finally:
        _write(path, source)
    seconds = round(time.monotonic() - began, 1)
    columns = (
        mutant.kind,
        mutant.file,
        mutant.line,
        " ".join(mutant.was.split()),
        " ".join(mutant.now.split()),
    )
    return Result(name, *columns, outcome.outcome, outcome.killed_by, scope, tests, seconds, commit)


def _write(path: Path, source: bytes) -> None:
    """The file, without what was compiled of it: another text may be as long and as old to the second."""
    path.write_bytes(source)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def believed(root: Path, results: Sequence[Result]) -> list[Result]:
    """The results, of which those by tests that fail without a mutant too are doubtful."""
    broken: set[str] = set()
    for name, stage in STAGES.items():
        killers = {result.killed_by for result in results if result.scope == name} - {NO_TEST}
        while broken_now := run_tests(root, sorted(killers - broken), stage, patience=20.0).killed_by:
            broken.add(broken_now)
    return [
        replace(result, outcome="doubtful") if result.killed_by in broken else result for result in results
    ]


@contextmanager
def checkout(repository: Path) -> Iterator[Path]:
    """HEAD, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "tree"
        git = ["git", "-C", str(repository), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(root)], check=True)
        try:
            yield root
        finally:
            subprocess.run([*git, "remove", "--force", str(root)], check=True)


def read_results(path: Path | None) -> dict[str, Result]:
    """Id -> row of a table that was written before."""
    if path is None or not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: Result(**row) for row in csv.DictReader(file)}  # type: ignore[arg-type]


def write_results(path: Path | None, results: Mapping[str, Result]) -> None:
    """The table, in the order of the draw, those by hand last."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = sorted(
        results.values(),
        key=lambda mutant: (
            not mutant.id.isdecimal(),
            int(mutant.id) if mutant.id.isdecimal() else 0,
            mutant.id,
        ),
    )
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Result)], lineterminator="\n")
        table.writeheader()
        table.writerows(asdict(row) for row in rows)


def main() -> None:
    """Runs the mutants; exit code 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", default="", help="ids, separated by commas: numbers of the draw, names")
    parser.add_argument(
        "--tests", nargs="*", help="these test files or folders in place of those that see it"
    )
    parser.add_argument("--out", type=Path, help="the table; rows that are there already stay, with --only")
    parser.add_argument("--stages", default=",".join(STAGES), help="which of them, separated by commas")
    parser.add_argument("--patience", type=float, default=1.0, help="what the time limits are multiplied by")
    parser.add_argument("--list", action="store_true", help="prints the mutants and runs nothing")
    asked = parser.parse_args()
    if absent := [name for name in asked.tests or () if not (REPOSITORY / name).exists()]:
        parser.error(f"no test file or folder {', '.join(absent)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the checkout is taken away
    with checkout(REPOSITORY) as root:
        drawn = draw(root, asked.seed, asked.count)
        mutants = {str(number): mutant for number, mutant in enumerate(drawn, 1)} | named_mutants(root)
        chosen = asked.only.split(",") if asked.only else list(mutants)
        if unknown := [name for name in chosen if name not in mutants]:
            parser.error(f"no mutant {', '.join(unknown)}; 1 to {asked.count}, {', '.join(NAMED)}")
        if asked.list:
            for name in chosen:
                mutant = mutants[name]
                place = f"{mutant.file}:{mutant.line}"
                print(f"{name}\t{mutant.kind}\t{place}\t{mutant.was!r} -> {mutant.now!r}")
            return
        words = ["git", "-C", str(root), "log", "-1", "--format=%h", "--", "scaling", "launchers"]
        commit = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
        tests, results = Tests(root), read_results(asked.out) if asked.only else {}
        for name in chosen:
            stages = {"own": asked.tests} if asked.tests else tests.of(mutants[name].file)
            stages = {stage: files for stage, files in stages.items() if stage in asked.stages.split(",")}
            result = results[name] = try_mutant(root, name, mutants[name], stages, commit, asked.patience)
            killed_by = result.killed_by or result.scope
            words = [name, result.outcome, f"{result.file}:{result.line}", killed_by, f"{result.seconds:g} s"]
            print("\t".join(words), flush=True)
            write_results(asked.out, results)
        results |= {result.id: result for result in believed(root, [results[name] for name in chosen])}
        write_results(asked.out, results)
    survived = [name for name in chosen if results[name].outcome in ("survived", "doubtful")]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed; survived: {', '.join(survived) or 'none'}")
    sys.exit(bool(survived))


if __name__ == "__main__":
    main()
