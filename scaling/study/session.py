"""The sequence of `scaling run`: what is asked, its folder, its launches, its report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from launchers.zygote import Zygotes
from scaling.prediction.calibration_data import MeasuredFolder, libraries_of
from scaling.prediction.rows import row_of
from scaling.prediction.sources import Sources
from scaling.store import ResultsFolder, RunRecord
from scaling.study import run
from scaling.study.cell import Cell
from scaling.study.kinds import label_of
from scaling.study.launches import CommandTimes, Launch
from scaling.study.overrides import load_study
from scaling.study.predicting import predict_cells, strategy_of
from scaling.study.prepare import prepare
from scaling.study.progress import progress_for
from scaling.study.scope import Scope, runnable
from scaling.study.trial import sized_study
from topologies.schema import load


class PreLaunchPrediction:
    """Predicts, before each launch, its timed cells of two ranks and more from world size 1, if it can."""

    def __init__(self, folder: ResultsFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._measured = MeasuredFolder(folder)

    def __call__(self, launch: Launch) -> None:
        try:
            self.predict(launch)
        except Exception as error:  # noqa: BLE001 (whatever it is, the study is worth more)
            self._say(f"the cells of {launch.settings.world_size} workers are not predicted: {error}")

    def predict(self, launch: Launch) -> int:
        """Adds predictions of the launch's cells to predictions.json; returns how many."""
        predicted = {row["cell_id"]: row for row in self._folder.predictions()}
        done = {record.cell_id: record for record in self._folder.runs() if record.state == "done"}
        cells = [
            cell
            for cell in launch.cells
            if isinstance(cell, Cell) and cell.kind == "iteration" and not cell.aa_replicate
            if cell.world_size > 1 and cell.id not in predicted and cell.id not in done
        ]
        if not cells or not any(record.cell.get("world_size") == 1 for record in done.values()):
            return 0
        paths = [self._folder.path / name for name in ("probed.yaml", "topology.yaml")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return 0
        topology = load(path)
        libraries, _ = libraries_of([self._folder])
        sources = Sources(self._measured.cells(), self._measured.transfers(), topology, libraries)
        predictor, compute = sources.predictor(topology, strategy_of)
        variables: list[Mapping[str, Any]] = [cell.to_dict() for cell in cells]
        ids = {id(values): cell.id for values, cell in zip(variables, cells, strict=True)}
        predictions, _ = predict_cells(variables, predictor)
        rows = [
            row_of(made, compute, ids[id(made.cell)]) for made in predictions if made.iteration is not None
        ]
        if rows:
            self._folder.write_predictions([*predicted.values(), *rows])
        return len(rows)


ReportT = TypeVar("ReportT")


@dataclass(frozen=True)
class RunResult(Generic[ReportT]):
    folder: ResultsFolder
    report: ReportT | None  # of the whole study; None where one world size alone was run
    failed: list[RunRecord]
    left_out: list[str]  # a line for each reason why some runs stay planned
    leaves_the_rest: bool  # what is left out is no failure: other jobs may wait for the success of this one

    @property
    def is_failure(self) -> bool:
        return bool(self.failed or (self.left_out and not self.leaves_the_rest))

    def rest(self) -> list[str]:
        """A line for everything that was not measured."""
        lines = [
            f"failed: {label_of(record.cell)}, {record.cell['world_size']} workers, repeat {record.repeat}: "
            f"{record.reason}"
            for record in self.failed
        ]
        again = ["`--retry-failed` runs them again"] if self.failed else []
        return [*lines, *again, *self.left_out]


def run_session(
    study: str,
    overrides: list[str],
    out: Path | None,
    scope: Scope,
    zygotes: Zygotes,
    *,
    note: Callable[[str], None],
    interrupted: Callable[[ResultsFolder, bool], AbstractContextManager[None]],
    report: Callable[[ResultsFolder, Callable[[], None]], ReportT],
    retry_failed: bool = False,
) -> RunResult[ReportT]:
    """Runs or resumes a study. `interrupted`: around launches; `report`: calls its second argument first."""
    loaded = load_study(study, overrides)
    zygotes.begin_more(max(part.repeats for part in loaded.parts))  # import while this process resolves
    folder, is_whole = ResultsFolder(out or Path("results") / loaded.name), scope.world_size is None
    loaded, overrides, resolved = sized_study(
        study, loaded, overrides, scope.launcher.num_nodes, folder, note, zygotes
    )
    scope.require_cells(resolved)
    can_run = runnable(resolved, by_mpi=scope.launcher.is_mpi, world_size=scope.world_size)
    with scope.lock(folder):
        prepare(folder, loaded, resolved)
        for line in can_run.record_missing_libraries(folder):
            note(line)
        if retry_failed:
            note(f"{run.retry_failed(folder, scope)} failed runs are tried again")
        times = CommandTimes(folder)
        try:
            with interrupted(folder, is_whole), progress_for(sys.stderr) as progress:
                stall_timeout_s = max(part.stall_timeout for part in loaded.parts)
                command = run.RunCommand(study, overrides, folder.path, stall_timeout_s)
                predict = times.predicting(PreLaunchPrediction(folder, progress.say))
                run.run_study(folder, can_run.study, command, progress, scope, predict, zygotes)
        finally:
            times.reporting()
            times.write()
        made = report(folder, times.write) if is_whole else None
    failed = [record for record in scope.records(folder) if record.state == "failed"]
    left_out = [*can_run.record_missing_libraries(folder), *scope.left_out(folder, can_run.study)]
    return RunResult(folder, made, failed, left_out, scope.launcher.leaves_the_rest)
