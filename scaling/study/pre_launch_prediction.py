"""Predicts the cells of a launch before it is started, from what its study has measured by then."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scaling.prediction.calibration_data import cells_of, libraries_of, transfers_of
from scaling.prediction.rows import row_of
from scaling.prediction.sources import Sources
from scaling.store import ResultsFolder
from scaling.study.cells import Cell
from scaling.study.launches import Launch
from scaling.study.predicting import predict_cells, strategy_of
from topologies.schema import load


def predicting(folder: ResultsFolder, say: Callable[[str], None]) -> Callable[[Launch], None]:
    """What `run_study` calls before each launch.

    It predicts timed cells of two ranks and more that nobody has predicted yet, on the machine file of the
    folder (probed.yaml, else topology.yaml), if world size 1 was measured there. What goes wrong is said and
    stops no run: a prediction is no part of the measurement.
    """

    def before(launch: Launch) -> None:
        try:
            predict_launch(folder, launch)
        except Exception as error:  # noqa: BLE001 (whatever it is, the study is worth more)
            say(f"the cells of {launch.settings.world_size} workers are not predicted: {error}")

    return before


def predict_launch(folder: ResultsFolder, launch: Launch) -> int:
    """Adds predictions of the launch's cells to predictions.json; returns how many."""
    known = {row["cell_id"]: row for row in folder.predictions()}
    done = {record.cell_id for record in folder.runs() if record.state == "done"}
    cells = [
        cell
        for cell in launch.cells
        if isinstance(cell, Cell) and cell.kind == "iteration" and not cell.twin
        if cell.world_size > 1 and cell.id not in known and cell.id not in done
    ]
    if not cells or not any(
        record.cell.get("world_size") == 1 for record in folder.runs() if record.cell_id in done
    ):
        return 0
    path = next(
        (p for p in (folder.path / "probed.yaml", folder.path / "topology.yaml") if p.is_file()), None
    )
    if path is None:
        return 0
    topology = load(path)
    sources = Sources(cells_of(folder), transfers_of(folder), topology, libraries_of([folder])[0])
    predictor, compute = sources.predictor(topology, strategy_of)
    dictionaries: list[Mapping[str, Any]] = [cell.to_dict() for cell in cells]
    by_cell = {id(values): cell.id for values, cell in zip(dictionaries, cells, strict=True)}
    predicted, _ = predict_cells(dictionaries, predictor)
    rows = [row_of(one, compute, by_cell[id(one.cell)]) for one in predicted if one.iteration is not None]
    if rows:
        folder.write_predictions([*known.values(), *rows])
    return len(rows)
