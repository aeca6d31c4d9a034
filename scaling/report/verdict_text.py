"""The answer of a study in words: the last lines of `run`, the first ones of `recommend` and of the page."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from scaling.analysis.columns import Row, to_rows
from scaling.analysis.decisions import FEWEST
from scaling.analysis.explain_view import Known
from scaling.analysis.findings import Finding
from scaling.analysis.groups import group_rows
from scaling.analysis.questions import question_of
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_noise import seed_noise, seed_noise_finding
from scaling.analysis.summary import read_study
from scaling.analysis.verdict import verdicts
from scaling.axes import ATTACHED
from scaling.errors import StudyError
from scaling.report.text import short_names, text_of, title_parts, untried
from scaling.store import ResultsFolder, RunRecord, Snapshot

MPI_TABLES = {"openmpi", "mpich"}  # launchers of records, where mpirun started the workers: `mpi` needs that


def facts_of(verdict: Finding) -> Iterator[tuple[str, str]]:
    for label, part in (("Aggregator: ", "aggregator"), ("Limit: ", "limit"), ("Step: ", "step")):
        if value := text_of(verdict, part):
            yield f"{label}{value}", "" if part == "step" else text_of(verdict, f"{part}_why")
    yield f"{text_of(verdict, 'sure')}: {text_of(verdict, 'sure_why')}", ""


def verdict_lines(verdicts: Sequence[Finding], command: str = "") -> list[str]:
    """All parts of the first answer, by workload where there are several, the last with `command_of`."""
    if not verdicts:
        return []
    first = verdicts[0]
    said = text_of(first)
    lines = [f"{_lead(verdicts)}: {said[0].lower()}{said[1:]}" if len(verdicts) > 1 else said]
    lines += [f"{fact}{f' ({detail})' if detail else ''}." for fact, detail in facts_of(first)]
    if experiment := text_of(first, "next"):
        lead = ". Command for the first:" if "; " in experiment or ", or " in experiment else ":"
        lines.append(f"Next: {experiment}{f'{lead} {command}' if command else '.'}")
    return lines


def _lead(verdicts: Sequence[Finding]) -> str:
    """So much of the first one's name as tells it from the others."""
    first, *others = short_names([title_parts(verdict.values["workload"]) for verdict in verdicts])
    sizes = (size for size in range(1, len(first)) if all(first[:size] != one[:size] for one in others))
    return short(", ".join(first[: next(sizes, len(first))]))


def short(name: str) -> str:
    without = re.sub(r" (strong|weak) scaling,| on synthetic(\([^)]*\))?", "", name)  # the batch says it
    return without.replace("global batch", "batch")


def names_of(verdicts: Sequence[Finding]) -> list[str]:
    names = short_names([title_parts(verdict.values["workload"]) for verdict in verdicts])
    return [", ".join(parts) for parts in names]


def path_in_commands(folder: ResultsFolder) -> Path:
    """The folder as a command names it that is pasted where this one was run."""
    path = folder.path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


@dataclass(frozen=True)
class NextRun:
    """The run of an answer's next experiment: study file, folder, launcher (None: local), overrides."""

    study: str
    out: str
    launcher: str | None
    overrides: list[str]

    @property
    def command(self) -> str:
        by = ["--launcher", self.launcher] if self.launcher else []
        return shlex.join(["scaling", "run", self.study, "--out", self.out, *by, *self.overrides])


def next_run(verdict: Finding, folder: ResultsFolder) -> NextRun | None:
    path, changed = path_in_commands(folder), _changes(verdict, folder)
    if changed is None or {run.cell["kind"] for run in folder.runs()} == {ATTACHED}:  # no study of ours
        return None
    words, ending = changed
    started_by = {run.launch.get("launcher") for run in folder.runs() if run.launch}
    launcher = "mpirun" if started_by and started_by <= MPI_TABLES else None
    return NextRun(f"{path}/study.yaml", f"{path}{ending}", launcher, words)


