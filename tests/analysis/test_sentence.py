"""What the sentences may and may not claim."""

import re
from dataclasses import replace

import pytest

from tests.made_studies import findings


def said(study, num_cores=None):
    return " ".join(findings(study.folder, num_cores))


def around(step_s, spread=0.001):
    """Three launches with that median."""
    return [[step_s - spread], [step_s], [step_s + spread]]


def test_clear_winner_is_named_with_interval_and_speedup(study):
    study.add_steps(around(4.0))
    study.add_steps(around(2.0), aggregator="ring", world_size=2)
    study.add_steps(around(1.0), aggregator="ring", world_size=4)
    text = said(study)
    assert "strong scaling, global batch 64, cpu: with several workers, the fastest is ring on 4" in text
    assert "95% interval 99" in text
    assert re.search(r"4\.00 ±\d\.\d% times the throughput of one worker", text)


def test_no_winner_is_named_where_the_launches_do_not_tell(study):
    study.add_steps(around(4.0))
    study.add_steps([[0.9], [1.0], [1.1]], aggregator="ring", world_size=4)
    study.add_steps([[1.15], [1.05], [0.95]], aggregator="tree", world_size=4)
    study.add_steps(around(3.0), aggregator="ring", world_size=2)
    text = said(study)
    assert "the fastest is" not in text
    assert "no aggregator is clearly fastest" in text
    assert "tree on 4 workers may be faster" in text
    assert "ring on 2 workers" not in text


def test_winner_is_named_where_the_launches_scatter_together(study):
    study.add_steps([[0.9], [1.0], [1.1]], aggregator="ring", world_size=4)
    study.add_steps([[0.945], [1.049], [1.156]], aggregator="tree", world_size=4)
    assert "the fastest is ring on 4 workers" in said(study)


def test_times_within_three_percent_are_not_faster_by_more(study):
    study.add_steps(around(1.000), aggregator="ring", world_size=4)
    study.add_steps(around(1.0005)[::-1], aggregator="tree", world_size=4)
    assert "tree on 4 workers is not faster by more than 3%" in said(study)


def test_those_within_three_percent_are_named_next_to_the_fastest(study):
    study.add_steps(around(1.0), aggregator="ring", world_size=4)
    study.add_steps(around(1.01), aggregator="tree", world_size=4)
    study.add_steps(around(1.2), aggregator="host_parallel", world_size=4)
    text = said(study)
    assert "ring on 4 workers has the shortest step" in text
    assert "tree on 4 workers is within 3%; all others take longer." in text


def test_lossy_ones_do_not_leave_the_fastest_exact_one_open(study):
    study.add_steps(around(1.0), aggregator="ring", world_size=4)
    study.add_steps(around(5.0), aggregator="tree", world_size=4)
    study.add_steps([[0.8], [1.1], [1.3]], aggregator="one_bit", world_size=4, lossy=True)
    text = said(study)
    assert "the fastest is ring on 4 workers" in text
    assert "all other exact ones take longer. one_bit on 4 workers, lossy, may be faster." in text


def test_one_launch_is_said_to_be_one(study):
    study.add_steps([[4.0]])
    study.add_steps([[1.0] * 20], aggregator="ring", world_size=4)
    study.add_steps([[2.0] * 20], aggregator="tree", world_size=4)
    text = said(study)
    assert "ring on 4 workers has the shortest step" in text
    assert "One launch only: another may rank them differently" in text
    assert "the fastest is" not in text


def test_control_arms_are_no_candidates(study):
    study.add_steps(around(4.0))
    study.add_steps(around(1.0), world_size=4)
    study.add_steps(around(2.0), aggregator="ring", world_size=4)
    text = said(study)
    assert "ring on 4 workers takes" in text
    assert "none on 4 workers" not in text


def test_more_workers_that_did_not_help_are_said_not_to(study):
    study.add_steps(around(1.0))
    study.add_steps(around(2.0), aggregator="ring", world_size=2)
    assert "More workers than one did not help: one worker (none on 1 worker, " in said(study)


def test_more_workers_that_are_as_fast_as_one_did_not_help(study):
    study.add_steps(around(1.0))
    study.add_steps(around(1.001), aggregator="ring", world_size=2)
    assert "within 3%: more workers did not help" in said(study)


def test_weak_scaling_is_judged_by_throughput(study):
    study.add_steps(around(1.0), scaling="weak")
    study.add_steps(around(1.1), scaling="weak", aggregator="ring", world_size=2)
    study.add_steps(around(1.2), scaling="weak", aggregator="ring", world_size=4)
    text = said(study)
    assert "the fastest is ring on 4 workers" in text
    assert "did not help" not in text


