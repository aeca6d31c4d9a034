"""Two environments in one campaign, as `scaling run --against` names them: their launches take turns.

Both have a results folder: A is the command's environment, B the other one. The cells are the same. Of each
launch one environment's is run right after the other's; which goes first is drawn for every second repeat,
and the other way in the next. The records then get the campaign's id: `compare` takes them as pairs. A pair
that was cut in two is measured again in both.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.base import WorkerEnvironment
from launchers.rank_info import TABLES
from scaling.errors import LaunchError, StoreError
from scaling.files.redaction import redacted_command
from scaling.store import ResultsFolder, RunRecord
from scaling.store.files import part_of
from scaling.study.cell import ResolvedStudy
from scaling.study.launches import Launch
from scaling.study.run import ProgressListener, StudyRun

SIDES = ("a", "b")  # names of the folders, in the order in which `compare` takes them
THIS = "this environment"  # what is recorded of the runs of A


@dataclass(frozen=True)
class Campaign:
    a: ResultsFolder  # a, b: of the command's environment and of the other one
    b: ResultsFolder
    id: str  # equal in the records of all pairs
    other: str  # name of the environment of b

    @classmethod
    def of(cls, a: ResultsFolder, b: ResultsFolder, other: str) -> Campaign:
        """That which the folders hold, or a new one. Raises StoreError: theirs is of another environment."""
        marks = {
            (record.launch["campaign"], record.launch.get("environment"))
            for record in b.runs()
            if "campaign" in record.launch
        }
        for _, name in marks:
            if name != other:
                raise StoreError(
                    f"{b.path} was measured in {name}, and --against names {other}; use another --out"
                )
        return cls(a, b, min(marks)[0] if marks else secrets.token_hex(6), other)

    def measure_halves_again(self) -> int:
        """Plans runs again that are done in one environment and left to do in the other; how many."""
        folders = (self.a, self.b)
        records = [{(run.cell_id, run.repeat): run for run in folder.runs()} for folder in folders]
        again = []
        for key in {**records[0], **records[1]}:
            pair = [(folder, runs[key]) for folder, runs in zip(folders, records, strict=True) if key in runs]
            states = [record.state for _, record in pair]
            is_whole = states == ["done", "done"] and all(self._is_marked(record) for _, record in pair)
            if not is_whole and "failed" not in states:
                again += [(folder, record) for folder, record in pair if record.state == "done"]
        for folder, record in again:
            folder.reset_run(record)
        return len(again)

    def mark(self) -> None:
        for folder, name in ((self.a, THIS), (self.b, self.other)):
            for record in folder.runs():
                if record.state == "done" and not self._is_marked(record):
                    record.launch |= {"campaign": self.id, "environment": name}
                    folder.write_run(record)

    def _is_marked(self, record: RunRecord) -> bool:
        return bool(record.launch.get("campaign") == self.id)


def run_campaign(a: StudyRun, b: StudyRun, campaign: Campaign) -> None:
    """Runs what is left in both environments, launch by launch; raises as `StudyRun.run` does."""
    for run in (a, b):
        run.begin()
    while launches := sorted([*a.launches(), *b.launches()], key=lambda launch: launch.repeat):
        first, which = launches[0], (launches[0].settings, launches[0].repeat)
        for run in (b, a) if other_goes_first(a.study.name, first) else (a, b):
            while to_run := [one for one in run.launches() if (one.settings, one.repeat) == which]:
                for side in (a, b):
                    side.zygotes.wait_until_imported()  # nothing is imported while something is timed
                run.run(to_run[0])
        campaign.mark()


def other_goes_first(study: str, launch: Launch) -> bool:
    """Whether B's launch comes before A's: drawn for even repeats, the other way in the odd one after it."""
    drawn = random.Random(f"{study} {launch.repeat // 2} {launch.settings}").random() < 0.5
    return drawn != bool(launch.repeat % 2)


@dataclass(frozen=True)
class SideProgress:
    """What one environment tells of how far both are. `other`: folder of the other one."""

    shown: ProgressListener
    name: str
    other: ResultsFolder

    def update(self, num_over: int, num_runs: int, current: str) -> None:
        num_over += sum(record.state in ("done", "failed") for record in self.other.runs())
        self.shown.update(num_over, 2 * num_runs, f"{self.name}, {current}")

    def say(self, message: str) -> None:
        self.shown.say(f"{self.name}: {message}")


ALLOWED = "env:NAME=VALUE [NAME=VALUE ...], venv:FOLDER, checkout:FOLDER or commit:REVISION"

SET_BY_LAUNCHES = frozenset(
    {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT"}
).union(*(table.values() for table in TABLES.values()))  # variables that each launch sets itself

MOST_CELLS_NAMED = 3


@dataclass(frozen=True)
class OtherEnvironment:
    """One that a campaign compares with the command's own."""

    name: str  # as it is recorded of runs: what was asked for, with whole paths and commits
    workers: WorkerEnvironment  # what its workers are started with