def command_of(verdicts: Sequence[Finding], noise: Sequence[Finding], folder: ResultsFolder) -> str:
    """The command of the first answer's next experiment, or of three seeds; "" where there is none."""
    if verdicts:
        has_next = next_run(verdicts[0], folder) is not None
    else:
        has_next = [one.kind for one in noise] == ["seed_noise_unknown"]
    return shlex.join(["scaling", "run", str(path_in_commands(folder)), "--next", "1"]) if has_next else ""


def _seeds_run(folder: ResultsFolder, rows: Sequence[Row], cells: Sequence[CellResult]) -> NextRun | None:
    by_id = {cell.cell_id: cell for cell in cells}
    found = [seed_noise_finding(noise) for noise in seed_noise(group_rows(rows), by_id)]
    if not command_of([], found, folder):
        return None
    path, kinds = path_in_commands(folder), {row["kind"] for row in rows}
    words = [*(["kind=convergence"] if len(kinds) > 1 else []), "seed=[0,1,2]"]
    return NextRun(f"{path}/study.yaml", f"{path}-seeds", None, words)


def next_of(path: Path, number: int) -> NextRun:
    """What `scaling run DIR --next NUMBER` runs, of the folder's answer of that number. Raises StudyError: it
    has no next experiment that one command runs; StoreError: the folder is damaged."""
    folder = Snapshot.of(ResultsFolder(path).require())
    read = read_study(folder)
    rows = to_rows(read.table)
    known = Known.of(rows, read.cells, read.num_cores)
    answers = asked(verdicts(read.table, read.cells, known=known), question_of(folder.study(), rows))
    seeds = None if answers or number > 1 else _seeds_run(folder, rows, read.cells)
    if seeds is None and number > len(answers):
        raise StudyError(
            f"--next {number}: {path} has {len(answers)} answers; `scaling report {path}` shows them"
        )
    found = seeds or next_run(answers[number - 1], folder)
    if found is None:
        raise StudyError(
            f"--next {number}: that answer of {path} names no experiment that one command runs; "
            f"`scaling report {path}` says what it names"
        )
    return found


def asked(answers: Sequence[Finding], question: str) -> list[Finding]:
    """The answers of a study with that question: one worker is missed only where it is asked for."""
    if question == "time_to_target":
        return sorted(answers, key=lambda one: "iteration_s" in one.values)  # trainings first
    if question == "speedup":
        return list(answers)
    return [replace(one, values={**one.values, "lacks_one_worker": False}) for one in answers]


def _changes(verdict: Finding, folder: ResultsFolder) -> tuple[list[str], str] | None:
    values, limit = verdict.values, verdict.values["limit"]
    is_open = values["confidence"] != "sure"
    is_one_launch = values["confidence"] == "one_launch"
    repeats = FEWEST if is_one_launch else values["num_launches"] + (values["more_repeats"] or 0)
    runs = list(folder.runs())
    # Trainings may take hours, and tell nothing of a step; nor do steps of trainings.
    kind = "iteration" if "iteration_s" in values else "convergence"
    timed = [f"kind={kind}"] if len({run.cell["kind"] for run in runs}) > 1 else []
    sizes = ",".join(map(str, [1, *values["world_sizes"]]))
    again = "-again" if kind == "iteration" or not timed else "-trainings"
    one_worker = [f"world_sizes=[{sizes}]"] if values["lacks_one_worker"] else []
    if is_open and (values["doubts"] or (values["is_noisy"] and not is_one_launch)):
        return timed, again
    if is_open and repeats > values["num_launches"]:
        is_another = bool(one_worker) or folder.is_archived()
        words = [*(timed if is_another else []), f"repeats={repeats}", *one_worker]
        return words, again if is_another else ""
    if one_worker:
        return [*timed, *one_worker], again
    if "iteration_s" not in values or values["untrained"]:
        return None
    is_one = values["world_size"] == 1 and values["other_size"]  # its step exchanges nothing
    step = "" if limit is None or is_one else _step_to_try(limit)
    if step:  # it leaves the training as it is
        return [*timed, f"step={step}", _few_aggregators(verdict, runs, step)], f"-{step}"
    if batch := _batch_to_try(verdict):
        cell = next(run.cell for run in runs if run.cell_id == verdict.cells[0])
        workload = {name: {"name": cell[name], **cell[f"{name}_parameters"]} for name in ("model", "dataset")}
        larger = f"workloads={json.dumps([{**workload, 'global_batch': batch}])}"
        return [*timed, larger, _few_aggregators(verdict, runs)], f"-batch-{batch}"
    # Another precision, if it comes first, where one command sets it for all cells.
    is_computed = limit is not None and not is_one and limit.kind == "computation"
    is_first = is_computed and limit.values["has_tf32_left"] and not limit.values["lacks_compile"]
    if is_first and not any(run.cell.get("precision") for run in runs if run.cell["kind"] == "iteration"):
        older = any("tf32" in part for part in folder.study().get("parts", []))
        precision = ["tf32=null", "precision=tf32"] if older else ["precision=tf32"]
        return [*timed, *precision, _few_aggregators(verdict, runs)], "-tf32"
    return None


