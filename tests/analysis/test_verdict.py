"""The answer of a study: two questions, answered each by itself."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.report.answer import answer_of
from scaling.report.terminal import folded_answer
from scaling.report.text import short_names, text_of, title_of
from scaling.report.verdict_text import names_of, next_run, verdict_lines
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.made_studies import iteration

REFERENCE = Path(__file__).parents[2] / "results/reference"


def answers(study):
    cells = read_cells(study.folder)
    return verdicts(build_table("by-hand", cells), cells)


def add(study, aggregator, world_size, step_s, launches=3, **cell):
    steps = [[step_s * (1 + 0.0005 * launch + 0.0001 * i) for i in range(6)] for launch in range(launches)]
    study.add_steps(steps, aggregator=aggregator, world_size=world_size, **cell)


@pytest.fixture
def tied(study):
    """Two workers are faster for sure; of the aggregators two are 1% apart with intervals that overlap."""
    add(study, "none", 1, 1.0)
    for name, step_s in (("all_reduce", 0.55), ("ring", 0.5503), ("tree", 0.8)):
        add(study, name, 2, step_s)
    return study


def test_number_of_workers_is_answered_where_the_aggregator_is_a_tie(tied):
    (one,) = answers(tied)
    assert (one.values["world_size"], one.values["open_world_sizes"]) == (2, [])
    assert ([tie["name"] for tie in one.values["ties"]], one.values["confidence"]) == (["ring"], "sure")
    text = "\n".join(verdict_lines([one]))
    assert text.startswith("Use 2 workers: 1.82 times as fast as one. 550")
    assert "Aggregator: all_reduce or ring (within 3% of the fastest; next tree, 45% slower)." in text
    assert "samples/s, 91% efficiency" in text
    assert "Sure: 3 launches" in text


def test_throughput_of_texts_is_in_tokens(study):
    study.add([[[iteration(0, 0.5)]]], summary={"tokens_per_sample": 1024}, model="gpt")
    (one,) = answers(study)
    assert "500 ms a step, 131 k tokens/s" in "\n".join(verdict_lines([one]))


def test_one_worker_is_recommended_where_more_are_slower(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 1.5)
    (one,) = answers(study)
    assert verdict_lines([one])[0].startswith("Use 1 worker: 2 workers are 50% slower.")
    assert one.values["speedup"] == 1.0


def test_one_launch_is_never_sure_and_asks_for_more(study):
    add(study, "none", 1, 1.0, launches=1)
    add(study, "all_reduce", 2, 0.6, launches=1)
    (one,) = answers(study)
    assert one.values["confidence"] == "one_launch"
    assert "Not sure: 1 launch; the variation between launches is unknown." in verdict_lines([one])
    assert any(line.startswith("Next: repeats=3") for line in verdict_lines([one]))
    assert verdict_lines([one])[0].startswith("Fastest so far: 2 workers, 1.67 times as fast as one.")


def test_one_of_several_answers_says_what_is_not_resolved(study):
    for model in ("m0", "m1", "m2"):
        for name, steps in (("all_reduce", (0.5, 0.6, 0.55)), ("ring", (0.61, 0.5, 0.56))):
            study.add_steps([[one] * 6 for one in steps], aggregator=name, world_size=2, model=model)
    assert "Aggregator: all_reduce (fastest so far; not resolved from ring)." in verdict_lines(answers(study))


def test_lossy_aggregators_of_unknown_accuracy_are_said_where_nothing_else_has_several_workers(study):
    add(study, "none", 1, 1.0)
    add(study, "one_bit", 2, 0.6, lossy=True)
    (one,) = answers(study)
    headline, aggregator, *_ = verdict_lines([one])
    assert "On 2 workers: 1.67 times as fast as one, but only with lossy aggregators of unknown" in headline
    assert aggregator.startswith("Aggregator: one_bit on 2 workers")
    add(study, "all_reduce", 2, 0.9)
    assert verdict_lines(answers(study))[0].startswith("Use 2 workers: 1.11 times as fast as one.")


def test_best_case_comes_first_whatever_order_the_cells_have(study):
    add(study, "none", 1, 1.0, device="cuda", peer_access=False)
    add(study, "none", 1, 1.0, device="cuda", peer_access=True)
    add(study, "all_reduce", 2, 0.9, device="cuda", peer_access=False)
    add(study, "all_reduce", 2, 0.52, device="cuda", peer_access=True)
    (one,) = answers(study)
    assert verdict_lines([one])[0].startswith("Use 2 GPUs: 1.92 times as fast as one.")
    assert one.values["shared"] == ["peer access on"]


def test_limit_names_the_largest_loss_first(study, split_line):
    """Of 0.6 s on two workers 0.5 would be ideal: the smaller batch costs 0.08, the exchange 0.02."""
    add(study, "none", 1, 1.0, global_batch=64, local_batch=64)
    for name, exchange_s in (("none", 0.0), ("all_reduce", 0.02)):
        step_s = 0.58 + exchange_s
        spans = (("forward", "main", 0.0, 0.58), ("communicate", "main", 0.58, step_s))
        steps = [split_line(9 + i, step_s, *spans[: 1 + bool(exchange_s)]) for i in range(6)]
        study.add_split([[step_s, step_s * 1.0001]] * 3, [steps] * 2, aggregator=name)
    (one,) = answers(study)
    lines = verdict_lines([one])
    assert lines[2] == "Limit: not the exchange; how much of the rest is computation was not measured."
    shares = "ideal 83%, lost to all but the exchange 13%, exchange 3%"
    assert lines[3] == f"Step: {'█' * 20}{'▓' * 3}▒ 600 ms: {shares}."
    assert any(line.startswith("Next: try a larger global batch") for line in lines)
    words = shlex.split(next_run(one, study.folder).command)
    assert words[4] == f"{study.folder.path}-batch-256"
    (workload,) = json.loads(words[5].removeprefix("workloads="))
    assert (workload["model"]["name"], workload["global_batch"]) == ("mlp", 256)


def test_limit_claims_no_more_than_its_two_measurements_agree_on(study, split_line):
    """By difference the exchange takes 0.1 s, by the profiled steps 0.3; launches scatter by 30%."""
    add(study, "none", 1, 1.0)
    for name, step_s, exposed_s in (("none", 0.5, 0.0), ("all_reduce", 0.6, 0.3)):
        spans = (("forward", "main", 0.0, 0.3), ("communicate", "main", 0.3, 0.3 + exposed_s))
        steps = [split_line(9 + i, step_s, *spans[: 1 + bool(exposed_s)]) for i in range(6)]
        launches = [[step_s * factor] * 4 for factor in (0.7, 1.0, 1.3)]
        if name == "none":
            launches.reverse()
        study.add_split(launches, [steps] * 2, aggregator=name)
    add(study, "tree", 2, 0.9)
    (one,) = answers(study)
    limit = next(line for line in verdict_lines([one]) if line.startswith("Limit"))
    assert limit == (
        "Limit: not known: the difference to a step without exchange is too uncertain; "
        "the exchange adds 100 to 300 ms."
    )


def test_next_command_of_a_study_with_trainings_leaves_these_out():
    """Quickstart's next step on GPUs is to time more launches, on all world sizes."""
    folder = ResultsFolder(REFERENCE / "quickstart-2xh100")
    cells = read_cells(folder)
    words = shlex.split(next_run(verdicts(build_table("", cells), cells)[0], folder).command)
    assert words[5:] == ["kind=iteration", "repeats=5"]
    found = resolve(load_study(words[2], words[5:]), AvailableMachine(2, 16, 1)).cells.values()
    assert ({cell.kind for cell in found}, {cell.world_size for cell in found}) == ({"iteration"}, {1, 2})


