"""Runs the real command in real processes, and sees to it that none is left."""

import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaling.cli import main
from scaling.store import ResultsFolder
from tests.ranks import kept_zygote
from tests.waiting import LIMIT_S, still_there, wait_until

HERE = Path(__file__).parent
SYNTHETIC = {
    "model": {"name": "mlp", "hidden": [16]},
    "dataset": {"name": "synthetic", "input_shape": [20], "num_classes": 3},
    "global_batch": 16,
}


def trained(name: str, hidden: int = 8, batch: int = 256, **keys: Any) -> dict[str, Any]:
    """A study that trains for an epoch on two processes."""
    workload = {"model": {"name": "mlp", "hidden": [hidden]}, "dataset": "digits", "global_batch": batch}
    made: dict[str, Any] = {"name": name, "kind": "convergence", "device": "cpu", "workloads": [workload]}
    made |= {"world_sizes": [2], "scaling": "strong", **keys}
    return {"epochs": 1, **made} if made["kind"] == "convergence" else made


def ended_well(done: "subprocess.CompletedProcess[str]") -> "subprocess.CompletedProcess[str]":
    """The same command, whose exit code is 0."""
    assert done.returncode == 0, done.stderr
    return done


class Scaling:
    """The `scaling` command on one study file and one results folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.study = folder / "study.yaml"
        self._command: subprocess.Popen[str] | None = None
        known_path = filter(None, [os.environ.get("PYTHONPATH")])
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE), *known_path])
        self.environment = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "Agg"}

    def write(self, study: dict[str, Any]) -> None:
        self.study.write_text(yaml.safe_dump(study))

    def rows(self, name: str = "summary.csv") -> list[dict[str, str]]:
        """Of a table in the results folder."""
        return list(csv.DictReader((self.out / name).read_text().splitlines()))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`scaling run` to its end."""
        process = self.start(*arguments, **environment)
        stdout, stderr = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def run_here(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same in this process, so that neither the command nor its zygote imports torch once more."""
        return self.here("run", str(self.study), "--out", str(self.out), *arguments, **environment)

    def here(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Another verb in this process."""
        words = ["scaling", *arguments]
        out, err, code = io.StringIO(), io.StringIO(), 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            for name, value in {**self.environment, **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "path", [*self.environment["PYTHONPATH"].split(os.pathsep), *sys.path])
            patch.setattr(sys, "argv", words)
            patch.setattr("scaling.registry._OWN_CODE", set())
            patch.setattr("launchers.zygote.Zygote", kept_zygote)
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """`scaling run`, in the background."""
        words = ["run", str(self.study), "--out", str(self.out), *arguments]
        place: dict[str, Any] = {"cwd": self.folder, "env": {**self.environment, **environment}}
        place |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._command = subprocess.Popen([sys.executable, "-m", "scaling", *words], **place, text=True)
        return self._command

    def ended(self, command: Sequence[str], **environment: str) -> subprocess.CompletedProcess[str]:
        """Any command, run to its end in the study's folder."""
        place: dict[str, Any] = {"cwd": self.folder, "env": {**self.environment, **environment}}
        return subprocess.run(command, **place, capture_output=True, text=True, timeout=LIMIT_S)

    def torchrun(self, world_size: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Workers under a torchrun written by hand."""
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world_size}"]
        command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1"]
        command += ["-m", "scaling.worker", str(self.study), "--out", str(self.out), *arguments]
        return self.ended(command)

    def results(self) -> ResultsFolder:
        return ResultsFolder(self.out)

    def states(self) -> dict[tuple[str, int, int], str]:
        """(aggregator, world size, repeat) -> state."""
        return {
            (record.cell["aggregator_label"], record.cell["world_size"], record.repeat): record.state
            for record in self.results().runs()
        }

    def samples(self) -> dict[str, str]:
        """Every sample file with its text."""
        return {str(path): path.read_text() for path in sorted(self.out.glob("runs/*/*/rank*.jsonl"))}

    def processes(self, word: str = "scaling.worker") -> list[int]:
        """Pids of living processes whose command line has both `word` and this results folder."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().decode(errors="replace").split("\0")
                alive = "Z" not in (path.parent / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if alive and word in words and str(self.out) in words:
                found.append(int(path.parent.name))
        return found

    def wait_for_worker(self, state: str = "running") -> int:
        """Waits until a run is in that state; returns a worker's pid (not torchrun's)."""
        return self.wait(lambda: self._worker_in(state))

    def _worker_in(self, state: str) -> int | None:
        if not self.results().exists() or state not in self.states().values():
            return None
        launchers = set(self.processes("torch.distributed.run"))
        return max([pid for pid in self.processes() if pid not in launchers], default=None)

    def wait(self, condition):
        """Waits for a true value while the command in the background runs, and returns it."""

        def seen():
            command = self._command
            ended = command and command.poll() is not None  # before the look: it may end in between
            value = condition()
            if command and ended and not value:
                pytest.fail(f"the command ended before: {command.communicate()[1]}")
            return value

        return wait_until(seen)


@pytest.fixture
def scaling(tmp_path):
    """A Scaling in a folder of its own; fails if it leaves a process behind."""
    command = Scaling(tmp_path)
    yield command
    left = still_there(command.processes)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} were left behind"