_EXACT = ("all_reduce", "ring", "tree", "schedule", "zero1", "caffe_nccl", "tf_replicated")
_ONE_OR_TWO_BITS = ("one_bit", "one_bit_flat", "one_bit_momentum", "two_bit", "sign", "ef_sign", "cntk")
CAPTURED = frozenset([*_EXACT, *_ONE_OR_TWO_BITS, "qsgd", "top_k", "power_sgd", "fp16", "bf16"])
"""Aggregators that a captured step takes, whatever its buckets."""


def _few_aggregators(verdict: Finding, runs: Sequence[RunRecord], step: str = "") -> str:
    """The aggregators to compare in the next run: no exchange, the choice, and the library's all-reduce."""
    if step == "overlapped":
        return "aggregators=[none,no_op,all_reduce]"
    cell = next(run.cell for run in runs if run.cell_id == verdict.cells[0])
    name, label = cell["aggregator"], cell.get("aggregator_label", cell["aggregator"])
    choice = name if label == name else json.dumps({"name": name, **cell["aggregator_parameters"]})
    timed = [run.cell for run in runs if run.cell["kind"] == "iteration"]
    taken = {other["step"] for other in timed if other.get("aggregator_label", other["aggregator"]) == label}
    is_taken = name in CAPTURED if step == "captured" else {other["step"] for other in timed} == taken
    return f"aggregators=[{','.join(dict.fromkeys(['none', *[choice] * is_taken, 'all_reduce']))}]"


def _step_to_try(limit: Finding) -> str:
    """The step mode that a limit's experiment names and nobody has measured; "" where it names none."""
    values = limit.values
    if limit.kind == "exposed_communication" and values["remedy"] == "overlapped":
        return "" if "better_iteration_s" in values else "overlapped"
    is_unmeasured = limit.kind == "launches" and "captured_iteration_s" not in values
    is_possible = limit.kind == "computation" and values["lacks_captured"]
    return "captured" if is_unmeasured or is_possible else ""


LARGER_BATCH = 4
"""So much larger is the global batch to try: where the exchange limits, its share falls as much."""


def _batch_to_try(verdict: Finding) -> int | None:
    """The global batch that an answer's experiment names; None where it names none."""
    values, limit, losses = verdict.values, verdict.values["limit"], verdict.values["losses"]
    if values["workload"].get("scaling") != "strong":
        return None
    measured = values["measured"]["global_batch"]
    if limit is not None and limit.kind == "small_batch" and values["world_size"] > 1:
        batch = int(limit.values["larger_batch"] * values["world_size"])
        return None if batch in measured else batch
    larger = LARGER_BATCH * int(max(measured))
    if limit is not None and limit.kind == "host_sums":
        is_next = not untried(limit.values, "aggregator", "all_reduce", "ring")
        return larger if is_next and "better_iteration_s" not in limit.values else None
    is_too_small = losses is not None and (
        values["world_size"] == 1 or (losses["rest_s"] or -math.inf) >= losses["exchange_s"]
    )
    return larger if is_too_small else None
