"""Shared set-up of the tests."""

import ctypes
import gc
import importlib.util
import math
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import hypothesis
import numpy as np
import pytest
import typer.main

from tests.waiting import LIMIT_S

# Ranks are threads here: one OpenMP thread each, or they wait for one another's pools.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Threads that play ranks come and go, and each would keep memory of its own. A started process reads this.
os.environ.setdefault("MALLOC_ARENA_MAX", "2")
# The figures are drawn to files.
os.environ.setdefault("MPLBACKEND", "Agg")

# The same cases every time, and no folder of hypothesis's own; a machine under load is no failure.
EASE: dict[str, Any] = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, max_examples=50, **EASE)
hypothesis.settings.load_profile("fixed")
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.devnull)

# A shell without job control starts background work with Ctrl-C ignored, and so do its children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SKIP_NOTHING_VARIABLE = "SCALING_TEST_EVERYTHING"
"""Set where a missing launcher is a failure and no reason to leave its tests out, as in CI."""

NUM_GPUS_VARIABLE = "SCALING_TEST_GPUS"
"""Set to a number where a test that needs no more GPUs than that fails when it would be left out."""

NEED_PROGRAMS = {"need", "mpirun", "openmpi", "system_openmpi", "mpich", "horovodrun"}
"""Fixtures of tests that need what `make test` does not install."""

LAUNCHER_PROGRAMS = {"torch.distributed.run", "torchrun", "mpirun", "mpiexec", "horovodrun", "srun"}
WORKER_PROGRAMS = {*LAUNCHER_PROGRAMS, "scaling.worker"}
"""What starts worker processes, and a worker itself, as words of a command."""

SLURM = "tests/slurm"
"""Its tests share a cluster: jobs meet at ports that follow from their numbers, so that two would collide."""


@pytest.fixture
def named_by_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of any `module:attribute` may be imported, as if a study file of the user's own named it."""
    every_name = MagicMock(**{"__contains__.return_value": True})
    monkeypatch.setattr("scaling.registry._OWN_CODE", every_name)


def need(what: object, reason: str) -> None:
    """Leaves a test out, or fails it, where `what` is not there."""
    if not what:
        (pytest.fail if os.environ.get(SKIP_NOTHING_VARIABLE) else pytest.skip)(reason)


def _num_gpus_promised() -> int:
    said = os.environ.get(NUM_GPUS_VARIABLE, "0")
    if not said.isdecimal():
        raise pytest.UsageError(f"{NUM_GPUS_VARIABLE} is {said!r}; it takes a number of GPUs, as 2")
    return int(said)


def _num_gpus_needed(item: pytest.Item) -> int:
    """`gpu` is one, `gpu(2)` two; a test may bear several of these marks."""
    return max(((*mark.args, 1)[0] for mark in item.iter_markers("gpu")), default=0)


@cache
def _num_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def pytest_configure(config: pytest.Config) -> None:
    _num_gpus_promised()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what needs more GPUs than there are, before anything is made for it."""
    needed = _num_gpus_needed(item)
    if needed and _num_gpus() < needed:
        pytest.skip(f"needs {needed} GPU(s), and torch sees {_num_gpus()}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where GPUs are promised, a test of so many that is left out has failed, for whatever reason."""
    report = yield
    is_left_out = report.skipped and not hasattr(report, "wasxfail")
    if is_left_out and 0 < _num_gpus_needed(item) <= _num_gpus_promised():
        reason: Any = report.longrepr  # file, line, why
        report.outcome = "failed"
        report.longrepr = f"{NUM_GPUS_VARIABLE}={_num_gpus_promised()}, and this was {reason[2]}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _where_and_with_what(
    request: pytest.FixtureRequest, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """Writes the date, the commit, the hardware and the versions into a junit file (`--junitxml`)."""
    if not request.config.getoption("xmlpath"):
        return
    from scaling.measure import environment

    seen = environment.collect()
    git = seen["git"] or {"commit": "unknown", "dirty": "unknown"}
    facts = {
        **{"commit": git["commit"], "files differ from the commit": git["dirty"]},
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": f"{seen['cpu']['usable_cores']} cores of {seen['cpu']['model']}",
        "gpus": ", ".join(gpu["name"] for gpu in seen["gpus"]) or "none",
        **{**seen["versions"], **seen["settings"]},
        NUM_GPUS_VARIABLE: os.environ.get(NUM_GPUS_VARIABLE, "not set"),
    }
    for name, value in facts.items():
        record_testsuite_property(name, value)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Gives out whole files, so that a module's fixture is made once; Slurm's are one, as its cluster is."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return SLURM if nodeid.startswith(f"{SLURM}/") else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # the order is that of `pytest_collection_modifyitems`
    return ByFile(config, log)