def test_noisy_study_is_measured_again_in_another_folder(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.6)
    (found,) = answers(study)
    one = replace(found, values={**found.values, "confidence": "workers_open", "is_noisy": True})
    path = study.folder.path
    expected = ["scaling", "run", f"{path}/study.yaml", "--out", f"{path}-again"]
    assert shlex.split(next_run(one, study.folder).command) == expected


def test_ties_of_one_aggregator_are_named_by_what_differs(study):
    add(study, "none", 1, 1.0)
    for step, step_s in (("eager", 0.55), ("overlapped", 0.5501)):
        add(study, "all_reduce", 2, step_s, step=step)
    (one,) = answers(study)
    text = "\n".join(verdict_lines([one]))
    said = "Aggregator: all_reduce (eager step) or all_reduce (overlapped step) (within 3% of the fastest)"
    assert said in text


def test_more_repeats_go_on_in_the_folder(study):
    add(study, "none", 1, 1.0, launches=1)
    add(study, "all_reduce", 2, 0.6, launches=1)
    (one,) = answers(study)
    command = next_run(one, study.folder).command
    path = study.folder.path
    assert shlex.split(command) == ["scaling", "run", f"{path}/study.yaml", "--out", str(path), "repeats=3"]
    assert folded_answer(answer_of([one], command))[-1].strip() == command


