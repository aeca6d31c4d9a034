"""Raw samples: their two formats, blocks of local updates, and the time of a launch's step."""

import numpy as np
import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.links import plan_of_cell
from scaling.analysis.rates import MEAN_OF_STEPS, WALL_CLOCK, blocks_by_rule, blocks_of_lengths, rate_of
from scaling.analysis.recommend import recommend
from scaling.analysis.sample_lines import per_step
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.errors import StoreError
from scaling.report.text import title_of
from tests.made import ABSENT


def launch_of(study):
    return read_cells(study.folder)[0].launches[0]


FORWARD = ("forward", "main", 0.0, 0.4)


def test_time_comes_from_unprofiled_steps_alone_and_phases_from_profiled_ones(study, line, split_line):
    lines = [
        line(0, 9.0, warmup=True, profiled=False), line(1, 1.0, profiled=False), line(2, 2.0, profiled=False),
        {**split_line(3, 7.0, FORWARD), "warmup": True}, split_line(4, 1.5, FORWARD, start_s=3.25),
    ]  # fmt: skip
    study.add([[lines]])
    launch = launch_of(study)
    assert (launch.step_s.tolist(), launch.iterations.tolist()) == ([1.0, 2.0], [1, 2])
    (step,) = launch.profiled_steps
    assert (step.iteration, step.ranks[0].step_s, step.ranks[0].start_s) == (4, 1.5, 3.25)
    assert launch.budgets[0][0].parts_s["forward"] == 0.4


def test_old_line_is_both_unprofiled_and_profiled_with_its_phases_one_after_the_other(study, line):
    study.add([[[line(0, 1.0, forward_s=0.25, backward_s=0.5, communicate_s=0.125)]]], aggregator="ring")
    launch = launch_of(study)
    assert launch.step_s.tolist() == [1.0]
    ((budget,),) = launch.budgets
    expected = {"forward": 0.25, "backward": 0.5, "exposed_comm": 0.125, "unattributed": 0.125}
    assert {name: seconds for name, seconds in budget.parts_s.items() if seconds} == expected
    assert (budget.hidden_comm_s, budget.arrived_after_first_s) == (0.0, None)


@pytest.mark.parametrize("step", ["captured", "eager"])
def test_line_without_marks_inside_tells_no_phase_and_a_split_one_does(study, line, split_line, step):
    study.add([[[line(0, 1.0, **{"input_s": 0.1} if step == "captured" else {})]]], step=step)
    assert launch_of(study).profiled_steps == []
    study.add([[[line(0, 1.0, profiled=False), split_line(1, 1.0, FORWARD)]]], step=step)
    assert len(read_cells(study.folder)[1].launches[0].profiled_steps) == 1


def test_rank_that_waits_least_in_split_steps_is_waited_for(study, split_line):
    def rank(arrives):
        return [split_line(5, 1.0, ("communicate", "main", arrives, 0.9))]

    study.add_split([[1.0]], [rank(0.2), rank(0.6), rank(0.4)], aggregator="ring")
    assert launch_of(study).waited_for == 1


@pytest.mark.parametrize(("change", "message"), [
    ({"spans": None}, "spans is None"), ({"spans": ABSENT}, "lacks 'spans'"),
    ({"spans": [["forward", "main", 0.0]]}, r"spans.0.3 is missing"),
    ({"spans": [["foward", "main", 0.0, 1.0]]}, "phase 'foward'; allowed: input,"),
    ({"spans": [["forward", 3, 0.0, 1.0]]}, "valid string"),
    ({"spans": [["forward", "main", 0.0, None]]}, "valid number"),
    ({"start_s": "noon"}, "start_s is 'noon'"), ({"step_s": None}, "step_s is None"),
])  # fmt: skip
def test_damaged_split_line_is_an_error_that_names_the_run(study, line, split_line, change, message):
    changed = {**split_line(1, 1.0, FORWARD), **change}
    kept = {key: value for key, value in changed.items() if value is not ABSENT}
    cell_id = study.add([[[line(0, 1.0, profiled=False), kept]]])
    with pytest.raises(StoreError, match=message) as caught:
        read_cells(study.folder)
    assert f"{cell_id}/0" in str(caught.value)


def test_split_steps_of_ranks_that_differ_are_an_error(study, line, split_line):
    one = [line(0, 1.0, profiled=False), split_line(1, 1.0, FORWARD)]
    study.add([[one, [line(0, 1.0, profiled=False), split_line(2, 1.0, FORWARD)]]], world_size=2)
    with pytest.raises(StoreError, match="ranks 0 and 1 recorded different iterations"):
        read_cells(study.folder)


