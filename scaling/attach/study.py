"""Runs all arms of a script in turn and writes what they gave."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from scaling.attach.answer import answer
from scaling.attach.arms import BUCKETS, ONCE, REPEATED, bucket_mb, confirming, order
from scaling.attach.findings import LEAST, findings, to_confirm
from scaling.attach.inside.cores import threads_that_fit
from scaling.attach.launch import run_arm, start_and_wait
from scaling.attach.measured import Measured
from scaling.attach.ranks import shares
from scaling.attach.records import AttachedFolder
from scaling.attach.trace import Traced, read_traces
from scaling.errors import AttachError

FINISHED = "finished"
"""In the folder of launches, once there are no more."""

TRACED_STEPS = 5
LONGEST_RATIO, LONGER_S = 3.0, 20.0
"""A run may take so many times what the first one took, and so much more: an arm that hangs is ended then."""

QUIET_S = 600.0
"""A node that joins gives up after so long without a run."""

MOST_FILES = 20_000
"""Files of the working folder that are compared before and after; of a folder with more, none is."""

_State = tuple[int, int, int]
"""A file's inode, bytes and when it was changed."""

_States = dict[str, _State]


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        command: of the user.
        arms: which of `scaling.attach.arms`.
        warmup, steps: of each run; the warm-up is left out.
        launches: of each repeated arm.
        deadline_s: of each run.
        seed: of the order.
        often: arms that run in every launch though they are not of those that do.
    """

    command: Sequence[str]
    arms: Sequence[str]
    warmup: int
    steps: int
    launches: int
    deadline_s: float
    seed: int = 0
    often: Sequence[str] = ()


def arms_of(names: str | None) -> tuple[list[str], list[str]]:
    """The arms of `a,b`, and those that run in every launch because they are named; all without a name.

    The baseline is always one.

    Raises:
        AttachError: a name is no arm's.
    """
    every = (*REPEATED, *ONCE)
    chosen = every if names is None else [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in chosen if name not in every]
    if wrong:
        raise AttachError(f"--arms: {wrong[0]!r} is none; allowed are {', '.join(every)}")
    often = [] if names is None else [name for name in chosen if name not in ("marked", "trace")]
    return [name for name in every if name in chosen or name == "baseline"], often


def attach(plan: Plan, out: Path, say: Callable[[str], None]) -> list[str]:
    """Runs the plan, writes the results folder `out`, and returns the answer's lines.

    Args:
        plan: what is run.
        out: of the results.
        say: takes a line a run.

    Raises:
        AttachError: the folder is not empty, or the first baseline cannot be measured.
    """
    settings = {"arms": list(plan.arms), "warmup": plan.warmup, "steps": plan.steps}
    folder = AttachedFolder(out, plan.command, {**settings, "launches": plan.launches})
    measured, cwd = Measured(), Path.cwd()
    (out / "launches").mkdir()
    before = _files(cwd, out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the script would go on without us
    try:
        traced = _run_all(plan, folder, measured, out, say)
    except KeyboardInterrupt:
        traced = None
        say("interrupted: what was measured until then")
        for arm in set(plan.arms) - measured.steps_s.keys():
            measured.reasons.setdefault(arm, "the runs were interrupted before")
    finally:
        (out / "launches" / FINISHED).touch()
    lines = answer(measured, traced)
    _say_files(measured, cwd, before, _files(cwd, out), say)
    folder.finish(lines)
    folder.folder.write_text("answer.txt", "\n".join(lines) + "\n")
    gains = [asdict(finding) for finding in findings(measured, traced)]
    folder.folder.write_text("findings.json", json.dumps(gains, indent=1) + "\n")
    return lines


def _run_all(
    plan: Plan, folder: AttachedFolder, measured: Measured, out: Path, say: Callable[[str], None]
) -> Traced | None:
    planned = order(plan.launches, plan.seed, plan.arms, plan.often)
    deadline_s, traced, began_s, position = plan.deadline_s, None, time.time(), 0
    failed, is_confirming = dict[str, str](), False
    while planned:
        launch, arm = planned.pop(0)
        reason = failed.get(arm) or _why_skipped(arm, measured)
        if reason is not None:  # what was left out is no failure
            measured.reasons[arm] = reason
        else:
            say(f"{position + 1}: {arm}, launch {launch + 1}; at most {len(planned)} more runs")
            log = out / "launches" / f"{position:03d}-{arm}"
            run = run_arm(
                plan.command, arm, log, warmup=plan.warmup, steps=plan.steps, deadline_s=deadline_s,
                cwd=Path.cwd(), device=measured.device, began_s=began_s,
            )  # fmt: skip
            if run.reason is not None:
                say(f"  not measured, because {run.reason}")
                if not position:
                    raise AttachError(f"the script cannot be measured: {run.reason}; its output is in {log}")
            elif not position:
                deadline_s = min(deadline_s, LONGEST_RATIO * run.took_s + LONGER_S)
            elif arm == "trace":
                paths = [log / f"trace-rank{rank}.json.gz" for rank in range(len(run.ranks))]
                traced = read_traces([path for path in paths if path.exists()], TRACED_STEPS)
            if arm not in measured.steps_s:
                measured.reasons.pop(arm, None)  # it was left out of a launch before
                if run.reason is not None:
                    failed[arm] = run.reason
            folder.add(launch, position, run)
            measured.add(launch, run)
            position += 1
        if not planned and "aa" in plan.arms and not is_confirming:
            is_confirming, faster = True, [arm for arm in to_confirm(measured) if arm not in plan.often]
            planned = confirming(plan.launches, faster)
    return traced


def _why_skipped(arm: str, measured: Measured) -> str | None:
    """Why a run would tell nothing; None if it may."""
    ranks = measured.facts.get("baseline", [])
    if not ranks or arm in measured.steps_s:
        return None
    if arm == "trace" and measured.device != "cuda":
        return "there is no GPU"
    if arm in BUCKETS:
        return _why_no_buckets(arm, measured)
    if arm == "cached_input":
        return _why_no_input(measured)
    if arm == "no_debugging" and not ranks[0].get("debugging"):
        return "no debugging is on"
    if arm == "threads":
        places = [{"affinity": list(range(rank["cores"])), **rank} for rank in ranks]
        if all(rank["threads"] <= threads_that_fit(rank, places) for rank in places):
            return "the ranks' threads have cores of their own"
    return None


def _why_no_buckets(arm: str, measured: Measured) -> str | None:
    sizes, saved = measured.facts["baseline"][0]["bucket_bytes"], measured.exchange
    is_one = len(sizes) < 2 and sum(sizes) <= (bucket_mb(arm) or 0.0) * 2**20  # with this arm's size too
    smaller = [measured.facts[name] for name in BUCKETS[: BUCKETS.index(arm)] if name in measured.facts]
    if is_one or any(len(ranks[0]["bucket_bytes"]) < 2 for ranks in smaller):
        return "all gradients are in one bucket"
    # Of tiny buckets it does not show all: the hook that leaves the exchange out is called for each.
    if saved is not None and saved.ratio < LEAST and sum(sizes) >= len(sizes) * 2**20:
        return f"without any exchange a step is not {LEAST:.0%} shorter"
    return None


def _why_no_input(measured: Measured) -> str | None:
    """Where no batch is seen, or drawing one takes nothing and nothing makes the next one meanwhile."""
    if not measured.has_loader:
        return "the script draws its batches from no torch DataLoader"
    parts = [seconds["input"] / max(sum(seconds.values()), 1e-9) for seconds in shares(measured)]
    workers = [rank.get("loader_workers", 0) for rank in measured.facts.get("no_exchange", [])]
    is_ahead = any(rank.get("draws_in_thread") for rank in measured.facts["baseline"])
    if not parts or any(workers) or is_ahead or max(parts) > LEAST / 2:
        return None
    return f"drawing a batch takes {max(parts):.1%} of a step, and no loader workers run in the background"


def join(path: Path, command: Sequence[str], say: Callable[[str], None]) -> None:
    """Runs the command on this node, in every run of an `attach` that another node has begun in the folder.

    Args:
        path: its results folder, which both see.
        command: as the script is started on this node.
        say: takes a line a run.

    Raises:
        AttachError: nothing was begun there for a long time, or the command does not start.
    """
    launches, joined = path / "launches", set[str]()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    quiet_since = time.monotonic()
    while not (launches / FINISHED).exists():
        orders = sorted(
            order_file for order_file in launches.glob("*/order.json") if order_file.parent.name not in joined
        )
        for order_file in orders[:1]:
            joined.add(order_file.parent.name)
            wanted = json.loads(order_file.read_text())
            if wanted["arm"] != "one_worker" and not list(order_file.parent.glob("rank*.json")):
                say(f"joins {order_file.parent.name}")
                log = order_file.parent / f"output-{platform.node()}-{os.getpid()}.log"
                ended = start_and_wait(command, wanted, log, Path.cwd(), {})
                if isinstance(ended, str):
                    raise AttachError(ended)
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since > QUIET_S:
            raise AttachError(f"{path}: no run was begun there for {QUIET_S:g} s; is the folder shared?")
        time.sleep(0.1)


def _say_files(
    measured: Measured, cwd: Path, before: _States | None, after: _States | None, say: Callable[[str], None]
) -> None:
    """Which files appeared, were spared or changed during the runs."""
    written = [path for path in _named(measured, "written") if Path(path).exists()]
    appeared, changed = list[str](), list[str]()
    if before is not None and after is not None:
        written = [path for path in written if not Path(path).is_relative_to(cwd)]
        appeared = sorted(after.keys() - before.keys())
        changed = sorted(name for name, state in before.items() if not _only_grew(state, after.get(name)))
    if appeared or written:
        say(f"the script wrote {_some([*appeared, *written])}")
    if spared := _named(measured, "kept"):
        say(f"it would have deleted or changed {_some(spared)}: left as before")
    if changed:
        say(f"changed meanwhile: {_some(changed)}; by something other than the script's Python")
    if before is None or after is None:
        say(f"more than {MOST_FILES:,} files are here: which others appeared or changed is not known")


def _only_grew(before: _State, after: _State | None) -> bool:
    """Whether a file is as it was, or longer, as a log of this command is."""
    return after is not None and (after == before or (after[0] == before[0] and after[1] > before[1]))


def _named(measured: Measured, fact: str) -> list[str]:
    """Paths that the ranks of any run have recorded under that name."""
    ranks = [rank for ranks in measured.facts.values() for rank in ranks]
    return sorted({str(path) for rank in ranks for path in rank.get(fact, [])})


def _some(paths: Sequence[str]) -> str:
    """How many, and the first ones."""
    return f"{len(paths)} file{'s' * (len(paths) > 1)}: {', '.join(paths[:5])}{', ...' * (len(paths) > 5)}"


def _files(root: Path, out: Path) -> _States | None:
    """Files below a folder, without those of the results and this process's own output; None if too many."""
    states, own = _States(), set[tuple[int, int]]()
    for stream in (1, 2):
        with suppress(OSError):  # closed
            own.add((os.fstat(stream).st_dev, os.fstat(stream).st_ino))
    for place, folders, files in os.walk(root):
        folders[:] = [
            name for name in folders if name != "__pycache__" and Path(place, name).resolve() != out.resolve()
        ]
        for name in files:
            path = Path(place, name)
            with suppress(OSError):  # gone meanwhile
                state = path.lstat()
                if (state.st_dev, state.st_ino) not in own:
                    states[os.path.relpath(path, root)] = state.st_ino, state.st_size, state.st_mtime_ns
        if len(states) > MOST_FILES:
            return None
    return states
