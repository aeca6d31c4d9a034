"""What a reader is warned of, and what the GPUs said."""

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.summary import summary_table
from scaling.report.page_tables import page_tables
from scaling.report.text import warning_text, warnings_of
from scaling.study.rank.context import RankSummary, notes_of


def row_of(study):
    (row,) = to_rows(summary_table(study.folder))
    return row


def warnings(study):
    return [warning_text(warning) for warning in row_of(study)["warnings"] or ()]


def test_budget_that_closes_within_five_percent_is_not_warned_of(study, split_line):
    study.add_split([[1.0]], [[split_line(1, 1.0, ("forward", "main", 0.0, 0.951))]])
    assert warnings(study) == []


def test_step_with_more_than_five_percent_in_no_phase_is_warned_of(study, split_line):
    study.add_split([[1.0]], [[split_line(1, 1.0, ("forward", "main", 0.0, 0.928))]])
    assert warnings(study) == ["unattributed: 7.2% of the step is in no phase"]


@pytest.mark.parametrize(
    ("phase", "named"), [("forward", ", in profiled steps on rank 1 in forward"), ("communicate", "")]
)
def test_long_steps_are_said_with_their_period_and_the_phase_that_they_are_long_in(
    study, split_line, phase, named
):
    """Every 7th step takes twice as long: on rank 1, or in the exchange, which no rank has alone."""
    times = [2.0 if number % 7 == 6 else 1.0 for number in range(210)]

    def lines(rank):
        made = []
        for number in range(210, 252):
            more = number % 7 == 6
            forward = 0.6 + (more and phase == "forward" and rank == 1)
            spans = ("forward", "main", 0.0, forward), ("communicate", "main", forward, 1.0 + more)
            made.append(split_line(number, 1.0 + more, *spans))
        return made

    study.add_split([times] * 3, [lines(rank) for rank in range(2)], aggregator="ring")
    said = f"long steps: 14% above the median step, one step in 7 is long{named}"
    assert [warning for warning in warnings(study) if warning.startswith("long steps")] == [said]


