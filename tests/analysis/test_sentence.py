"""What the sentences may and may not claim, what a reader is warned of, and what the GPUs said."""

import re
from dataclasses import replace

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.summary import summary_table
from scaling.report.page_tables import page_tables
from scaling.report.text import warning_text, warnings_of
from scaling.study.rank.context import RankSummary, notes_of
from tests.made_studies import findings, row_of


def said(study, num_cores=None):
    return " ".join(findings(study.folder, num_cores))


def around(step_s, spread=0.001):
    """Three launches with that median."""
    return [[step_s - spread], [step_s], [step_s + spread]]


def on(world_size, aggregator="ring", **more):
    return {"aggregator": aggregator, "world_size": world_size, **more}


LOSSY = on(4, "one_bit", lossy=True)
RANKED = {
    "a clear winner, with interval and speedup": ([(around(4.0), {}), (around(2.0), on(2)),
     (around(1.0), on(4))],
     ["strong scaling, global batch 64, cpu: with several workers, the fastest is ring on 4",
     "95% interval 99", r"4\.00 ±\d\.\d% times the throughput of one worker"], []),
    "launches do not tell": ([(around(4.0), {}), ([[0.9], [1.0], [1.1]], on(4)),
     ([[1.15], [1.05], [0.95]], on(4, "tree")), (around(3.0), on(2))],
     ["no aggregator is clearly fastest", "tree on 4 workers may be faster"],
     ["the fastest is", "ring on 2 workers"]),
    "launches scatter together": ([([[0.9], [1.0], [1.1]], on(4)),
     ([[0.945], [1.049], [1.156]], on(4, "tree"))], ["the fastest is ring on 4 workers"], []),
    "within three percent": ([(around(1.000), on(4)), (around(1.0005)[::-1], on(4, "tree"))],
     ["tree on 4 workers is not faster by more than 3%"], []),
    "within three percent of the fastest of three": ([(around(1.0), on(4)), (around(1.01), on(4, "tree")),
     (around(1.2), on(4, "host_parallel"))], ["ring on 4 workers has the shortest step",
     "tree on 4 workers is within 3%; all others take longer."], []),
    "a lossy one leaves no exact one open": ([(around(1.0), on(4)), (around(5.0), on(4, "tree")),
     ([[0.8], [1.1], [1.3]], LOSSY)], ["the fastest is ring on 4 workers",
     "all other exact ones take longer. one_bit on 4 workers, lossy, may be faster."], []),
    "one launch": ([([[4.0]], {}), ([[1.0] * 20], on(4)), ([[2.0] * 20], on(4, "tree"))],
     ["ring on 4 workers has the shortest step", "One launch only: another may rank them differently"],
     ["the fastest is"]),
    "a control arm is no candidate": ([(around(4.0), {}), (around(1.0), on(4, "none")), (around(2.0), on(4))],
     ["ring on 4 workers takes"], ["none on 4 workers"]),
    "more workers are slower": ([(around(1.0), {}), (around(2.0), on(2))],
     [r"More workers than one did not help: one worker \(none on 1 worker, "], []),
    "more workers are as fast": ([(around(1.0), {}), (around(1.001), on(2))],
     ["within 3%: more workers did not help"], []),
    "weak scaling is judged by throughput": ([(around(1.0), {"scaling": "weak"}),
     (around(1.1), on(2, scaling="weak")), (around(1.2), on(4, scaling="weak"))],
     ["the fastest is ring on 4 workers"], ["did not help"]),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "claimed", "unsaid"), RANKED.values(), ids=RANKED)
def test_only_what_the_launches_tell_is_claimed_of_the_fastest(study, cells, claimed, unsaid):
    for steps, cell in cells:
        study.add_steps(steps, **cell)
    text = said(study)
    assert [part for part in claimed if not re.search(part, text)] == []
    assert [part for part in unsaid if part in text] == []


@pytest.mark.parametrize(("num_cores", "warned"), [(4, False), (3, True), (None, False)])
def test_workers_that_share_cores_are_warned_of(study, num_cores, warned):
    study.add_steps(around(1.0), aggregator="ring", world_size=2, threads=2)
    assert ("do not show how the training scales" in said(study, num_cores)) is warned