@pytest.mark.parametrize(("num_cores", "warned"), [(4, False), (3, True), (None, False)])
def test_workers_that_share_cores_are_warned_of(study, num_cores, warned):
    study.add_steps(around(1.0), aggregator="ring", world_size=2, threads=2)
    assert ("do not show how the training scales" in said(study, num_cores)) is warned


def test_convergence_gives_the_range_and_names_the_worst(study, epoch_line):
    for size, accuracy in ((1, 0.98), (2, 0.97), (4, 0.90)):
        ranks = [[epoch_line(1, 1.0, 0.1, accuracy)], *[[{"epoch": 1, "train_s": 1.0}]] * (size - 1)]
        study.add([ranks], kind="convergence", aggregator="ring", world_size=size, target_accuracy=0.95)
    text = said(study)
    assert "is between 90.00% and 98.00% over 3 combinations" in text
    assert "the lowest is that of ring on 4 workers" in text
    assert "2 of 3 combinations reached 95.0% in every repeat; ring on 4 workers did not" in text


def test_equal_accuracies_have_no_lowest(study, epoch_line):
    for aggregator in ("ring", "tree"):
        study.add([[[epoch_line(1, 1.0, 0.1, 0.9)]]], kind="convergence", aggregator=aggregator)
    text = said(study)
    assert "the final test accuracy is 90.00% in all 2 combinations of aggregator and world size." in text
    assert "lowest" not in text


def test_divergence_is_said(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, None, 0.1)]]], kind="convergence")
    assert "the final loss was not finite for none on 1 worker" in said(study)


def test_failed_and_planned_cells_are_counted(study, line):
    study.add([[[line(0, 1.0)]]])
    study.add(["failed: no memory"], aggregator="ring", world_size=2)
    study.add(["planned"], aggregator="tree", world_size=2)
    text = said(study)
    assert "Of 3 cells, 1 failed" in text
    assert "Of 3 cells, 1 planned" in text


@pytest.mark.parametrize("cells", [[], ["planned"], ["failed: no memory"]])
def test_without_any_done_cell_nothing_is_compared(study, cells):
    for state in cells:
        study.add([state])
    assert said(study).startswith("No cell is done yet")


def with_boots(study, *boots):
    for record, boot in zip(study.folder.runs(), boots, strict=True):
        study.folder.write_run(replace(record, launch={**record.launch, "boot": boot}))


def test_cells_of_a_machine_that_was_started_again_are_told_apart(study):
    for aggregator in ("ring", "tree"):
        study.add_steps([[0.1] * 3], aggregator=aggregator, world_size=2)
    with_boots(study, "3fa2c1b0", "3fa2c1b0")
    assert not any("several machines, or before and after" in sentence for sentence in findings(study.folder))
    with_boots(study, "3fa2c1b0", "00ff00ff")
    (told,) = [one for one in findings(study.folder) if "several machines, or before and after" in one]
    assert "1 cell on boot 3fa2c1b0 (ring on 2 workers); 1 cell on boot 00ff00ff (tree on 2 workers)" in told
    assert "here" not in told  # the only name tells nothing


def test_many_cells_of_a_host_are_counted(study):
    for size in (1, 2, 4, 8):
        study.add_steps([[0.1] * 3], aggregator="ring", world_size=size)
    study.add_steps([[0.1] * 3], aggregator="tree", world_size=8)
    with_boots(study, *["a"] * 4, "b")
    (told,) = [one for one in findings(study.folder) if "several machines, or before and after" in one]
    assert "4 cells on boot a; 1 cell on boot b (tree on 8 workers)" in told


def test_containers_on_one_machine_are_one_and_many_machines_are_counted(study):
    for size in (1, 2, 4, 8, 16, 32):
        study.add_steps([[0.1] * 3], aggregator="ring", world_size=size)
    with_boots(study, *["a"] * 6)
    for number, record in enumerate(study.folder.runs()):
        study.folder.write_run(replace(record, launch={**record.launch, "host": f"pod{number}"}))
    assert not any("several machines, or before and after" in sentence for sentence in findings(study.folder))
    with_boots(study, *"abcdef")
    (told,) = [one for one in findings(study.folder) if "several machines, or before and after" in one]
    assert told.count("1 cell on pod") == 4
    assert "the rest on 2 more" in told
