"""Predicts the cells of a launch before it is started, from what its study has measured by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling.prediction.calibration_data import MeasuredFolder, libraries_of
from scaling.prediction.rows import row_of
from scaling.prediction.sources import Sources
from scaling.store import ResultsFolder
from scaling.study.cell import Cell
from scaling.study.launches import Launch
from scaling.study.predicting import predict_cells, strategy_of
from topologies.schema import load


class PreLaunchPrediction:
    """What `run_study` calls before each launch.

    It predicts timed cells of two ranks and more that nobody has predicted yet, on the machine file of the
    folder (probed.yaml, else topology.yaml), if world size 1 was measured there. What goes wrong is said and
    stops no run: a prediction is no part of the measurement.

    Args:
        folder: of the study.
        say: takes what a person should read.
    """

    def __init__(self, folder: ResultsFolder, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._measured = MeasuredFolder(folder)

    def __call__(self, launch: Launch) -> None:
        """Predicts the cells of that launch."""
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