@pytest.mark.parametrize(("accuracies", "claimed"), [
    ({("ring", 1): 0.98, ("ring", 2): 0.97, ("ring", 4): 0.90},
     ["is between 90.00% and 98.00% over 3 combinations", "the lowest is that of ring on 4 workers",
      "2 of 3 combinations reached 95.0% in every repeat; ring on 4 workers did not"]),
    ({("ring", 1): 0.9, ("tree", 1): 0.9},
     ["the final test accuracy is 90.00% in all 2 combinations of aggregator and world size."]),
    ({("none", 1): None}, ["the final loss was not finite for none on 1 worker"]),
], ids=["the range and the worst", "equal accuracies", "divergence"])  # fmt: skip
def test_of_trainings_the_range_the_worst_and_divergence_are_said(study, epoch_line, accuracies, claimed):
    for (aggregator, size), accuracy in accuracies.items():
        loss = 0.1 if accuracy else None
        ranks = [[epoch_line(1, 1.0, loss, accuracy or 0.1)], *[[{"epoch": 1, "train_s": 1.0}]] * (size - 1)]
        cell = {"aggregator": aggregator, "world_size": size, "target_accuracy": 0.95}
        study.add([ranks], kind="convergence", **cell)
    text = said(study)
    assert [part for part in claimed if part not in text] == []
    assert ("lowest" in text) == (len(accuracies) == 3)


@pytest.mark.parametrize(("cells", "claimed"), [
    (["done", "failed: no memory", "planned"], ["Of 3 cells, 1 failed", "Of 3 cells, 1 planned"]),
    *(([one] * bool(one), ["^No cell is done yet"]) for one in ("", "planned", "failed: no memory")),
])  # fmt: skip
def test_cells_that_are_not_done_are_counted_and_not_compared(study, line, cells, claimed):
    for size, state in enumerate(cells, 1):
        study.add([[[line(0, 1.0)]] * size if state == "done" else state], world_size=size)
    assert [part for part in claimed if not re.search(part, said(study))] == []


def told_of_machines(study, boots, hosts=None):
    """What is said of the machines once the runs have been on these boots and hosts."""
    for record, boot, host in zip(study.folder.runs(), boots, hosts or ["here"] * len(boots), strict=True):
        study.folder.write_run(replace(record, launch={**record.launch, "boot": boot, "host": host}))
    return [one for one in findings(study.folder) if "several machines, or before and after" in one]


def test_cells_of_a_machine_that_was_started_again_are_told_apart(study):
    for aggregator in ("ring", "tree"):
        study.add_steps([[0.1] * 3], aggregator=aggregator, world_size=2)
    assert told_of_machines(study, ["3fa2c1b0", "3fa2c1b0"]) == []
    (told,) = told_of_machines(study, ["3fa2c1b0", "00ff00ff"])
    assert "1 cell on boot 3fa2c1b0 (ring on 2 workers); 1 cell on boot 00ff00ff (tree on 2 workers)" in told
    assert "here" not in told  # the only name tells nothing


def test_cells_of_a_host_are_counted_containers_are_one_and_many_machines_are_counted(study):
    for size in (1, 2, 4, 8, 16):
        study.add_steps([[0.1] * 3], aggregator="ring", world_size=size)
    study.add_steps([[0.1] * 3], aggregator="tree", world_size=8)
    (told,) = told_of_machines(study, "aaaaab")
    assert "5 cells on boot a; 1 cell on boot b (tree on 8 workers)" in told
    hosts = [f"pod{number}" for number in range(6)]
    assert told_of_machines(study, "aaaaaa", hosts) == []
    (told,) = told_of_machines(study, "abcdef", hosts)
    assert (told.count("1 cell on pod"), "the rest on 2 more" in told) == (4, True)


def warnings(study):
    return [warning_text(warning) for warning in row_of(study)["warnings"] or ()]


@pytest.mark.parametrize(("unsplit_s", "forward_s", "warned"), [
    (1.0, 0.951, []), (1.0, 0.928, ["unattributed: 7.2% of the step is in no phase"]),
    (0.94, 1.0, ["profiling overhead: makes the step 6.4% longer"]), (0.96, 1.0, []),
    (1.06, 1.0, ["profiling overhead: profiled steps are 5.7% shorter than unprofiled ones: the step varies "
     "by that much, read its phases with care"]),
])  # fmt: skip
def test_five_percent_in_no_phase_or_by_marks_are_warned_of(study, split_line, unsplit_s, forward_s, warned):
    """Timed iterations of data in host memory are not."""
    lines = [[split_line(1, 1.0, ("forward", "main", 0.0, forward_s))]]
    study.add_split([[unsplit_s]], lines, summary={"data_in_host_memory": [True]})
    assert warnings(study) == warned


@pytest.mark.parametrize(("phase", "named"), [
    ("forward", ", in profiled steps on rank 1 in forward"), ("communicate", ""),
])  # fmt: skip
def test_long_steps_are_said_with_their_period_and_phase(study, split_line, phase, named):
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


def gpu(**values):
    """What `scaling.measure.power` says of a GPU on which nothing is wrong."""
    fine = {"window_s": 10.0, "throttle_reasons": [], "throttled_s": {"power cap": 0.0}, "other_processes": 0}
    return {**fine, "energy_per_sample_j": 0.5, **values}


def add_with(study, gpus, launches=1, **summary):
    lines = [[{"iteration": i, "warmup": False, "profiled": False, "step_s": 1.0 + i % 2} for i in range(20)]]
    study.add([lines * len(gpus)] * launches, world_size=len(gpus), summary={"gpu": gpus, **summary})


