"""A variable that is one row of the table: all that reads the table respects it, without a change there."""

import itertools
from dataclasses import dataclass, fields

import pytest

from scaling import axes
from scaling.analysis import groups
from scaling.analysis.columns import has_no_model, to_rows
from scaling.analysis.comparison import match_cells
from scaling.analysis.groups import group_rows
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.prediction.compute import ComputeModel
from scaling.prediction.measured import MeasuredCell
from scaling.report.exports import FORMATS
from scaling.report.status import status_table
from scaling.report.text import title_of
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.pruning import judge
from tests.made import made_cells

PLAIN = [[0.010, 0.011, 0.012]]


@pytest.fixture(autouse=True)
def dropout(monkeypatch):
    """The row; studies that were measured before have no dropout."""
    row = axes.Axis("dropout", "float64", default=0.0, later=True, label="dropout {:g}")
    axes.AXES.append(row)
    axes.with_columns.cache_clear()
    shared = {trained: [*own, row] for trained, own in groups._SHARED.items()}
    monkeypatch.setattr(groups, "_SHARED", shared)
    yield row
    axes.AXES.remove(row)
    axes.with_columns.cache_clear()


def fill(study, **both):
    for size in (1, 2):
        aggregator = "none" if size == 1 else "ring"
        study.add(PLAIN, aggregator=aggregator, world_size=size, **both)
        study.add([[0.020, 0.021, 0.022]], aggregator=aggregator, world_size=size, dropout=0.5, **both)
    return study


@pytest.fixture
def made(make_study):
    return fill(make_study())


def rows_of(study):
    return to_rows(study.table)


def test_summary_has_its_column_and_default_groups_and_recommendations_differ_in_it(made):
    assert str(made.table["dropout"].dtype) == "float64"
    assert sorted(made.table["dropout"]) == [0.0, 0.0, 0.5, 0.5]
    found = group_rows(rows_of(made))
    assert [[row["dropout"] for row in group.rows] for group in found] == [[0.0] * 2, [0.5] * 2]
    assert [title_of(group.given).rpartition(", ")[2] for group in found] == ["dropout 0", "dropout 0.5"]
    speedups = {(row["world_size"], row["dropout"]): row["speedup"] for row in rows_of(made)}
    assert speedups == {(1, 0.0): 1, (1, 0.5): 1, (2, 0.0): 1, (2, 0.5): 1}
    found = [(title_of(one.workload), one.choice.row["dropout"]) for one in recommend(made.table, made.cells)]
    told = {title.rpartition(", ")[2]: dropout for title, dropout in found}
    assert told == {"dropout 0": 0.0, "dropout 0.5": 0.5}


def test_control_arm_shares_it(timed):
    for name, step_s, own in (("none", 0.010, {}), ("ring", 0.030, {}), ("ring", 0.030, {"dropout": 0.5})):
        timed.add([[step_s] * 3], aggregator=name, world_size=2, **own)
    differences = {row["dropout"]: row["exposed_by_difference_s"] for row in rows_of(timed)[1:]}
    assert differences == {0.0: pytest.approx(0.020), 0.5: None}


def test_cells_of_two_folders_match_by_it(made, make_study):
    other = fill(make_study(), seed=1)  # so that no identity is the same
    matches, *_ = match_cells(rows_of(made), rows_of(other))
    assert len(matches) == 4
    assert all(match.a["dropout"] == match.b["dropout"] for match in matches)


def test_status_names_it_where_cells_differ_in_it(study, line):
    for dropout in (0.0, 0.5):
        study.add(["planned"], dropout=dropout)
    assert [row["name"] for row in status_table(study.folder)] == ["none, dropout 0", "none, dropout 0.5"]


def test_extra_p_has_a_region_for_each_of_its_values(study):
    for size, dropout in itertools.product((1, 2), (0.0, 0.5)):
        study.add_steps(PLAIN, aggregator="ring", world_size=size, dropout=dropout)
    lines = list(FORMATS["extra-p"](study.folder, read_cells(study.folder)))
    regions = [line.rpartition("->")[2] for line in lines if line.startswith("REGION")]
    assert regions == ["dropout_0", "dropout_0.5"]


def test_computation_is_predicted_from_cells_that_share_it(made):
    cells = [cell.cell for cell in made.cells if cell.cell["world_size"] == 1]
    model = ComputeModel(MeasuredCell(cell, 0.01 + cell.get("dropout", 0.0), 0.01) for cell in cells)
    predicted = {cell.get("dropout", 0.0): model.step(cell, 64).step_s.value for cell in cells}
    assert predicted == {0.0: pytest.approx(0.01), 0.5: pytest.approx(0.51)}


@dataclass(frozen=True)
class DroppingCell(Cell):
    dropout: float = 0.0


def values_of(cell):
    return {field.name: getattr(cell, field.name) for field in fields(cell)}


def dropping(**changes):
    workload = {"model": "resnet-56", "dataset": "synthetic", "global_batch": 8}
    more = {"device": "cpu", "workloads": [workload], "aggregators": ["ring", "tree"], "world_sizes": [2]}
    cells = made_cells(AvailableMachine(num_gpus=0, num_cores=2), **more)
    return [DroppingCell(**{**values_of(cell), **changes}) for cell in cells]


def test_pruning_compares_cells_that_share_it_which_at_its_default_keep_their_identity():
    (ring, tree), (ring_dropping, _) = dropping(), dropping(dropout=0.5)
    rows = [
        {"cell_id": cell.id, "iteration_s": s, "iteration_s_low": s, "iteration_s_high": s}
        for cell, s in ((ring, 0.001), (tree, 0.010), (ring_dropping, 0.010))
    ]
    cells = [ring, tree, ring_dropping]
    verdicts = judge(cells, rows, {cell.id: 1 for cell in cells})
    assert [verdict.keep for verdict in verdicts] == [True, False, True]
    plain, other = dropping()[0], dropping(dropout=0.5)[0]
    assert plain.id == Cell(**{key: value for key, value in values_of(plain).items() if key != "dropout"}).id
    assert other.id != plain.id


def test_cells_of_a_users_kind_that_trains_a_model_are_shown_like_iterations():
    cell = {"kind": "mine", "model": "mlp", "model_label": "mlp(hidden=3)", "tf32": True}
    assert (axes.axis("precision").shown(cell), axes.axis("model").shown(cell)) == ("tf32", "mlp(hidden=3)")
    assert axes.axis("memory_format").shown(cell) == "contiguous"
    assert not has_no_model(cell)
    assert has_no_model({"kind": "mine"})
    assert has_no_model({"kind": "device", "model": "mlp"})
