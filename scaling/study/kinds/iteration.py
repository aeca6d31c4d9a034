"""`kind: iteration`: time of a step, by phase."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from scaling.axes import DEFAULTS
from scaling.errors import StudyError
from scaling.store.upgrades import RENAMED_KEYS, with_new_keys
from scaling.study.cell import AvailableMachine
from scaling.study.kinds.training import TrainingKind, check_images, named
from scaling.study.parts import Augmentation, Axis, Number, PositiveInt, TrainingPart, chosen

if TYPE_CHECKING:
    from scaling.aggregators.base import Aggregator
    from scaling.study.cell import Cell
    from scaling.study.rank.context import RankSummary, RunContext
    from scaling.study.workloads import ChosenWorkload

USUAL_ITERATIONS = 100  # what reaching a precision goal is assumed to take
FEWEST_LAUNCHES, FEWEST_PAIRS = 3, 4  # for offsets of cells in intervals (`scaling.analysis.study_scatter`)
MOST_FURTHER_PAIRS = 1 / 3  # the part of a study's cells that pairs may add to those that it has anyhow

DEFAULT_LOADER_WORKERS = 2
MIN_SECONDS_ON_GPU = 0.5  # of unprofiled steps: a GPU's energy counter moves ten times a second


class IterationPart(TrainingPart):
    """Time of a step, by phase."""

    kind: Literal["iteration"] = "iteration"
    warmup: PositiveInt = 10
    """Least number of iterations before the measured ones."""
    iterations: PositiveInt = 1000
    """Most measured iterations of a launch."""
    precision_goal: Number | None = Field(0.01, gt=0, lt=1)
    """Stop when the 95% interval of the median is within this share of it; null: never earlier."""
    min_seconds: Number | None = Field(None, ge=0)
    """Least time of the measured iterations; default 0.5 on GPUs, 0 on CPUs."""
    max_seconds: Number | None = Field(20.0, gt=0)
    """Most time of the measured iterations; null: no limit."""
    profiled_iterations: PositiveInt = 20
    """Profiled iterations, in which phases are marked."""
    input_placement: Annotated[list[Literal["device", "pinned", "pageable", "loader"]], Axis] = [
        DEFAULTS["input_placement"]
    ]
    """Where batches come from: GPU memory, host memory (pinned, pageable), or a DataLoader."""
    loader_workers: PositiveInt | None = None
    """Processes of the DataLoader; default 2."""
    augmentation: Augmentation | None = None
    """standard: time the step with augmented images, as a training has it."""
    noise_pair: bool = True
    """Measure cells twice (A/A pairs): four from three repeats on, where that adds a third at most."""

    @model_validator(mode="before")
    @classmethod
    def _under_its_old_name(cls, values: Any) -> Any:
        """A key's old name works one version more."""
        if not isinstance(values, dict):
            return values
        for old in RENAMED_KEYS.keys() & values:
            warnings.warn(f"{old} is called {RENAMED_KEYS[old]} now", FutureWarning, stacklevel=2)
        return with_new_keys(values)


