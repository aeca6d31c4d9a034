"""The two formats of raw samples, with split steps and marked throughout; the time of a launch's step."""

import numpy as np
import pytest

from scaling.analysis.rates import MEAN_OF_STEPS, WALL_CLOCK, blocks_by_rule, blocks_of_lengths, rate_of
from scaling.analysis.samples import read_cells
from scaling.errors import StoreError
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
def test_line_without_marks_inside_the_step_tells_no_phase_and_a_split_one_does(
    study, line, split_line, step
):
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


def test_gaps_between_steps_count_and_pauses_between_blocks_do_not():
    steps, starts = launch([1.0] * 6, gap_s=0.1, blocks=(0, 3), pause_s=5.0)
    rate = rate_of(steps, starts, (0, 3))
    assert rate.iteration_s == pytest.approx((6 + 4 * 0.1) / 6)
    assert (rate.form, rate.pauses_s) == (WALL_CLOCK, pytest.approx(5.0))


def test_a_stall_in_every_seventh_step_is_in_the_rate():
    times = [0.52] * 70
    times[6::7] = [2.92] * 10
    assert rate_of(*launch(times), (0,)).iteration_s == pytest.approx(0.52 + 2.4 / 7, rel=0.03)


def test_waiting_for_a_rank_that_begins_later_is_left_out():
    steps = np.array([[30.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    rate = rate_of(steps, np.array([[0.0, 30.0, 31.0], [29.0, 30.0, 31.0]]), (0,))
    assert rate.iteration_s == pytest.approx(1.0)


def test_without_starts_it_is_the_mean_of_the_slowest_rank_and_says_so():
    rate = rate_of(np.array([[1.0, 2.0], [3.0, 1.0]]), None, (0,))
    assert (rate.iteration_s, rate.form) == (2.5, MEAN_OF_STEPS)


@pytest.mark.parametrize("first", [3, 10, 17])
def test_blocks_of_an_older_record_are_found_by_their_rule(first):
    blocks = (0, *range(first, 80, 20))  # a tenth of a second of 5 ms
    steps, starts = launch([0.005] * 80, gap_s=1e-6, blocks=blocks, pause_s=0.002)
    assert blocks_by_rule(steps, starts) == blocks


def test_recorded_lengths_tell_the_blocks():
    assert blocks_of_lengths([10, 20, 5], 35) == (0, 10, 30)