def test_study_without_candidates_has_no_answer(study):
    study.add(["planned"])
    assert (answers(study), verdict_lines([])) == ([], [])


def test_names_keep_what_distinguishes_them():
    titles = [["m(a=[1, 2]) on d", "strong scaling", f"batch {batch}"] for batch in (8, 16)]
    assert short_names(titles) == [["m(a=[1, 2]) on d", "batch 8"], ["m(a=[1, 2]) on d", "batch 16"]]
    assert short_names(titles[:1]) == [["m(a=[1, 2]) on d"]]


def test_fast_lossy_aggregator_that_was_not_trained_is_named_as_no_choice(tied):
    add(tied, "one_bit", 2, 0.551, lossy=True)
    (one,) = answers(tied)
    assert "45% slower; as fast: one_bit (lossy, accuracy not tested))" in "\n".join(verdict_lines([one]))


def test_only_what_is_nearly_as_fast_is_named_as_not_resolved(study):
    add(study, "none", 1, 1.0, launches=1)
    for aggregator, step_s in (("all_reduce", 0.5), ("tree", 0.54), ("ring", 0.53), ("host_parallel", 2.0)):
        add(study, aggregator, 2, step_s, launches=1)
    (one,) = answers(study)
    assert [other["name"] for other in one.values["unresolved"]] == ["ring", "tree"]


def test_weak_scaling_is_said_in_throughput(study):
    for aggregator, world_size in (("none", 1), ("all_reduce", 2)):
        add(study, aggregator, world_size, 1.0, scaling="weak", local_batch=64, global_batch=64 * world_size)
    (one,) = answers(study)
    assert verdict_lines([one])[0].startswith("Use 2 workers: 2.00 times the throughput of one.")


def test_bandwidth_stands_with_the_time_that_it_is_of(study, split_line):
    """The exchange adds 0.1 s by difference; the communication that moves the bytes takes 0.08 s."""
    add(study, "none", 1, 1.0)
    for name, step_s, exchange_s in (("none", 0.5, 0.0), ("all_reduce", 0.6, 0.08)):
        spans = (("forward", "main", 0.0, 0.5), ("communicate", "main", 0.5, 0.5 + exchange_s))
        steps = [split_line(9 + i, step_s, *spans[: 1 + bool(exchange_s)]) for i in range(6)]
        moved = {"summary": {"wire_bytes_per_rank": [8_000_000_000] * 2}} if exchange_s else {}
        study.add_split([[step_s, step_s * 1.0001]] * 3, [steps] * 2, aggregator=name, **moved)
    (one,) = answers(study)
    limit = next(line for line in verdict_lines([one]) if line.startswith("Limit"))
    assert limit.endswith("(transfer: 80 ms at 100 GB/s a rank).")


def test_command_of_several_proposals_is_that_of_the_first(study, split_line):
    """The smaller batch costs most; a captured step leaves the training as it is, and comes first."""
    gpu = {"device": "cuda", "global_batch": 64}
    add(study, "none", 1, 1.0, **gpu)
    steps = [split_line(9 + i, 0.6, ("forward", "main", 0.0, 0.58)) for i in range(6)]
    for name, step_s in (("none", 0.58), ("all_reduce", 0.6)):
        study.add_split([[step_s, step_s * 1.0001]] * 3, [steps] * 2, aggregator=name, **gpu)
    (one,) = answers(study)
    command = next_run(one, study.folder).command
    line = verdict_lines([one], command)[-1]
    assert line.startswith("Next: try step=captured to see")
    assert "; or try a larger global batch (check the accuracy)" in line
    assert line.endswith(f". Command for the first: {command}")
    assert ("step=captured" in command, "workloads=" in command) == (True, False)


def test_several_answers_are_rows_and_the_first_has_the_sentence(study):
    for model, step_s in (("m0", 0.6), ("m1", 0.5)):
        add(study, "none", 1, 1.0, model=model)
        add(study, "all_reduce", 2, step_s, model=model)
    answer = answer_of(answers(study), "scaling run DIR --next 1", ["Of 4 cells, 1 failed."])
    assert answer.sentence.startswith("m0 on synthetic: Use 2 workers: 1.67 times as fast as one.")
    assert answer.details[0] == "Of 4 cells, 1 failed."
    assert not any("m1" in line for line in answer.lines)
    assert [row[:2] for row in answer.table.rows] == [["m0 on synthetic", "2"], ["m1 on synthetic", "2"]]
    speedups = [row[answer.table.headings.index("speedup")] for row in answer.table.rows]
    assert [speedup.partition(" ")[0] for speedup in speedups] == ["1.67", "2.00"]