class IterationKind(TrainingKind[IterationPart]):
    part = IterationPart

    def cells(self, part: IterationPart, machine: AvailableMachine, notes: list[str]) -> list[Cell]:
        """All combinations, with the second cells of the A/A pairs."""
        cells = list(super().cells(part, machine, notes))
        if not part.noise_pair:
            return cells
        pairs = _first_of_pairs(cells)
        if part.repeats >= FEWEST_LAUNCHES:
            pairs += _further_pairs(cells, pairs)
        return [*cells, *(replace(cell, aa_replicate=1) for cell in pairs)]

    def check(
        self, part: IterationPart, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str
    ) -> None:
        """Refuses copies to a GPU that is none, a loader that nobody asks, and too short a warm-up."""
        for aggregator in aggregators:
            if part.warmup < aggregator.settling_steps():
                raise StudyError(
                    f"aggregator {aggregator.label()!r} begins to compress after "
                    f"{aggregator.settling_steps()} steps, and warmup is {part.warmup}: steps would be timed "
                    f"that compress nothing; set warmup: {aggregator.settling_steps()}, or fewer warmup_steps"
                )
        copied = [name for name in part.input_placement if name in ("pinned", "pageable")]
        if copied and device != "cuda":
            raise StudyError(
                f"input_placement: {copied[0]} is a copy from host memory to a GPU; on {device} use "
                "device or loader"
            )
        if part.loader_workers is not None and "loader" not in part.input_placement:
            raise StudyError("loader_workers belongs to input_placement: loader; leave it out")

    def extents(self, workload: ChosenWorkload, part: IterationPart, device: str) -> list[dict[str, Any]]:
        names = ("warmup", "iterations", "precision_goal", "max_seconds", "profiled_iterations")
        on_gpu_s = MIN_SECONDS_ON_GPU if device == "cuda" else 0.0
        if is_augmented := chosen("augmentation", workload.keys, part) == "standard":
            check_images(workload, named(workload.keys))
        same = {
            **{name: getattr(part, name) for name in names},
            "min_seconds": on_gpu_s if part.min_seconds is None else part.min_seconds,
            "augmentation": "standard" if is_augmented else None,  # so that ids stay those of before
        }
        loaders = part.loader_workers or DEFAULT_LOADER_WORKERS
        return [
            {**same, "input_placement": place, "loader_workers": loaders if place == "loader" else None}
            for place in part.input_placement
        ]

    def run(self, cell: Cell, context: RunContext) -> RankSummary:
        from scaling.study.rank.iteration import time_cell

        return time_cell(cell, context)

    def steps_s(self, cell: Cell, step_s: float) -> float:
        """With warm-up and profiled iterations, as far as the study's seconds go."""
        assert cell.iterations is not None
        assert cell.warmup is not None
        seconds = (cell.iterations + cell.warmup) * step_s
        if cell.precision_goal is not None:
            usual_s = max(USUAL_ITERATIONS * step_s, cell.min_seconds or 0.0)
            seconds = min(seconds, cell.warmup * step_s + usual_s)
        seconds += (cell.profiled_iterations or 0) * step_s
        if cell.max_seconds is not None:
            seconds = min(seconds, max(1.5 * cell.max_seconds, 7 * step_s))
        return seconds

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """Also how the measurement went."""
        how = ("warmup_iterations", "warmup_end", "stop_reason", "block_iterations")
        return {
            **super().summary(ranks),
            **{name: getattr(ranks[0], name) for name in how},
            "clock_uncertainty_s": [rank.clock_uncertainty_s for rank in ranks],
            "gpu": [rank.gpu for rank in ranks],
            "host": [rank.host for rank in ranks],
        }


def _first_of_pairs(cells: Iterable[Cell]) -> list[Cell]:
    """The cells of the A/A pairs: at the largest world size, of the first aggregator that exchanges."""
    grouped: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        key = (cell.model_label, cell.dataset_label, cell.step, cell.device, cell.peer_access)
        grouped.setdefault(key, []).append(cell)
    found = []
    for group in grouped.values():
        size = max(cell.world_size for cell in group)
        largest = [cell for cell in group if cell.world_size == size]
        found.append(next((cell for cell in largest if cell.exchanges), largest[0]))
    return found


def _further_pairs(cells: Sequence[Cell], pairs: Sequence[Cell]) -> list[Cell]:
    """The cells that make FEWEST_PAIRS of them, of further aggregators and sizes, if time allows."""
    chosen, number = list(pairs), FEWEST_PAIRS - len(pairs)
    exchanging = [cell for cell in cells if cell.exchanges and cell not in pairs]
    others = sorted(exchanging, key=lambda cell: -cell.world_size)
    if number > min(len(others), MOST_FURTHER_PAIRS * len(cells)):
        return []
    for _ in range(number):
        labels, sizes = (
            [getattr(one, name) for one in chosen] for name in ("aggregator_label", "world_size")
        )
        best = min(others, key=lambda one: labels.count(one.aggregator_label) + sizes.count(one.world_size))
        others.remove(best)
        chosen.append(best)
    return chosen[len(pairs) :]