def test_start_that_is_not_known_is_allowed(study, line, split_line):
    study.add([[[line(0, 1.0, profiled=False), {**split_line(1, 1.0, FORWARD), "start_s": None}]]])
    assert launch_of(study).profiled_steps[0].ranks[0].start_s is None


def launch(steps_s, gap_s=0.0, blocks=(0,), pause_s=0.0):
    """Starts of one rank's steps: [rank, step]."""
    before = np.full(len(steps_s), gap_s)
    before[list(blocks)] = pause_s
    return np.array([steps_s]), np.array([np.cumsum([0.0, *steps_s[:-1]]) + np.cumsum(before)])


def test_gaps_between_steps_and_stalls_count_and_pauses_between_blocks_do_not():
    steps, starts = launch([1.0] * 6, gap_s=0.1, blocks=(0, 3), pause_s=5.0)
    rate = rate_of(steps, starts, (0, 3))
    assert rate.iteration_s == pytest.approx((6 + 4 * 0.1) / 6)
    assert (rate.form, rate.pauses_s) == (WALL_CLOCK, pytest.approx(5.0))
    times = [0.52] * 70
    times[6::7] = [2.92] * 10
    assert rate_of(*launch(times), (0,)).iteration_s == pytest.approx(0.52 + 2.4 / 7, rel=0.03)


def test_waiting_for_a_rank_that_begins_later_is_left_out_and_without_starts_steps_have_a_mean():
    steps = np.array([[30.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    rate = rate_of(steps, np.array([[0.0, 30.0, 31.0], [29.0, 30.0, 31.0]]), (0,))
    assert rate.iteration_s == pytest.approx(1.0)
    rate = rate_of(np.array([[1.0, 2.0], [3.0, 1.0]]), None, (0,))
    assert (rate.iteration_s, rate.form) == (2.5, MEAN_OF_STEPS)


@pytest.mark.parametrize("first", [3, 10, 17])
def test_blocks_are_found_by_recorded_lengths_or_of_an_older_record_by_their_rule(first):
    blocks = (0, *range(first, 80, 20))  # a tenth of a second of 5 ms
    steps, starts = launch([0.005] * 80, gap_s=1e-6, blocks=blocks, pause_s=0.002)
    assert blocks_by_rule(steps, starts) == blocks
    assert blocks_of_lengths([10, 20, 5], 35) == (0, 10, 30)


BLOCK = {"sync_every": 4, "outer_update": "average", "lossy": True, "aggregator": "ring", "world_size": 2}


def blocks(line, split_line, step_s=0.010, exchange_s=0.020):
    """Two ranks' lines: blocks of four steps and one exchange, one after the other, then a profiled one."""
    block_s = 4 * step_s + exchange_s
    started = {"profiled": False, "steps": 4}
    unprofiled = [line(k, block_s, start_s=100 + k * block_s, **started) for k in range(3)]
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


def test_a_step_has_its_part_of_the_exchange_and_names_say_how_often_models_meet(local, line):
    row = row_of_block(local)
    assert row["iteration_s"] == pytest.approx(0.010 + 0.020 / 4)
    assert row["typical_iteration_s"] == pytest.approx(0.015)
    assert (row["forward_s"], row["exposed_comm_s"]) == (pytest.approx(0.010), pytest.approx(0.005))
    assert (row["iterations"], row["speedup"]) == (12, pytest.approx(0.010 / 0.015))
    (group,) = group_rows(to_rows(read(local)[0]))
    assert [group.name(row) for row in group.rows] == ["none", "ring", "ring, average every 4 steps"]
    assert "sync_every" not in title_of(group.given)
    single = line(0, 0.01)
    assert per_step(single) is single


def test_pauses_are_of_the_blocks_themselves(study, line, split_line):
    ranks = blocks(line, split_line)
    for lines in ranks[:1]:
        for late in lines[1:3]:
            late["start_s"] += 0.5
    study.add([ranks], summary={"block_iterations": [1, 2]}, **BLOCK)
    row = row_of_block(study)
    assert (row["iteration_s"], row["pauses_s"]) == (pytest.approx(0.015), pytest.approx(0.5))


def test_faster_blocks_are_not_recommended_without_a_training_with_such_blocks(local, epochs):
    (found,) = recommend(*read(local))
    assert found.choice.row["sync_every"] == 1
    assert [(one.row["sync_every"], one.reason.kind) for one in found.excluded] == [(4, "lossy_not_trained")]
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
