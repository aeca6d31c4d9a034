"""Runs a script with its arms and writes what they gave."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from scaling.attach.answer import answer, first_lines
from scaling.attach.arms import apart, switchable, why_skipped
from scaling.attach.files import say_files
from scaling.attach.findings import findings, to_confirm
from scaling.attach.inside.arms import ARMS, LATER, NO_SWITCH, PROCESS, TRACED_STEPS, row_of
from scaling.attach.launch import Blocks, Run, run_arm, start_and_wait
from scaling.attach.measured import Measured
from scaling.attach.records import AttachedFolder
from scaling.attach.trace import Traced, read_traces
from scaling.errors import AttachError
from scaling.report.text import text_of
from scaling.store.files import inside

FINISHED = "finished"  # in the folder of launches, once there are no more
# A run may take so many times what the first one took, and so much more: an arm that hangs is ended then.
LONGEST_RATIO, LONGER_S = 3.0, 20.0
# Half of an interval, of a step: no more rounds are needed then, but for so many in each launch.
ENOUGH, LEAST_ROUNDS = 0.01, 4
LAUNCHES_APART = 3  # of each arm, where arms cannot be switched within one process
# Begins a reason that switching may have made: each arm is tried by itself.
HANGS = ("a rank raised", "rank ", "fewer than", "it ended with code")
QUIET_S = 600.0  # a node that joins gives up after so long without a run


@dataclass(frozen=True)
class AttachPlan:
    command: Sequence[str]
    arms: Sequence[str]
    warmup: int  # steps at the start of each launch, which are left out
    steps: int  # of each run with a process of its own
    launches: int  # in which arms are switched; one more where they disagree
    deadline_s: float
    budget_s: float = 10.0
    seed: int = 0
    until_epoch: bool = False  # they, and the clock, go on until an epoch has ended, or the deadline


def arms_of(names: str | None) -> list[str]:
    chosen = list(ARMS) if names is None else [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in chosen if name not in ARMS]
    if wrong:
        raise AttachError(f"--arms: {wrong[0]!r} is none; allowed are {', '.join(ARMS)}")
    return [name for name in ARMS if name in chosen or name == "baseline"]


def attach(plan: AttachPlan, out: Path, say: Callable[[str], None]) -> tuple[list[str], int]:
    """The answer's lines and the exit code. AttachError: `out` is not empty, or not measurable."""
    settings = {name: getattr(plan, name) for name in ("arms", "warmup", "steps", "launches")}
    folder = AttachedFolder(out, plan.command, settings)
    session, cwd, code = _Session(plan, folder, out, say), Path.cwd(), 0
    measured = session.measured
    (out / "launches").mkdir()
    began_s = time.time() - 0.01  # file systems have coarse clocks
    signal.signal(signal.SIGTERM, _terminate)  # or the script would go on without us
    try:
        session.run()
    except KeyboardInterrupt as interruption:
        code = interruption.args[0] if interruption.args else 130
        say("interrupted: what was measured until then")
        session.take_unfinished()
        for arm in set(plan.arms) - measured.steps_s.keys():
            measured.reasons.setdefault(arm, "the runs were interrupted before")
    finally:
        (out / "launches" / FINISHED).touch()
    lines = answer(measured, session.traced)
    ranks = [rank for ranks in measured.facts.values() for rank in ranks]
    say_files(ranks, out, cwd, began_s, say)
    folder.finish(lines)
    folder.folder.write_text("answer.txt", "\n".join(lines) + "\n")
    found = [{**asdict(one), "advice": text_of(one, "advice")} for one in findings(measured, session.traced)]
    folder.folder.write_text("findings.json", json.dumps(found, indent=1) + "\n")
    return lines, code


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt(143)  # the exit code


