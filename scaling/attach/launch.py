"""One run of the script: the command with the agent in it, ended at its deadline."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launchers import processes
from scaling.attach.files import noted, take_files
from scaling.attach.inside.arms import LONGEST_BLOCK, NO_STEP, row_of
from scaling.attach.marks import after_warmup, steady
from scaling.files.redaction import redacted_document
from scaling.store.files import redact_file, write_whole

INJECT = Path(__file__).parent / "inject"
END_S = 5.0  # how long a run's processes have to end when asked, or by themselves when all ranks have written
LEAST_STEPS = 5  # after the warm-up: with fewer a run is not used

NOTHING, TAIL_BYTES = "it wrote nothing", 2**14
# In errors of ranks that only miss another one; in torchrun's words on ranks that failed or are ended here.
OTHER_RANK = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
ENDED = ("ChildFailedError", "SignalException")
MOST_LOG_BYTES = 2**18  # of a run's output, so much of its start and of its end is kept

_WORKERS = {  # launcher -> its options that say how many workers there are
    r"torchrun|torch\.distributed\.(run|launch)": r"--nproc[-_]per[-_]node|--nnodes",
    r"accelerate(\.commands\.launch)?": r"--num[-_]processes|--num[-_]machines",
    "srun": "-n|--ntasks|-N|--nodes|--ntasks-per-node",
    "mpirun|mpiexec": "-np?|--np",
}
_OF_NODE = r"--node[-_]rank|--machine[-_]rank"

# So that a run of some steps is in nobody's list of experiments; MLflow is never off, it has a folder.
QUIET = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "CLEARML_OFFLINE_MODE": "1",
}
OF_A_SERVER = ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID")  # variables that name what is not in that folder


@dataclass(frozen=True)
class Run:
    arm: str  # or what the launch is called in which arms are switched
    ranks: list[dict[str, Any]] = field(default_factory=list)
    reason: str | None = None
    arms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.arms:
            object.__setattr__(self, "arms", (self.arm,))


@dataclass(frozen=True)
class Blocks:
    arms: tuple[str, ...]
    budget_s: float  # seconds of rounds, after which no further one but one begins
    is_enough: Callable[[Run], bool]  # asked with the ranks' records after each round


def run_arm(
    command: Sequence[str], arm: str, out: Path, *, warmup: int, steps: int, deadline_s: float, cwd: Path,
    device: str = "cpu", began_s: float | None = None, seed: int = 0, blocks: Blocks | None = None,
    until_epoch: bool = False,
) -> Run:  # fmt: skip
    """In the folder `cwd`; records and output go to `out`. With `blocks` several arms are switched in it, and
    `arm` names the folder alone. Files from before `began_s` (of `time.time`; None: now) stay as they are."""
    more: dict[str, str] = {}
    if row_of(arm).is_alone:
        command = one_worker(command) or command
        if device == "cuda":
            more["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        if any(word.endswith(("torchrun", "torch.distributed.run")) for word in command):
            more["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")  # as it sets it for several
    out.mkdir(parents=True)
    arms = blocks.arms if blocks else (arm,)
    wanted = {"out": str(out.resolve()), "arm": arm, "arms": arms, "warmup": warmup, "steps": steps}
    wanted |= {"deadline_s": deadline_s, "began_s": began_s or time.time(), "until_epoch": until_epoch}
    wanted |= {"seed": seed, "budget_s": blocks.budget_s if blocks else 0.0}
    write_whole(out / "order.json", json.dumps(wanted).encode())  # others that join read it
    watch = _watching(arm, out, blocks) if blocks else None
    code = start_and_wait(command, wanted, out / "output.log", cwd, more, watch)
    wanted_steps = warmup + (len(arms) * LONGEST_BLOCK if blocks else steps)
    run = Run(arm, reason=code) if isinstance(code, str) else _read(arm, out, code, wanted_steps, deadline_s)
    return replace(run, arms=arms)


def _watching(arm: str, out: Path, blocks: Blocks) -> Callable[[list[dict[str, Any]]], None]:
    seen = 0

    def watch(ranks: list[dict[str, Any]]) -> None:
        nonlocal seen
        is_going_on = all(rank["labels"] and not rank["is_last"] for rank in ranks)
        made = len(ranks[0]["labels"]) if ranks and len(ranks) == ranks[0]["world_size"] else seen
        if is_going_on and made != seen and not (out / "enough").exists():
            seen = made
            if blocks.is_enough(Run(arm, ranks, arms=blocks.arms)):
                (out / "enough").touch()

    return watch


def _records(out: Path) -> list[dict[str, Any]]:
    ranks = [json.loads(path.read_text()) for path in out.glob("rank*.json")]
    return sorted(ranks, key=lambda record: int(record["rank"]))


def start_and_wait(
    words: Sequence[str], wanted: Mapping[str, Any], log_path: Path, cwd: Path, more: Mapping[str, str],
    watch: Callable[[list[dict[str, Any]]], None] | None = None,
) -> int | str | None:  # fmt: skip
    """Runs the command with the agent until it ends or has to; `watch` is given the records meanwhile. Its
    exit code; None where it was ended here; a text where it does not start."""
    path = os.pathsep.join(filter(None, (str(INJECT), os.environ.get("PYTHONPATH"))))
    mlflow = (Path(wanted["out"]).resolve() / "mlflow").as_uri()
    environment = {
        **{name: value for name, value in os.environ.items() if name not in OF_A_SERVER}, **QUIET, **more,
        "MLFLOW_TRACKING_URI": mlflow, "MLFLOW_REGISTRY_URI": mlflow,
        "PYTHONPATH": path, "SCALING_ATTACH": json.dumps(wanted),
    }  # fmt: skip
    end = time.monotonic() + float(wanted["deadline_s"])
    with log_path.open("wb") as log:
        try:
            process = processes.start_any(words, environment, log, cwd)
        except OSError as error:
            return f"{words[0]} does not start: {error.strerror}"
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.1)
                ranks = _records(Path(wanted["out"]))
                if watch is not None:
                    watch(ranks)
                last = [record for record in ranks if record.get("is_last")]
                if last and len(last) == last[0]["world_size"]:
                    end = min(end, time.monotonic() + END_S)
            return process.poll()
        finally:
            processes.end(process)
            _tidy(log_path)
            take_files(Path(wanted["out"]), cwd)


def _tidy(log_path: Path) -> None:
    """Leaves out the middle of a long log, and the secrets in it and in records."""
    if (size := log_path.stat().st_size) > 2 * MOST_LOG_BYTES:
        with log_path.open("r+b") as log:
            log.seek(size - MOST_LOG_BYTES)
            end = log.read()
            log.seek(MOST_LOG_BYTES)
            log.write(b"\n[%d bytes left out]\n%s" % (size - MOST_LOG_BYTES - len(end), end))
            log.truncate()
    redact_file(log_path)
    for path in log_path.parent.glob("rank*.json"):
        with contextlib.suppress(ValueError):  # it was cut off
            record = json.loads(path.read_text())
            if (shown := redacted_document(record)) != record:
                path.write_text(json.dumps(shown))


def _read(arm: str, out: Path, code: int | None, wanted: int, deadline_s: float) -> Run:
    ranks = _records(out)
    if (reason := _why_not(arm, out, ranks, code, wanted, deadline_s)) is not None:
        return Run(arm, reason=reason)
    kept = noted(out, "kept-*", errors="replace")
    return Run(arm, [{**rank, "fetches": _fetches(out, int(rank["pid"])), "kept": kept} for rank in ranks])


def _why_not(
    arm: str, out: Path, ranks: Sequence[dict[str, Any]], code: int | None, wanted: int, deadline_s: float
) -> str | None:
    early = [int(rank["ended_after"]) for rank in ranks if "ended_after" in rank]
    reasons = [str(rank["refused"]) for rank in ranks if "refused" in rank]
    if refused := [reason for reason in reasons if reason != NO_STEP]:
        return refused[0]
    every = [rank["raised"] for rank in ranks if "raised" in rank]
    own = [error for error in every if not any(text in error[1] for text in OTHER_RANK)]
    left = [rank for rank in ranks if "ended_after" in rank and "raised" not in rank]
    if every and left and not own:
        rank, made = left[0]["rank"], left[0]["ended_after"]
        return f"rank {rank} ended by itself after {made} steps, and others went on"
    if every:  # the first one: the others fail for want of it
        return f"a rank raised {min(own or every)[1]}"
    if code and (not ranks or early or reasons):
        return f"it ended with code {code} before its steps were done: {_last_line(out)}"
    if reasons:
        return reasons[0]
    if not ranks:
        said = _last_line(out)
        if code is None:
            return f"fewer than {wanted} steps of it were seen in {deadline_s:g} s; its last line is: {said}"
        if said != NOTHING:
            return f"it ended without a step that could be seen; its last line is: {said}"
        return (
            "it ended without a step that could be seen, or by os._exit before its last one; where it starts "
            "Python by -I, -E or with another PYTHONPATH, put `with scaling.attached(model, optimizer):` "
            "around its training loop"
        )
    if len(ranks) != ranks[0]["world_size"]:
        return f"{len(ranks)} of {ranks[0]['world_size']} ranks made their steps in {deadline_s:g} s"
    if early and (made := min(early)) < int(ranks[0]["warmup"]) + LEAST_STEPS:
        smaller = f", or take --warmup {made - LEAST_STEPS}" if made > LEAST_STEPS else ""
        return f"it ended by itself after {made} steps; let it make more{smaller}"
    row = row_of(arm)
    if row.is_alone and len(ranks) > 1:
        return f"with one worker asked for it still starts {len(ranks)}"
    if row.at_start and (on := ranks[0].get(row.without)):
        return f"the script switches {on} on again"
    if row.is_cached and not any(rank.get("has_cached_input") for rank in ranks):
        return "the script draws its batches from no torch DataLoader"
    if not row.is_traced:
        signature, usual = steady(ranks)
        if not signature[0] and not row.is_bare and "steps_are" not in ranks[0]:
            return "its steps have no backward pass that can be seen: is the whole step a CUDA graph?"
        all_steps = min(sum(step.block >= 0 for step in steps) for steps in after_warmup(ranks))
        if 2 * len(usual[0]) < all_steps or len(usual[0]) < LEAST_STEPS:
            return f"its steps are not of one kind: the most frequent one is {len(usual[0])} of {all_steps}"
    return None


def _fetches(out: Path, pid: int) -> list[tuple[float, ...]]:
    """(seconds, of them on a processor, and waiting for one) of each batch a rank or its workers made."""
    lines = [line for path in out.glob(f"fetch-{pid}-*") for line in path.read_text().splitlines()]
    return [tuple(map(float, words)) for line in lines if len(words := line.split()) == 3]


def _last_line(out: Path) -> str:
    """The last error that the script printed, or its last line; torchrun's own words come after it."""
    lines = (out / "output.log").read_bytes()[-TAIL_BYTES:].decode(errors="replace").split("\n")
    lines = [re.sub(r"^\[rank\d+\]: ?", "", one) for one in lines if "torch/distributed/" not in one[:60]]
    printed = [one.strip() for one in lines if one.strip("*^~ \t\r")]  # Python marks a part of a line by ^
    printed = [line for line in printed if not line.startswith("Setting OMP_NUM_THREADS environment")]
    ends = next((at for at, line in enumerate(printed) if any(text in line for text in ENDED)), len(printed))
    tracebacks = [at for at, line in enumerate(printed[:ends]) if line.startswith("Traceback")]
    own = printed[: tracebacks[-1]] if ends < len(printed) and tracebacks else printed
    errors = [line for line in own if "Error" in line]
    errors = [line for line in errors if not any(text in line for text in OTHER_RANK)] or errors
    if errors and errors[-1].endswith("AssertionError"):  # without a text: the line before is its source
        errors.append(f"{errors[-1]} at `{own[max(own.index(errors[-1]) - 1, 0)]}`")
    return (errors or own or [NOTHING])[-1][-300:]


def one_worker(command: Sequence[str]) -> list[str] | None:
    """The command with one worker, by the launcher's own options; None where they do not say how many."""
    changed: list[str | None] = [*command]
    last, options, says_how_many = "", "", False
    for index, word in enumerate(command):
        name, is_joined, _ = word.partition("=")
        own = next((own for known, own in _WORKERS.items() if re.fullmatch(f"(.*/)?({known})", word)), "")
        if own and not options:
            options = own
        elif word.endswith(".py") or (options and last in ("-m", "--module")):
            break
        elif options and word in ("--multi_gpu", "--multi-gpu"):
            changed[index] = None  # of accelerate, which refuses it with one worker
        elif options and re.fullmatch(f"{options}|{_OF_NODE}", name):
            new = "0" if re.fullmatch(_OF_NODE, name) else "1"
            says_how_many = says_how_many or new == "1"
            if is_joined:
                changed[index] = f"{name}={new}"
            elif index + 1 < len(command):
                changed[index + 1] = new
        elif not own and options and (short := re.fullmatch(r"(-[nN])\d+", word)):
            changed[index] = f"{short[1]}1"
            says_how_many = True
        last = word
    return [word for word in changed if word is not None] if says_how_many else None
