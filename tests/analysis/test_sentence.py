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
    assert (told.count("1 cell on pod"), "the rest on 2 more" in told) == (4, True)
