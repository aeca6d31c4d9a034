"""Samples that are blocks of local updates are read as mean steps, and named with how often models meet."""

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.links import plan_of_cell
from scaling.analysis.recommend import recommend
from scaling.analysis.sample_lines import per_step
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.report.text import title_of

BLOCK = {"sync_every": 4, "outer_update": "average", "lossy": True, "aggregator": "ring", "world_size": 2}


def blocks(line, split_line, step_s=0.010, exchange_s=0.020):
    """Two ranks' lines: blocks of four steps and one exchange, one after the other, then a profiled one."""
    block_s = 4 * step_s + exchange_s
    unprofiled = [
        {**line(number, block_s, profiled=False), "steps": 4, "start_s": 100 + number * block_s}
        for number in range(3)
    ]
    spans = [("forward", "main", number * step_s, (number + 1) * step_s) for number in range(4)]
    spans.append(("communicate", "main", 4 * step_s, block_s))
    return [[*unprofiled, split_line(3, block_s, *spans, start_s=200.0, steps=4)]] * 2


@pytest.fixture
def local(study, line, split_line):
    study.add_steps([[0.010] * 3], world_size=1)
    study.add_steps([[0.030] * 3], aggregator="ring", world_size=2)
    study.add([blocks(line, split_line)], summary={"block_iterations": [3]}, **BLOCK)
    return study


def read(study):
    """The table and the cells of a folder."""
    cells = read_cells(study.folder)
    return build_table("by-hand", cells), cells


def row_of_block(study):
    return next(row for row in to_rows(read(study)[0]) if row["sync_every"] == 4)


def test_a_step_has_its_part_of_the_exchange(local):
    row = row_of_block(local)
    assert row["iteration_s"] == pytest.approx(0.010 + 0.020 / 4)
    assert row["typical_iteration_s"] == pytest.approx(0.015)
    assert (row["forward_s"], row["exposed_comm_s"]) == (pytest.approx(0.010), pytest.approx(0.005))
    assert (row["iterations"], row["speedup"]) == (12, pytest.approx(0.010 / 0.015))


def test_pauses_are_of_the_blocks_themselves(study, line, split_line):
    ranks = blocks(line, split_line)
    for lines in ranks[:1]:
        for late in lines[1:3]:
            late["start_s"] += 0.5
    study.add([ranks], summary={"block_iterations": [1, 2]}, **BLOCK)
    row = row_of_block(study)
    assert (row["iteration_s"], row["pauses_s"]) == (pytest.approx(0.015), pytest.approx(0.5))


def test_a_line_of_one_step_stays_as_it_is(line):
    single = line(0, 0.01)
    assert per_step(single) is single


def test_names_say_how_often_models_are_brought_together(local):
    (group,) = group_rows(to_rows(read(local)[0]))
    assert [group.name(row) for row in group.rows] == ["none", "ring", "ring, average every 4 steps"]
    assert "sync_every" not in title_of(group.given)


def test_faster_blocks_are_not_recommended_without_a_training(local):
    (found,) = recommend(*read(local))
    assert found.choice.row["sync_every"] == 1
    assert [(one.row["sync_every"], one.reason.kind) for one in found.excluded] == [(4, "lossy_not_trained")]


def test_a_training_with_such_blocks_alone_speaks_for_them(local, epochs):
    trained = {"kind": "convergence", "target_accuracy": 0.9, "aggregator": "ring", "world_size": 2}
    local.add([[epochs([0.95])] * 2], **trained)
    (found,) = recommend(*read(local))
    assert [one.reason.kind for one in found.excluded] == ["lossy_trained_otherwise"]
    local.add([[epochs([0.95])] * 2], **{**trained, **BLOCK})
    (found,) = recommend(*read(local))
    assert not found.excluded


def test_plan_of_a_block_is_read_as_its_mean_step(study, line, split_line):
    exchange = {"schedule": "ring", "native": False, "library": "sends", "num_steps": 2}
    plan = [{**exchange, "bytes": {"8000": "0>1 1>0"}}]
    summary = {
        "block_iterations": [3], "num_parameters": 2000, "wire_bytes_per_rank": [2000, 2000], "plan": plan,
    }  # fmt: skip
    study.add([blocks(line, split_line)], summary=summary, **BLOCK)
    (cell,) = read_cells(study.folder)
    assert plan_of_cell(cell).sent_to(0) == {"1": 2000}