def other_environment(text: str, out: Path) -> OtherEnvironment:
    """What `--against` names (`ALLOWED`); `out`: for the checkout of a commit. LaunchError: there is none."""
    kind, separator, what = text.partition(":")
    if not separator or kind not in KINDS or not what.strip():
        raise LaunchError(f"--against {text!r} names no environment; allowed: {ALLOWED}")
    return KINDS[kind](what.strip(), out)


def _variables(what: str, _: Path) -> OtherEnvironment:
    try:
        words = shlex.split(what)
    except ValueError as error:
        raise LaunchError(f"--against env:{what}: {error}; quote values as in a shell") from None
    variables: dict[str, str | None] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            raise LaunchError(
                f"--against env:{what}: {word!r} sets no variable; allowed: NAME=VALUE, or NAME= to remove it"
            )
        if name in SET_BY_LAUNCHES:
            hint = "; use the study's `threads`" if name.endswith("NUM_THREADS") else ""
            raise LaunchError(f"--against env:{what}: each launch sets {name} itself{hint}")
        variables[name] = value or None
    name = redacted_command([f"{name}={value or ''}" for name, value in variables.items()])
    return OtherEnvironment(f"env:{name}", WorkerEnvironment(variables=variables))


def _virtual_environment(what: str, _: Path) -> OtherEnvironment:
    folder = Path(what).expanduser().absolute()
    python = folder / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise LaunchError(
            f"--against venv:{what}: there is no {python}; name the folder of a virtual environment"
        )
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    variables = {"PYTHONHOME": None, "VIRTUAL_ENV": str(folder), "PATH": path}
    return OtherEnvironment(f"venv:{folder}", WorkerEnvironment(str(python), variables=variables))


def _checkout(what: str, _: Path) -> OtherEnvironment:
    folder = Path(what).expanduser().absolute()
    if not folder.is_dir():
        raise LaunchError(f"--against checkout:{what}: {folder} is no folder; name one that has the code")
    return OtherEnvironment(f"checkout:{folder}", _imports_from(folder))


def _imports_from(folder: Path) -> WorkerEnvironment:
    """Python imports from the folder first, and what it lacks as the command does."""
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    path = os.pathsep.join(dict.fromkeys([str(folder), *known, str(Path.cwd())]))
    return WorkerEnvironment(folder=folder, variables={"PYTHONPATH": path})


def _commit(what: str, out: Path) -> OtherEnvironment:
    """A clone of the current folder's repository, with that commit checked out."""
    asked = f"--against commit:{what}"
    root = Path(git(asked, "rev-parse", "--show-toplevel"))
    commit = git(asked, "rev-parse", "--verify", "--end-of-options", f"{what}^{{commit}}")
    clone = part_of(out.absolute(), f"commit-{commit[:12]}")
    if not (clone / ".git").exists():
        out.mkdir(parents=True, exist_ok=True)
        git(asked, "clone", "--quiet", "--shared", "--no-checkout", str(root), str(clone))
    git(asked, "-C", str(clone), "checkout", "--quiet", "--detach", commit)
    folder = clone / Path.cwd().resolve().relative_to(root.resolve())
    if not folder.is_dir():
        raise LaunchError(f"{asked}: the commit has no {folder.relative_to(clone)}")
    return OtherEnvironment(f"commit:{commit[:12]}", _imports_from(folder))


def git(asked: str, *arguments: str) -> str:
    """What git prints; raises a LaunchError that begins with what the user asked for."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise LaunchError(f"{asked}: git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise LaunchError(
            f"{asked}: git says {_last_line(error.stderr)!r}; name a commit, tag or branch "
            "of the repository that the current folder belongs to"
        ) from None
    return done.stdout.strip()


KINDS: Mapping[str, Callable[[str, Path], OtherEnvironment]] = {
    "env": _variables,
    "venv": _virtual_environment,
    "checkout": _checkout,
    "commit": _commit,
}


def require_same_cells(
    other: OtherEnvironment, study: str, overrides: Sequence[str], out: Path, resolved: ResolvedStudy
) -> None:
    """Raises LaunchError where the other environment cannot resolve the study, or makes other cells of it."""
    workers = other.workers
    words = ["plan", study, *overrides, "--out", str(out.absolute()), "--json"]
    done = subprocess.run(
        [workers.python, "-m", "scaling", *words],
        cwd=workers.folder,
        env=workers.variables_from(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LaunchError(f"{other.name} cannot run the study: {_last_line(done.stderr)}")
    their_cells = {cell["id"]: cell for cell in json.loads(done.stdout)["cells"]}
    missing = [cell.describe() for key, cell in resolved.cells.items() if key not in their_cells]
    names = ("kind", "model", "aggregator_label", "step", "world_size", "device")
    further = [
        ", ".join(f"{name} {cell[name]}" for name in names if cell.get(name) is not None)
        for key, cell in their_cells.items()
        if key not in resolved.cells
    ]
    if missing or further:
        raise LaunchError(
            f"{other.name} makes other cells of the study; here alone: {_listed(missing)}; there alone: "
            f"{_listed(further)}. Name what both can run (`world_sizes`, `workloads`, `aggregators`)"
        )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_CELLS_NAMED
    shown = [*names[:MOST_CELLS_NAMED], *([f"{more} more"] if more > 0 else [])]
    return " | ".join(shown) or "none"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "nothing was printed"
