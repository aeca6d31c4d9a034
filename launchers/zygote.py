"""A zygote: one process that has imported everything a worker needs, and forks the workers of each launch.

It (`scaling.runtime.zygote`) gets a launch as a line of JSON and forks its leader, with a session of its own,
which forks the ranks. All that is heard of a launch comes over one pipe, whose end says that both are gone.
The zygote dies with the command, the leader with it, and the ranks with the leader (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launchers import processes
from launchers.base import THIS_ENVIRONMENT, LaunchSpec, WorkerEnvironment

SERVER = "scaling.runtime.zygote"
PROGRAM = f"""
import os, sys
reports = os.dup(1)
os.dup2(2, 1)
if sys.path[:1] == [""]:
    sys.path.pop(0)
if root := sys.argv.pop(1):
    sys.path.insert(0, root)
    import launchers, scaling, topologies
    sys.path.remove(root)
sys.path.append(os.getcwd())
from {SERVER} import main
os.dup2(reports, 1)
main()
"""
"""Starts it: it imports the command's own code, what is installed, and last what the working folder has,
where a file may be called numpy.py. Only reports go to the pipe."""

COMMAND_LINE_ROOM = " " * 4096
"""An argument of no meaning: ranks overwrite the command line that they share with their own."""

START_LIMIT_S = 300.0

STARTED_AT_ONCE = 4  # zygotes that import at the same time, before the first launch: those of so many repeats


class ZygoteError(RuntimeError):
    """The zygote cannot start, or refuses to fork; with what it printed."""


def killed_text(what: str, pid: int, number: int) -> str:
    """`the zygote (pid 12) was ended by SIGKILL`."""
    return f"{what} (pid {pid}) was ended by {signal.Signals(number).name}"


class ForkedLaunch:
    """As `subprocess.Popen` of a launcher's process. `pid`: of the leader, also the process group of the
    ranks; `rank_pids`: empty until all are forked; `rank_codes`: of those that have ended; `returncode`: of
    the rank that failed first, or 0; `killed`: what was killed that is no rank, and by which signal."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid
        self.rank_pids: list[int] = []
        self.rank_codes: dict[int, int] = {}
        self.returncode: int | None = None
        self.killed: str | None = None

    def poll(self) -> int | None:
        return self._hear(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Raises subprocess.TimeoutExpired: it has not come within `timeout` seconds."""
        until = float("inf") if timeout is None else time.monotonic() + timeout
        while (code := self._hear(min(1.0, max(0.0, until - time.monotonic())))) is None:
            if time.monotonic() >= until:
                raise subprocess.TimeoutExpired(f"launch {self.pid}", timeout or 0.0)
        return code

    def _hear(self, limit_s: float) -> int | None:
        while self.returncode is None and (report := self._zygote.hear(limit_s)) is not None:
            if "ranks" in report:
                self.rank_pids = report["ranks"]
            elif "rank" in report:
                self.rank_codes[report["rank"]] = report["code"]
            elif "leader_killed" in report:
                self.killed = killed_text("the leader of the launch", self.pid, report["leader_killed"])
            elif "ended" in report:
                self.returncode = report["ended"]
                self.killed = self._zygote.killed or self.killed
        return self.returncode


class Zygote:
    """Starting it returns at once. `modules`: what workers run and what else is to be imported."""

    def __init__(self, modules: Sequence[str], environment: WorkerEnvironment = THIS_ENVIRONMENT) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `close`)
        # BLAS libraries make their threads when they are loaded; a zygote has one thread.
        one_thread = {"OPENBLAS_NUM_THREADS": "1"}
        is_own = environment.python == sys.executable and environment.folder is None
        root = str(Path(__file__).parents[1]) if is_own else ""
        self._process = subprocess.Popen(
            [environment.python, "-u", "-c", PROGRAM, root, ",".join(modules), COMMAND_LINE_ROOM],
            env={**environment.variables_from(os.environ), **one_thread},
            cwd=environment.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C reaches the command alone
            preexec_fn=processes.killed_with_parent,  # noqa: PLW1509 (one system call)
        )
        self._heard = b""
        self._is_over = False
        self._has_imported = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def killed(self) -> str | None:
        if not self._is_over:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            if (code := self._process.wait(processes.GRACE_S)) < 0:
                return killed_text("the zygote that forks the workers", self.pid, -code)
        return None

    @property
    def is_alive(self) -> bool:
        return not self._is_over and self._process.poll() is None

    def launch(self, spec: LaunchSpec, environment: Mapping[str, str], log: Path) -> ForkedLaunch:
        """Those of the one before have ended. `environment`: all of the workers'; what libraries read when
        they are loaded is the zygote's. ZygoteError: it is gone or refuses; nothing was started."""
        request = {
            "world_size": spec.world_size,
            "threads": spec.threads,
            "module": spec.module,
            "arguments": list(spec.arguments),
            "environment": dict(environment),
            "log": str(log.absolute()),
        }
        try:
            self.wait_until_imported()
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # heard below
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            report = self.hear(START_LIMIT_S)
        except BaseException:
            self.close()  # with whatever it was about to start
            raise
        if report is None or "leader" not in report or "ended" in report:
            why = (report or {}).get("refused") or self._last_words()
            self.close()
            raise ZygoteError(f"workers cannot be forked: {why}; --launcher torchrun starts them without")
        return ForkedLaunch(self, report["leader"])

    def wait_until_imported(self) -> None:
        if not self._has_imported:
            report = self.hear(START_LIMIT_S)
            self._has_imported = report is not None and "imported" in report

    def hear(self, limit_s: float) -> dict[str, Any] | None:
        """The next report, as soon as it is there; None after that time. At the end: `{"ended": ...}`."""
        until = time.monotonic() + limit_s
        pipe = self._process.stdout
        assert pipe is not None
        while b"\n" not in self._heard or not self._heard.startswith(b"{"):
            noise, end, rest = self._heard.partition(b"\n")
            if end and not noise.startswith(b"{"):  # printed as Python itself started
                self._heard = rest
                continue
            if self._is_over or pipe.closed:
                return {"ended": -signal.SIGKILL}
            if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
                return None
            read = os.read(pipe.fileno(), 65536)
            self._is_over = not read
            self._heard += read
        line, _, self._heard = self._heard.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        if self._process.stdout is None or self._process.stdout.closed:
            return
        self._process.kill()
        self._process.wait()
        self._heard = b""
        until = time.monotonic() + 2 * processes.GRACE_S
        while not self._is_over and time.monotonic() < until:
            if self.hear(0.1) is None:
                continue
        for stream in (self._process.stdin, self._process.stdout, self._said):
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"the zygote ended with exit code {self._process.poll()}"


class Zygotes:
    """Those of one command: one a repeat, so that repeats share neither addresses nor hash seeds."""

    def __init__(self, modules: Sequence[str], environment: WorkerEnvironment = THIS_ENVIRONMENT) -> None:
        self._modules = list(modules)
        self._environment = environment
        self._zygote: Zygote | None = None
        self._repeat: int | None = None
        self._prepared: list[Zygote] = []

    def begin(self, num_repeats: int = 1) -> None:
        """They import at once. One that has forked already, a trial's, is the first repeat's."""
        num_started = len(self._prepared) + (self._zygote is not None)
        for _ in range(num_started, min(num_repeats, STARTED_AT_ONCE)):
            self._prepared.append(Zygote(self._modules, self._environment))

    def begin_more(self, num_repeats: int) -> None:
        if self._prepared:
            self.begin(num_repeats)

    def wait_until_imported(self) -> None:
        for prepared in self._prepared:
            prepared.wait_until_imported()

    def launch(
        self,
        repeat: int,
        spec: LaunchSpec,
        environment: Mapping[str, str],
        log: Path,
        *,
        others_may_import: bool = False,
    ) -> ForkedLaunch:
        if self._zygote is None or self._repeat != repeat or not self._zygote.is_alive:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None
            self.begin()
            self._zygote, self._repeat = self._prepared.pop(0), repeat
        if not others_may_import:
            self.wait_until_imported()
        return self._zygote.launch(spec, environment, log)

    def close(self) -> None:
        for zygote in filter(None, (*self._prepared, self._zygote)):
            zygote.close()
        self._prepared.clear()
        self._zygote = self._repeat = None