@pytest.mark.parametrize(("block", "stall"), [(20, 20), (30, 30), (20, 35)])
def test_long_first_steps_of_blocks_are_said(study, split_line, block, stall):
    """A stall in phase with the pauses of the measurement is no period that is known, but it is said."""
    times = [4.0 if number and number % stall == 0 else 1.0 for number in range(210)]
    lengths = [block] * (210 // block)
    study.add_split([times] * 3, [[split_line(210, 1.0)]] * 2, summary={"block_iterations": lengths})
    (said,) = [warning for warning in warnings(study) if warning.startswith("long steps")]
    ours = f"long are the first steps of blocks of {block}, after pauses of the measurement"
    assert (ours in said) == (block == stall), said


def test_reasons_of_all_repeats_take_four_kilobytes_at_most(study):
    study.add([f"failed: {number}{'E' * 100_000}" for number in range(3)])
    reason = row_of(study)["reason"]
    assert len(reason.encode()) <= 4096
    assert reason.endswith("more characters are in the log: launches/*.log]")


@pytest.mark.parametrize(
    ("unsplit_s", "warned"),
    [
        (0.94, ["profiling overhead: makes the step 6.4% longer"]),
        (0.96, []),
        (
            1.06,
            [
                "profiling overhead: profiled steps are 5.7% shorter than unprofiled ones: the step varies "
                "by that much, read its phases with care"
            ],
        ),
    ],
)
def test_marks_that_change_the_step_by_more_than_five_percent_are_warned_of(
    study, split_line, unsplit_s, warned
):
    study.add_split([[unsplit_s]], [[split_line(1, 1.0, ("forward", "main", 0.0, 1.0))]])
    assert warnings(study) == warned


def gpu(**values):
    """What `scaling.measure.power` says of a GPU on which nothing is wrong."""
    fine = {"window_s": 10.0, "throttle_reasons": [], "throttled_s": {"power cap": 0.0}, "other_processes": 0}
    return {**fine, "energy_per_sample_j": 0.5, **values}


def add_with(study, gpus, launches=1, **summary):
    lines = [[{"iteration": i, "warmup": False, "profiled": False, "step_s": 1.0 + i % 2} for i in range(20)]]
    study.add([lines * len(gpus)] * launches, world_size=len(gpus), summary={"gpu": gpus, **summary})


def test_gpu_that_was_throttled_is_named_with_the_reason(study):
    add_with(study, [gpu(throttle_reasons=["power cap"]), gpu(), gpu(throttled_s={"power cap": 0.2})])
    assert warnings(study) == ["throttled: power cap, GPU of ranks 0 and 2"]


def test_clocks_held_down_for_less_than_a_hundredth_are_not_warned_of(study):
    add_with(study, [gpu(throttled_s={"power cap": 0.09})])
    assert warnings(study) == []


def test_other_processes_on_a_gpu_are_warned_of(study):
    add_with(study, [gpu(), gpu(other_processes=2)])
    assert warnings(study) == ["other processes: on the GPU of rank 1"]


@pytest.mark.parametrize("gpus", [[None, None], [{}, {"other_processes": None, "throttled_s": None}]])
def test_gpu_that_says_nothing_is_not_warned_of(study, gpus):
    add_with(study, gpus)
    assert warnings(study) == []
    assert row_of(study)["joules_per_sample"] is None


def test_energy_per_sample_is_the_mean_over_ranks_and_median_over_repeats(study):
    add_with(study, [gpu(energy_per_sample_j=0.2), gpu(energy_per_sample_j=0.4)], launches=3)
    assert row_of(study)["joules_per_sample"] == pytest.approx(0.3)


def test_energy_that_one_rank_did_not_tell_is_empty(study):
    add_with(study, [gpu(), gpu(energy_per_sample_j=None)])
    assert row_of(study)["joules_per_sample"] is None


@pytest.mark.parametrize(("peaks", "expected"), [([5, 7], 7), ([None, 7], 7), ([None, None], None)])
def test_memory_peak_is_the_largest_of_all_ranks(study, peaks, expected):
    add_with(study, [gpu(), gpu()], memory_peak_bytes=peaks)
    assert row_of(study)["memory_peak_bytes"] == expected


def add_with_goal(study, steps_s, stop_reason, goal=0.01, **summary):
    lines = [{"iteration": i, "warmup": False, "profiled": False, "step_s": s} for i, s in enumerate(steps_s)]
    summary = {"stop_reason": stop_reason, **summary}
    study.add([[lines]], precision_goal=goal, summary=summary)


SCATTERED = [1.0, 1.1] * 10


def test_goal_that_was_missed_is_warned_of_with_what_was_reached(study):
    add_with_goal(study, SCATTERED, "seconds", seconds={"unprofiled": 10.2})
    assert warnings(study) == ["precision: 95% interval within a launch is ±4.8% after 10 s, goal 1%"]


def test_goal_that_was_missed_is_told_in_iterations_where_seconds_are_not_known(study):
    add_with_goal(study, SCATTERED, "iterations", goal=0.005)
    assert warnings(study) == ["precision: 95% interval within a launch is ±4.8% after 20 steps, goal 0.5%"]


def test_too_few_iterations_for_an_interval_are_told_so(study):
    add_with_goal(study, [1.0, 1.1, 1.0], "seconds", seconds={"unprofiled": 3.1})
    assert warnings(study) == ["precision: no 95% interval after 3.1 s, goal 1%"]


@pytest.mark.parametrize(("reason", "goal"), [("precision", 0.01), ("iterations", None), (None, 0.01)])
def test_goal_that_was_reached_or_not_set_is_not_warned_of(study, reason, goal):
    add_with_goal(study, SCATTERED, reason, goal)
    assert warnings(study) == []


IN_HOST_MEMORY = "host memory: the data set was copied batch by batch; the seconds include that"


def add_training(study, epoch_line, in_host_memory, *, is_old=False, **cell):
    """With whether each rank's data were in host memory; in old records the notes alone say so."""
    notes = notes_of([RankSummary(1, data_in_host_memory=there) for there in in_host_memory])
    run = [[epoch_line(1, 1.0, 0.5, 0.9)]] * len(in_host_memory)
    summary = {} if is_old else {"data_in_host_memory": in_host_memory}
    study.add([run], kind="convergence", world_size=len(in_host_memory), notes=notes, summary=summary, **cell)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("ranks", [[True, False], [False, True]])
def test_training_whose_data_lay_in_host_memory_on_any_rank_is_warned_of(study, epoch_line, ranks, is_old):
    add_training(study, epoch_line, ranks, is_old=is_old)
    assert warnings(study) == [IN_HOST_MEMORY]
    (group,) = group_rows([row_of(study)])
    (table,) = page_tables(group, [group])
    assert table.warnings == [f"{IN_HOST_MEMORY} (none on 2 workers)"]


def test_training_with_its_data_on_the_gpu_is_not_warned_of(study, epoch_line):
    add_training(study, epoch_line, [False, False])
    assert warnings(study) == []


def test_training_on_shared_gpus_has_no_seconds_that_could_hold_copies(study, epoch_line):
    add_training(study, epoch_line, [True, True], device="cuda", workers_per_gpu=2)
    (warning,) = warnings(study)
    assert warning.startswith("shared GPUs: ")


def test_timed_iterations_of_data_in_host_memory_are_not_warned_of(study, split_line):
    lines = [[split_line(1, 1.0, ("forward", "main", 0.0, 1.0))]]
    study.add_split([[1.0]], lines, summary={"data_in_host_memory": [True]})
    assert warnings(study) == []


def test_warnings_of_a_group_are_a_text_a_kind_and_many_are_counted(study, split_line):
    for index in range(6):
        share = 0.90 - 0.01 * index
        lines = [[split_line(1, 1.0, ("forward", "main", 0.0, share))]]
        study.add_split([[1.0]], lines, aggregator=f"a{index}")
    (group,) = group_rows(to_rows(summary_table(study.folder)))
    (text,) = warnings_of(group, most=2)
    assert text == (
        "unattributed: 10.0% of the step is in no phase (a0 on 1 worker); 11.0% of the step is in no phase "
        "(a1 on 1 worker); 4 more in summary.csv"
    )
    (everything,) = warnings_of(group)
    assert everything.count("in no phase") == 6
