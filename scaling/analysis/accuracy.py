"""Whether the accuracy of a lossy aggregator was measured and is as good; without that it is not recommended.

A gradient that is brought together with loss may train to another accuracy, and the times do not show it. An
aggregator is lossy where its cell says so; cells of folders that do not say so are judged by the name.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property

from scaling.analysis.columns import Row
from scaling.analysis.findings import Finding
from scaling.analysis.grouping import by_key
from scaling.analysis.groups import group_rows
from scaling.analysis.learning import REACHED
from scaling.analysis.samples import CellResult
from scaling.analysis.seed_decisions import WORSE
from scaling.analysis.seed_noise import ACCURACY, SeedNoise, is_lossy, seed_noise
from scaling.axes import Shared, columns

LARGEST_LOSS = 0.01
"""The accuracy that a lossy training may lose where no exact one shows how seeds scatter."""

SAME_UPDATE = columns(Shared.UPDATE)
"""What the timed cell and the training share besides model, data set, aggregator and world size."""


def lossy_ids(cells: Sequence[CellResult]) -> frozenset[str]:
    """The ids of trained cells with a lossy exchange."""
    return frozenset(cell.cell_id for cell in cells if cell.is_trained and is_lossy(cell))


class Trainings:
    """The trainings of a study: what its lossy cells are judged by.

    Args:
        rows: the study's.
        cells: the samples they were made of.
    """

    def __init__(self, rows: Sequence[Row], cells: Sequence[CellResult]) -> None:
        self._rows, self._cells, self._lossy = rows, cells, lossy_ids(cells)
        trained = [row for row in rows if row["kind"] == "convergence" and row["repeats"]]
        self._of_aggregator = by_key(trained, lambda row: (_same(row), row["aggregator"]))
        self._of_update = by_key(trained, lambda row: (_same(row), _update(row)))

    @cached_property
    def _noise(self) -> list[SeedNoise]:
        return seed_noise(group_rows(self._rows), {cell.cell_id: cell for cell in self._cells})

    def why_not(self, row: Row, cell: CellResult) -> Finding | None:
        """Why a lossy cell may not be recommended; None if it may be, or if it is not lossy.

        What counts is a training of the same model, data set, aggregator (with its parameters), world size,
        global batch and momentum that reached its target in every repeat, or, without a target, ended no
        further below exact ones than allowed.
        """
        if not is_lossy(cell) or row["world_size"] == 1:
            return None
        same_aggregator = self._of_aggregator.get((_same(row), row["aggregator"]))
        if not same_aggregator:
            return Finding("lossy_not_trained")
        same_update = self._of_update.get((_same(row), _update(row)), [])
        own_same = [other for other in same_update if other["aggregator"] == row["aggregator"]]
        if not own_same:
            return _trained_otherwise(row, same_aggregator)
        exact = [other for other in same_update if other["cell_id"] not in self._lossy]
        for other in own_same:
            if other["target_state"] == REACHED:
                continue
            if (state := other["target_state"]) is not None:
                return Finding("lossy_missed_target", (other["cell_id"],), {"target_state": state})
            if (loss := self._lost(other, exact)) is not None:
                return loss
        return None

    def _lost(self, lossy: Row, exact: Sequence[Row]) -> Finding | None:
        """Whether it is worse by what `seed_noise` decides; without a spread over seeds, by LARGEST_LOSS."""
        scored = [row for row in exact if row["final_test_accuracy"] is not None]
        if lossy["final_test_accuracy"] is None or not scored:
            return Finding("lossy_without_exact", (lossy["cell_id"],))
        for noise in self._noise:
            for one in noise.combinations:
                if lossy["cell_id"] in one.cells and one.decision is not None:
                    lost = {"lost": abs(one.decision.difference), "score": noise.score}
                    lost["reference"] = "exact aggregators"
                    ids = (*one.cells, *(cell_id for other in noise.exact for cell_id in other.cells))
                    return Finding("lossy_below", ids, lost) if one.verdict == WORSE else None
        reference = max(scored, key=lambda row: row["final_test_accuracy"])
        lost_accuracy = reference["final_test_accuracy"] - lossy["final_test_accuracy"]
        if lost_accuracy <= LARGEST_LOSS:
            return None
        values = {"lost": lost_accuracy, "score": ACCURACY, "reference": reference["aggregator"]}
        return Finding("lossy_below", (lossy["cell_id"], reference["cell_id"]), values)


def _same(row: Row) -> Hashable:
    return tuple(row[name] for name in ("model", "dataset", "world_size"))


def _update(row: Row) -> Hashable:
    return tuple(row[name] for name in SAME_UPDATE)


def _trained_otherwise(row: Row, trained: Sequence[Row]) -> Finding:
    """The variables in which the trainings differ from the row, with their values."""
    names = [name for name in SAME_UPDATE if any(other[name] != row[name] for other in trained)]
    here, *others = ({name: trained_row[name] for name in names} for trained_row in (row, *trained))
    different = [*{tuple(other.values()): other for other in others}.values()]
    cells = tuple(other["cell_id"] for other in trained)
    return Finding("lossy_trained_otherwise", cells, {"trained_with": different, "wanted": here})
