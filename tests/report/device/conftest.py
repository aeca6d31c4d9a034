"""Folders of device cells made by hand, with samples whose answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scaling.report.device import DeviceResults, read_devices, sentences
from scaling.report.figures.base import FigureInput
from scaling.report.figures.draw import draw_figures
from scaling.report.tables import SavedFigure
from scaling.store import ResultsFolder, RunRecord


def sentences_of(results: DeviceResults) -> list[str]:
    """What an experiment's report says, in its own order: the answer last."""
    return [*sentences(results)]


def write_figures(folder: ResultsFolder, experiments: Sequence[DeviceResults]) -> list[SavedFigure]:
    """The figures of experiments alone."""
    figures, failures = draw_figures(folder, FigureInput([], {}, experiments=experiments))
    assert not failures
    return figures


BASE = {"inputs": 64, "depth": 2, "width": 10, "batch": 1, "equal_parameters": [10_000]}


class DeviceFolder:
    """A results folder of an experiment, filled cell by cell."""

    def __init__(self, path: Path, experiment: str, parameters: dict[str, Any], *, has_gpu: bool) -> None:
        self.folder = ResultsFolder(path)
        part = {"kind": "device", "experiment": {"name": experiment}, "devices": ["cpu", "cuda"]}
        notes = [] if has_gpu else ["devices: no GPU that torch can use here, so nothing is measured on cuda"]
        self.folder.write_study({"name": experiment, "parts": [part], "notes": notes})
        self.folder.write_environment({"cpu": {"usable_cores": 4}, "gpus": []})
        self._experiment, self._parameters, self._count = experiment, parameters, 0

    def add(
        self,
        launches: Sequence[Sequence[float]] = ((),),
        *,
        device: str = "cpu",
        threads: int = 1,
        failed: str | None = None,
        planned: bool = False,
        facts: dict[str, Any] | None = None,
        phase: str = "step",
        extra: Sequence[dict[str, Any]] = (),
        **point: Any,
    ) -> str:
        """Adds a cell from its launches' seconds and `extra` rows; returns its id."""
        self._count += 1
        cell_id = f"{self._count:012x}"
        fixed = {"kind": "device", "world_size": 1, "peer_access": None, "experiment": self._experiment}
        cell = {**fixed, "parameters": self._parameters, "point": point, "device": device, "threads": threads}
        for repeat, seconds in enumerate(launches):
            record = RunRecord(cell_id, repeat, cell)
            self.folder.write_run(record)
            if planned:
                continue
            self.folder.start_run(record, {"launcher": "local", "num_nodes": 1})
            if failed is not None:
                self.folder.fail_run(record, failed)
                continue
            told = {"load_average": 1.0, **(facts or {})}
            rows = [{"fact": name, "value": value} for name, value in told.items()]
            self.folder.sample_writer(cell_id, repeat, 0)(
                [*rows, *extra, *({"phase": phase, "seconds": one} for one in seconds)]
            )
            self.folder.finish_run(record, {})
        return cell_id

    def results(self) -> DeviceResults:
        """The one experiment, read back."""
        (found,) = read_devices(self.folder)
        return found


@pytest.fixture
def of(tmp_path):
    """A folder of any experiment: `of("cpu-threads", networks=[...])`."""

    def make(experiment: str, *, has_gpu: bool = True, **parameters: Any) -> DeviceFolder:
        return DeviceFolder(tmp_path / experiment, experiment, parameters, has_gpu=has_gpu)

    return make


@pytest.fixture
def small(of):
    """A folder of small networks: `small(has_gpu=True)`."""
    return lambda **how: of("small-networks", **{**BASE, **how})


@pytest.fixture
def results_of(of):
    """The results of an experiment with those cells: `results_of("lstm-fused", cells, steps=5)`."""

    def make(experiment: str, cells: Sequence[dict[str, Any]], **more: Any) -> DeviceResults:
        folder = of(experiment, **more)
        for cell in cells:
            folder.add(**cell)
        return folder.results()

    return make
