"""The other environment of `scaling run --against`: variables, a virtual environment or other code."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launchers.base import WorkerEnvironment
from launchers.rank_info import TABLES
from scaling.errors import LaunchError
from scaling.files.redaction import redacted_command
from scaling.store.files import part_of
from scaling.study.cell import ResolvedStudy

ALLOWED = "env:NAME=VALUE [NAME=VALUE ...], venv:FOLDER, checkout:FOLDER or commit:REVISION"

SET_BY_LAUNCHES = frozenset(
    {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GLOO_SOCKET_IFNAME", "MASTER_ADDR", "MASTER_PORT"}
).union(*(table.values() for table in TABLES.values()))
"""Variables that each launch sets itself."""

MOST_CELLS_NAMED = 3


@dataclass(frozen=True)
class OtherEnvironment:
    """One that a campaign compares with the command's own. `name`: as it is recorded of runs: what was asked
    for, with whole paths and commits; `workers`: what its workers are started with."""

    name: str
    workers: WorkerEnvironment


def other_environment(text: str, out: Path) -> OtherEnvironment:
    """What `--against` names. `text`: `KIND:WHAT` (`ALLOWED`); `out`: folder of the campaign, where a commit
    is checked out. Raises LaunchError: it is none of what is allowed, or there is no such thing."""
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
    root = Path(_git(what, "rev-parse", "--show-toplevel"))
    commit = _git(what, "rev-parse", "--verify", "--end-of-options", f"{what}^{{commit}}")
    clone = part_of(out.absolute(), f"commit-{commit[:12]}")
    if not (clone / ".git").exists():
        out.mkdir(parents=True, exist_ok=True)
        _git(what, "clone", "--quiet", "--shared", "--no-checkout", str(root), str(clone))
    _git(what, "-C", str(clone), "checkout", "--quiet", "--detach", commit)
    folder = clone / Path.cwd().resolve().relative_to(root.resolve())
    if not folder.is_dir():
        raise LaunchError(f"--against commit:{what}: the commit has no {folder.relative_to(clone)}")
    return OtherEnvironment(f"commit:{commit[:12]}", _imports_from(folder))


def _git(what: str, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise LaunchError(f"--against commit:{what}: git is not installed") from None
    except subprocess.CalledProcessError as error:
        raise LaunchError(
            f"--against commit:{what}: git says {_last_line(error.stderr)!r}; name a commit, tag or branch "
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
    """Has the other environment resolve the study: it must be able to, and must find the same cells. `out`:
    results folder of the other environment; `resolved`: what this environment makes of it. Raises
    LaunchError: why it cannot, or which cells differ."""
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
    further = [_named(cell) for key, cell in their_cells.items() if key not in resolved.cells]
    if missing or further:
        raise LaunchError(
            f"{other.name} makes other cells of the study; here alone: {_listed(missing)}; there alone: "
            f"{_listed(further)}. Name what both can run (`world_sizes`, `workloads`, `aggregators`)"
        )


def _named(cell: Mapping[str, object]) -> str:
    names = ("kind", "model", "aggregator_label", "step", "world_size", "device")
    return ", ".join(f"{name} {cell[name]}" for name in names if cell.get(name) is not None)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_CELLS_NAMED
    shown = [*names[:MOST_CELLS_NAMED], *([f"{more} more"] if more > 0 else [])]
    return " | ".join(shown) or "none"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("error: ") if lines else "nothing was printed"
