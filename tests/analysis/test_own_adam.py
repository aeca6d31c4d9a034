"""1-bit Adam counts as the Adam that it is, though its optimizer is sgd: the exact one is its counterpart."""

from pathlib import Path

import pytest

from scaling.aggregators.one_bit_adam import OneBitAdam
from scaling.analysis.columns import aggregator_name, to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.seed_noise import Trainings
from scaling.analysis.summary import build_table
from scaling.axes import OWN_ADAM, Shared, agree, as_trained
from scaling.store import ResultsFolder

FOLDER = Path(__file__).parents[2] / "results" / "reference" / "converge-gpt-adam-cpu"
BETAS = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
ADAMW = {"optimizer": "adamw", **BETAS, "weight_decay": 0.01, "momentum": 0.0}
BY_SGD = {"optimizer": "sgd", "weight_decay": 0.01, "momentum": 0.0, "aggregator": OWN_ADAM, "lossy": True}


@pytest.fixture(scope="module")
def cells():
    """Trainings with AdamW, exact and lossy, and with 1-bit Adam."""
    return read_cells(ResultsFolder(FOLDER))


@pytest.fixture(scope="module")
def rows(cells):
    return to_rows(build_table("by-hand", cells))


def test_it_stands_in_the_table_of_the_exact_one(rows):
    (group,) = group_rows(rows)
    assert {aggregator_name(row["aggregator"]) for row in group.rows} >= {"all_reduce", OWN_ADAM}


@pytest.mark.parametrize("state", ["reached", None])
def test_a_timed_cell_of_it_is_judged_by_both_trainings(rows, cells, state):
    trained = [{**row, "target_state": state and row["target_state"]} for row in rows]
    row = next(row for row in trained if row["aggregator"] == f"{OWN_ADAM}(warmup_steps=65)")
    (cell,) = [cell for cell in cells if cell.cell_id == row["cell_id"]]
    assert Trainings(trained, cells).why_not({**row, "kind": "iteration", "target_state": None}, cell) is None


def test_an_exact_training_by_sgd_is_not_its_counterpart():
    exact = {"aggregator": "all_reduce", **ADAMW}
    assert agree(Shared.UPDATE | Shared.CONTROL, exact, BY_SGD | {"aggregator_parameters": {}})
    by_sgd = {"aggregator": "all_reduce", "optimizer": "sgd", "weight_decay": 0.01, "momentum": 0.0}
    assert not agree(Shared.UPDATE, by_sgd, BY_SGD)
    assert not agree(Shared.CONTROL, exact, BY_SGD | {"aggregator_parameters": {"beta1": 0.8}})
    assert as_trained(BY_SGD | {"weight_decay": 0.0})["optimizer"] == "adam"


def test_what_a_cell_leaves_out_is_the_aggregators_default():
    trained = as_trained(BY_SGD)
    assert OneBitAdam(**{name: trained[name] for name in ("beta1", "beta2", "epsilon")}) == OneBitAdam()


def test_it_is_recommended_where_it_is_faster_and_reaches_the_target(timed):
    timed.add([[0.03] * 20] * 3, world_size=2, aggregator="all_reduce", **ADAMW)
    faster = timed.add([[0.02] * 20] * 3, world_size=2, **BY_SGD)
    timed.add_training([10.0] * 3, world_size=2, aggregator="all_reduce", **ADAMW)
    timed.add_training([10.0] * 3, world_size=2, **BY_SGD)
    (one,) = recommend(timed.table, timed.cells)
    assert one.choice.cell_id == faster