class _Session:
    def __init__(
        self, plan: AttachPlan, folder: AttachedFolder, out: Path, say: Callable[[str], None]
    ) -> None:
        self.plan, self.folder, self.out, self.say = plan, folder, out, say
        self.measured = Measured()
        self.traced: Traced | None = None
        self._runs: list[tuple[int, Run]] = []
        self._under_way: tuple[int, Run] | None = None
        self._deadline_s, self._began_s = plan.deadline_s, time.time()
        self._position, self._launch = 0, 0

    def run(self) -> None:
        reason = self._switch()
        if reason is not None:
            self.say(f"{reason}: each arm is a process of its own")
            self.measured.apart = reason
            self._each_apart()
        for line in first_lines(self.measured):
            self.say(f"  {line}")
        self._processes()

    def _switch(self) -> str | None:
        failed = False
        for launch in range(self.plan.launches + 1):
            if launch == self.plan.launches and not (failed or self._is_open()):
                break
            arms = [arm for arm in switchable(self.plan.arms) if self._is_on(arm, launch)]
            run = self._start("switched" if len(arms) > 1 else "baseline", launch, arms)
            self._launch = launch
            if run.reason is None or launch:
                failed = failed or run.reason is not None
                continue
            if run.reason.startswith((NO_SWITCH, *HANGS)) and len(arms) > 1:
                self.measured.reasons.clear()
                return run.reason
            raise self._refused(run)
        return None

    def _refused(self, run: Run) -> AttachError:
        return AttachError(f"the script cannot be measured: {run.reason}; its output is in {self._log}")

    def _is_on(self, arm: str, launch: int) -> bool:
        if ARMS[arm].when != LATER:
            return not launch or arm in self.measured.steps_s
        # Where a launch with it has failed, the next one may not without it.
        return launch > 0 and arm not in self.measured.reasons and not self._is_skipped(arm)

    def _is_skipped(self, arm: str) -> bool:
        if (reason := why_skipped(arm, self.measured)) is not None:
            self.measured.reasons[arm] = reason
        return reason is not None

    def _is_enough(self, run: Run) -> bool:
        self._under_way = self._number, run
        known = Measured()
        for number, one in [*self._runs, self._under_way]:
            known.add(number, one)
        some = [(arm, saved) for arm in run.arms[1:] if (saved := known.saved(arm)) is not None]
        if "baseline" not in known.rounds or not some:
            return False
        texts = ", ".join(f"{arm} {saved.change}" for arm, saved in some)
        rounds = len([key for key in known.rounds["baseline"] if key[0] == self._number])
        self.say(f"  {rounds} round{'s' * (rounds > 1)}, a step {known.usual_s * 1e3:.3g} ms: {texts}")
        halves = [saved.half for _, saved in some]
        return rounds >= LEAST_ROUNDS and all(half is not None and half <= ENOUGH for half in halves)

    def _is_open(self) -> bool:
        every = [self.measured.aa, self.measured.saved("no_exchange"), self.measured.saved("cached_input")]
        disagree = any(saved is not None and saved.disagrees for saved in every)
        return disagree or (self.plan.launches > 1 and bool(to_confirm(self.measured, is_switched=True)))

    def _each_apart(self) -> None:
        failed = set[str]()
        for launch in range(LAUNCHES_APART):
            for arm in apart(self.plan.arms, launch, self.plan.seed):
                if arm in failed or self._is_skipped(arm):
                    continue
                run = self._start(arm, launch)
                if run.reason is not None and arm not in self.measured.steps_s:
                    failed.add(arm)
                    if arm == "baseline":
                        raise self._refused(run)
        self._launch = LAUNCHES_APART - 1

    def _processes(self) -> None:
        """Arms with a process of their own; those that were faster once run again, next to another clock."""
        arms = [arm for arm in self.plan.arms if ARMS[arm].when == PROCESS]
        self._launch += 1
        rows = [ARMS[arm] for arm in arms]
        others = [row for row in rows if row.is_bare or row.is_traced or row.is_alone or row.replaces_hook]
        if len(others) < len(rows) and "clock" not in arms:
            arms.insert(0, "clock")  # what the rest of them are compared with
        for arm in arms:
            if not self._is_skipped(arm):
                self._start(arm, self._launch)
        for arm in to_confirm(self.measured):
            for name in (arm, "clock"):
                self._launch += 1
                self._start(name, self._launch)

    def _start(self, name: str, launch: int, arms: Sequence[str] = ()) -> Run:
        # What is compared with the clock, which has no hook, has the script's own samples too.
        seed = self.plan.seed + 1000 * launch * (row_of(name).when != PROCESS)
        blocks = Blocks(tuple(arms), self.plan.budget_s, self._is_enough) if len(arms) > 1 else None
        self.say(f"{self._position + 1}: {name}, launch {launch + 1}")
        self._log, self._number = self.out / "launches" / f"{self._position:03d}-{name}", launch
        started = time.monotonic()
        run = run_arm(
            self.plan.command, name, self._log, warmup=self.plan.warmup, steps=self.plan.steps, seed=seed,
            deadline_s=self._deadline_s, cwd=Path.cwd(), device=self.measured.device, began_s=self._began_s,
            blocks=blocks, until_epoch=self.plan.until_epoch and (blocks is not None or row_of(name).is_bare),
        )  # fmt: skip
        self._under_way, took_s = None, time.monotonic() - started
        if run.reason is not None:
            self.say(f"  not measured, because {run.reason}")
        elif not self._position:
            self._deadline_s = min(self._deadline_s, LONGEST_RATIO * took_s + LONGER_S)
        elif row_of(name).is_traced:
            paths = [self._log / f"trace-rank{rank}.json.gz" for rank in range(len(run.ranks))]
            self.traced = read_traces([path for path in paths if path.exists()], TRACED_STEPS)
        self._take(launch, run)
        return run

    def _take(self, launch: int, run: Run) -> None:
        if run.reason is None:
            for arm in run.arms:
                self.measured.reasons.pop(arm, None)
        self._runs.append((launch, run))
        self.folder.add(launch, self._position, run)
        self.measured.add(launch, run)
        self._position += 1

    def take_unfinished(self) -> None:
        if self._under_way is not None:
            self._take(*self._under_way)


def join(path: Path, command: Sequence[str], say: Callable[[str], None]) -> None:
    """Runs the command in every run that another node has begun. AttachError: none is there, or no start."""
    launches, joined = path / "launches", set[str]()
    signal.signal(signal.SIGTERM, _terminate)
    quiet_since = time.monotonic()
    while not (launches / FINISHED).exists():
        orders = sorted(file for file in launches.glob("*/order.json") if file.parent.name not in joined)
        for order_file in orders[:1]:
            joined.add(order_file.parent.name)
            wanted = json.loads(order_file.read_text())
            if not row_of(wanted["arm"]).is_alone and not list(order_file.parent.glob("rank*.json")):
                say(f"joins {order_file.parent.name}")
                # The folder may be mounted elsewhere on the node that began it.
                out = inside(path, str(order_file.relative_to(path))).parent
                wanted |= {"out": str(out.resolve())}
                log = out / f"output-{platform.node()}-{os.getpid()}.log"
                ended = start_and_wait(command, wanted, log, Path.cwd(), {})
                if isinstance(ended, str):
                    raise AttachError(ended)
            quiet_since = time.monotonic()
        if time.monotonic() - quiet_since > QUIET_S:
            raise AttachError(f"{path}: no run was begun there for {QUIET_S:g} s; is the folder shared?")
        time.sleep(0.1)