@pytest.mark.parametrize(("gpus", "warned"), [
    ([gpu(throttle_reasons=["power cap"]), gpu(), gpu(throttled_s={"power cap": 0.2})],
     ["throttled: power cap, GPU of ranks 0 and 2"]),
    ([gpu(throttled_s={"power cap": 0.09})], []),  # less than a hundredth
    ([gpu(), gpu(other_processes=2)], ["other processes: on the GPU of rank 1"]),
    ([None, None], []), ([{}, {"other_processes": None, "throttled_s": None}], []),
])  # fmt: skip
def test_gpu_that_was_disturbed_is_named_with_the_reason(study, gpus, warned):
    add_with(study, gpus)
    assert warnings(study) == warned


@pytest.mark.parametrize(("joules", "energy_j", "peaks", "peak"), [
    ([0.2, 0.4], pytest.approx(0.3), [5, 7], 7), ([0.5, None], None, [None, 7], 7),
    ([None] * 2, None, [None] * 2, None),
])  # fmt: skip
def test_energy_is_the_mean_if_all_ranks_tell_and_memory_the_largest(study, joules, energy_j, peaks, peak):
    add_with(study, [gpu(energy_per_sample_j=one) for one in joules], launches=3, memory_peak_bytes=peaks)
    row = row_of(study)
    assert (row["joules_per_sample"], row["memory_peak_bytes"]) == (energy_j, peak)


SCATTERED = [1.0, 1.1] * 10
TOLD = "precision: 95% interval within a launch is ±4.8% after"


@pytest.mark.parametrize(("steps_s", "reason", "goal", "seconds", "warned"), [
    (SCATTERED, "seconds", 0.01, 10.2, [f"{TOLD} 10 s, goal 1%"]),
    (SCATTERED, "iterations", 0.005, None, [f"{TOLD} 20 steps, goal 0.5%"]),
    ([1.0, 1.1, 1.0], "seconds", 0.01, 3.1, ["precision: no 95% interval after 3.1 s, goal 1%"]),
    (SCATTERED, "precision", 0.01, None, []), (SCATTERED, "iterations", None, None, []),
    (SCATTERED, None, 0.01, None, []),
])  # fmt: skip
def test_goal_that_was_missed_is_told_with_what_was_reached(study, steps_s, reason, goal, seconds, warned):
    lines = [{"iteration": i, "warmup": False, "profiled": False, "step_s": s} for i, s in enumerate(steps_s)]
    summary = {"stop_reason": reason, **({"seconds": {"unprofiled": seconds}} if seconds else {})}
    study.add([[lines]], precision_goal=goal, summary=summary)
    assert warnings(study) == warned


IN_HOST_MEMORY = "host memory: the data set was copied batch by batch; the seconds include that"


def add_training(study, epoch_line, in_host_memory, *, is_old=False, **cell):
    """With whether each rank's data were in host memory; in old records the notes alone say so."""
    notes = notes_of([RankSummary(1, data_in_host_memory=there) for there in in_host_memory])
    run = [[epoch_line(1, 1.0, 0.5, 0.9)]] * len(in_host_memory)
    summary = {} if is_old else {"data_in_host_memory": in_host_memory}
    study.add([run], kind="convergence", world_size=len(in_host_memory), notes=notes, summary=summary, **cell)


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("ranks", [[True, False], [False, True], [False, False]])
def test_training_whose_data_lay_in_host_memory_on_any_rank_is_warned_of(study, epoch_line, ranks, is_old):
    add_training(study, epoch_line, ranks, is_old=is_old)
    expected = [IN_HOST_MEMORY] * any(ranks)
    assert warnings(study) == expected
    (group,) = group_rows([row_of(study)])
    (table,) = page_tables(group, [group])
    assert table.warnings == [f"{one} (none on 2 workers)" for one in expected]


def test_training_on_shared_gpus_has_no_seconds_that_could_hold_copies(study, epoch_line):
    add_training(study, epoch_line, [True, True], device="cuda", workers_per_gpu=2)
    (warning,) = warnings(study)
    assert warning.startswith("shared GPUs: ")


def test_warnings_of_a_group_are_a_text_a_kind_and_many_are_counted(study, split_line):
    for index in range(6):
        lines = [[split_line(1, 1.0, ("forward", "main", 0.0, 0.90 - 0.01 * index))]]
        study.add_split([[1.0]], lines, aggregator=f"a{index}")
    (group,) = group_rows(to_rows(summary_table(study.folder)))
    (text,) = warnings_of(group, most=2)
    assert text == (
        "unattributed: 10.0% of the step is in no phase (a0 on 1 worker); 11.0% of the step is in no phase "
        "(a1 on 1 worker); 4 more in summary.csv"
    )
    (everything,) = warnings_of(group)
    assert everything.count("in no phase") == 6