def test_several_answers_are_named_by_what_differs_even_where_it_is_the_default(study):
    for augmentation in ("none", "standard"):
        add(study, "none", 1, 1.0, augmentation=augmentation)
    for batch, accumulate in ((16, 1), (64, 4)):
        add(study, "none", 1, 1.0, model="gpt", global_batch=batch, local_batch=batch, accumulate=accumulate)
    names = sorted(name.partition(", ")[2] for name in names_of(answers(study)))
    assert names == sorted(
        [
            "global batch 64, augmentation none",
            "global batch 64, augmentation standard",
            "global batch 16",
            "global batch 64, micro-batches 4",
        ]
    )


def test_training_is_named_with_its_augmentation(timed):
    timed.add_training([10.0, 11.0, 12.0], augmentation="standard")
    (one,) = verdicts(timed.table, timed.cells)
    assert title_of(one.values["workload"]).endswith("to an accuracy of 97.0%, cpu, augmentation standard")


def test_trainings_are_compared_in_the_seeds_that_both_have(timed):
    """One worker's 3 seeds have a median of 110 s; the seed that four workers have took it 90 s."""
    for seed, seconds in enumerate((90.0, 110.0, 120.0)):
        timed.add_training([seconds], aggregator="all_reduce", world_size=1, seed=seed)
    timed.add_training([60.0], aggregator="all_reduce", world_size=4, seed=0)
    (one,) = verdicts(timed.table, timed.cells)
    text = "\n".join(verdict_lines([one]))
    assert text.startswith("Fastest so far: 4 workers, 1.50 times as fast as one. 60.0 s to 97.0% accuracy")
    said = "1 training on 4 workers, so the variation there is unknown; the speedup is of seed 0 alone"
    assert f"Not sure: {said}." in text


def test_trainings_without_a_common_seed_have_no_speedup(timed):
    timed.add_training([90.0], aggregator="all_reduce", world_size=1, seed=1)
    timed.add_training([60.0], aggregator="all_reduce", world_size=4, seed=0)
    (one,) = verdicts(timed.table, timed.cells)
    assert verdict_lines([one])[0].startswith("Fastest so far of 1 and 4 workers: 4 workers. 60.0 s to")


def test_speedup_is_over_another_aggregator_on_one_worker_where_none_was_not_timed(study):
    add(study, "all_reduce", 1, 1.0)
    add(study, "all_reduce", 2, 0.55)
    (line, *_) = verdict_lines(answers(study))
    assert line.startswith("Use 2 workers: 1.82 times as fast as one (one with all_reduce: 1001 ms). 550")
    assert line.endswith("91% efficiency.")
    (one,) = answers(study)
    low, high = one.values["speedup_low"], one.values["speedup_high"]
    assert low < one.values["speedup"] < high < 1.02 * low


def test_one_worker_that_was_not_measured_is_the_next_experiment(study):
    add(study, "all_reduce", 2, 0.55, launches=1)
    add(study, "ring", 2, 0.56, launches=1)
    (one,) = answers(study)
    said = "repeats=3 to decide which aggregator, and measure 1 worker too (world_sizes=[1,2])"
    assert text_of(one, "next").startswith(said)
    *_, out, repeats, sizes = shlex.split(next_run(one, study.folder).command)
    assert (repeats, sizes, out[-6:]) == ("repeats=3", "world_sizes=[1,2]", "-again")


def test_fastest_so_far_says_of_what(study):
    add(study, "none", 1, 1.0, launches=1)
    add(study, "all_reduce", 2, 1.1, launches=1)
    assert verdict_lines(answers(study))[0].startswith("Fastest so far of 1 and 2 workers: 1 worker.")


def test_no_space_stands_before_a_semicolon(study):
    add(study, "none", 1, 1.0)
    for aggregator, step_s in (("all_reduce", 0.55), ("tree", 0.8)):
        add(study, aggregator, 2, step_s)
    add(study, "one_bit", 2, 0.551, lossy=True)
    text = "\n".join(verdict_lines(answers(study)))
    said = "Aggregator: all_reduce (next tree, 45% slower; as fast: one_bit (lossy, accuracy not tested))"
    assert said in text