def _values(item: pytest.Item) -> set[tuple[str, str]]:
    callspec = getattr(item, "callspec", None)
    return {(name, str(value)) for name, value in callspec.params.items()} if callspec else set()


def _draw(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is `sampled(n)` one in n stays in `make test`, drawn by the test's name.

    `make test-all` adds others until each value of each parameter is in a case; what is left, which joins
    values that have all been seen, is `every_case`.
    """
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("gpu"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, of_test in cases.items():
        (one_in,) = of_test[0].get_closest_marker("sampled").args  # type: ignore[union-attr]
        num_kept = math.ceil(len(of_test) / one_in)
        seen: set[tuple[str, str]] = set()
        for number, item in enumerate(random.Random(test).sample(of_test, len(of_test))):
            if number >= num_kept:
                item.add_marker("quality" if _values(item) - seen else "every_case")
            seen |= _values(item)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs other programs, and puts the longest files first: none is waited for at the end."""
    _draw(items)
    for item in items:
        if NEED_PROGRAMS & set(getattr(item, "fixturenames", ())):
            item.add_marker("programs")
    if not hasattr(config, "workerinput"):
        return

    def files_with(marker: str) -> set[Path]:
        return {item.path for item in items if item.get_closest_marker(marker)}

    slurm, started = files_with("slurm"), files_with("processes") | files_with("programs")
    items.sort(key=lambda item: (item.path not in slurm, item.path not in started))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The thousands of tests and all modules stay: the garbage collector need not look at them again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


HOW_TO_RUN = {
    **{"gpu": "on a machine with GPUs: pytest -m gpu", "slurm": "make test-all, as root"},
    **dict.fromkeys(("programs", "processes", "quality"), "make test-all"),
    "every_case": "pytest -m every_case",
}
_left_out: Counter[str] = Counter()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts what `-m` leaves out, by the first of its marks."""
    marks = (next((name for name in HOW_TO_RUN if item.get_closest_marker(name)), "") for item in items)
    _left_out.update(mark for mark in marks if mark)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Every process of pytest-xdist has counted all of them; what was frozen is freed in order at its end."""
    gc.unfreeze()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    for mark, number in getattr(node, "workeroutput", {}).get("left_out", {}).items():
        _left_out[mark] = number


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line a kind of what was not run, and how to have it run."""
    for mark, how in HOW_TO_RUN.items():
        if _left_out[mark]:
            terminalreporter.line(f"not run: {_left_out[mark]} tests marked {mark!r}; {how}")


def _refuse_workers(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: a test that `make test` runs starts no workers."""
    if event == "subprocess.Popen" and _own_process_only:
        program, words = arguments[0], arguments[1]
        named = {Path(os.fsdecode(word)).name for word in (program, *words) if word is not None}
        # Asking a launcher for its version starts nothing.
        if "--version" not in named and (wrong := named & WORKER_PROGRAMS):
            raise RuntimeError(f"starts {', '.join(wrong)}: mark this test `processes`")


_own_process_only: list[str] = []
"""The test that runs, where it is one that starts no workers."""
sys.addaudithook(_refuse_workers)


@pytest.fixture(scope="session", autouse=True)
def _made_once() -> Generator[None]:
    """The command line's commands, which nothing changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module", autouse=True)
def _memory_is_given_back() -> Generator[None]:
    """What a module's tests freed goes back to the machine: hundreds of MB stay with glibc otherwise.

    What is left is looked at by no later collection: code that measures makes a full one each time.
    """
    yield
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    """What a test draws without a generator of its own is the same in any order."""
    import torch  # after the number of its threads is set, above

    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():  # else torch writes down the stack of each such call
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _starts_no_workers_unless_marked(request: pytest.FixtureRequest) -> Generator[None]:
    marks = {mark.name for mark in request.node.iter_markers()}
    if not marks & {"processes", "programs", "slurm", "gpu"}:
        _own_process_only.append(request.node.nodeid)
    yield
    _own_process_only.clear()


@dataclass(frozen=True)
class HandLauncher:
    """What a user types before `python -m scaling.worker`.

    Attributes:
        name: what a run's record says of it.
        program: its command.
        options: before the number of workers.
        environment: variables that it needs on a machine like this.
    """

    name: str
    program: str
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    def run(self, world_size: int, *words: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
        """Starts that many processes of `python *words`, and waits for them."""
        process = self.start(world_size, *words, **keywords)
        try:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.communicate(timeout=LIMIT_S)
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def start(self, world_size: int, *words: str, **keywords: Any) -> "subprocess.Popen[str]":
        """The same, in the background."""
        environment = {**os.environ, **dict(self.environment), **keywords.pop("env", {})}
        command = [self.program, *self.options, "-np", str(world_size), sys.executable, *words]
        keywords = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **keywords}
        return subprocess.Popen(command, env=environment, text=True, **keywords)


def _mpi_program(name: str) -> str | None:
    if name == "mpich":
        own = Path(sys.prefix) / "mpich" / "bin" / "mpiexec"  # `make test-all` puts it there
        return str(own) if own.exists() else shutil.which("mpiexec.hydra")
    if name != "openmpi":
        found = shutil.which("mpirun.openmpi")  # Debian's name for it
        return found if found and not Path(found).is_relative_to(sys.prefix) else None
    own = Path(sys.prefix) / "bin" / "mpirun"
    for place in (str(own), shutil.which("mpirun"), shutil.which("mpirun.openmpi")):
        if place and Path(place).exists():
            told = subprocess.run([place, "--version"], capture_output=True, text=True, timeout=LIMIT_S)
            if "Open MPI" in told.stdout:
                return place
    return None


def _hand_launcher(name: str) -> HandLauncher:
    if name == "horovodrun":
        need(importlib.util.find_spec("horovod"), "Horovod is not installed; `make horovod` builds it")
        program = str(Path(sys.executable).with_name("horovodrun"))
        return HandLauncher(name, program, ("--gloo",))
    need(importlib.util.find_spec("mpi4py"), "mpi4py is not installed; pip install 'scaling-study[mpi]'")
    program = _mpi_program(name) or ""
    need(program, f"{name} is not installed; `make test-all` installs it where it can")
    if name == "mpich":
        return HandLauncher(name, program)
    as_root = tuple((f"OMPI_ALLOW_RUN_AS_ROOT{end}", "1") for end in ("", "_CONFIRM"))
    return HandLauncher("openmpi", program, ("--oversubscribe",), as_root)


_need = pytest.fixture(lambda: need, name="need", scope="session")


class Call:
    """call(*words): runs `scaling *words` in this process and an empty folder: exit code, stdout, stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        from scaling.cli import main

        self._monkeypatch.setattr(sys, "argv", ["scaling", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
            raise SystemExit(0)
        captured = self._capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    def refused(self, *words: object) -> str:
        """What is said of input that is bad: one message, exit code 2."""
        code, out, err = self(*words)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        return err

    def printed(self, *words: object) -> str:
        """What it prints where nothing is wrong."""
        code, out, err = self(*words)
        assert code == 0, err
        return out


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    monkeypatch.chdir(tmp_path)
    return Call(monkeypatch, capsys)


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports draw nothing: for tests of their text and tables."""
    monkeypatch.setattr("scaling.report.write.draw_figures", lambda *_: ([], []))


@pytest.fixture(params=["openmpi", "mpich"])
def mpirun(request: pytest.FixtureRequest) -> HandLauncher:
    """Each MPI on this machine."""
    return _hand_launcher(request.param)


def _fixture_of(fixture: str, launcher: str) -> Any:
    return pytest.fixture(lambda: _hand_launcher(launcher), name=fixture)


openmpi, mpich, horovodrun = (_fixture_of(name, name) for name in ("openmpi", "mpich", "horovodrun"))
system_openmpi = _fixture_of("system_openmpi", "Debian's Open MPI")  # beside that of the package index
