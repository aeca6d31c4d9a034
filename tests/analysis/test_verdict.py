"""The answer of a study: two questions, answered each by itself."""

import json
import shlex
from dataclasses import replace

import pytest

from scaling.analysis.findings import Finding
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.report.answer import answer_of
from scaling.report.terminal import folded_answer
from scaling.report.text import short_names, text_of, title_of
from scaling.report.verdict_text import names_of, next_run, verdict_lines
from tests.made_studies import iteration, split


def answers(study):
    cells = read_cells(study.folder)
    return verdicts(build_table("by-hand", cells), cells)


def add(study, aggregator, world_size, step_s, launches=3, **cell):
    """Launches of six steps that take about as long, or as long as each of several numbers."""
    if isinstance(step_s, tuple):
        steps = [[one] * 6 for one in step_s]
    else:
        factors = [[1 + 0.0005 * launch + 0.0001 * i for i in range(6)] for launch in range(launches)]
        steps = [[step_s * one for one in own] for own in factors]
    study.add_steps(steps, aggregator=aggregator, world_size=world_size, **cell)


def fill(study, *cells, **more):
    """Adds cells of (aggregator, world size, seconds a step), some with variables of their own."""
    for aggregator, world_size, step_s, *own in cells:
        add(study, aggregator, world_size, step_s, **{**more, **dict(*own)})


def told(study):
    return "\n".join(verdict_lines(answers(study)))


def limit_of(study):
    (one,) = answers(study)
    return next(line for line in verdict_lines([one]) if line.startswith("Limit"))


def add_profiled(study, aggregator, step_s, forward_s, exchange_s=0.0, launches=None, **cell):
    """A cell of two workers whose profiled steps have one forward pass and perhaps an exchange."""
    spans = (("forward", "main", 0.0, forward_s), ("communicate", "main", forward_s, forward_s + exchange_s))
    steps = [split(9 + i, step_s, *spans[: 1 + bool(exchange_s)]) for i in range(6)]
    launches = launches or [[step_s, step_s * 1.0001]] * 3
    study.add_split(launches, [steps] * 2, aggregator=aggregator, **cell)


ONE = ("none", 1, 1.0)
DDP = ("all_reduce", 2, 0.55)
RING, TREE = ("ring", 2, 0.5503), ("tree", 2, 0.8)
LOSSY, HOST, PEERS = {"lossy": True}, {"peer_access": False}, {"peer_access": True}
BUSY = {"host": [{"window_s": 1.0, "queued_s": 0.85, "cores": [0, 1]}] * 2}


def case(*cells, said=(), unsaid=(), values=(), **more):
    return cells, more, said, unsaid, dict(values)


SAID = {
    "the workers are known where aggregators are a tie, whose intervals overlap": case(
        ONE, DDP, RING, TREE, values={
            "world_size": 2, "open_world_sizes": [], "ties": ["ring"], "confidence": "sure"},
        said=["\nUse 2 workers: 1.82 times as fast as one. 550", "samples/s, 91% efficiency",
         "Sure: 3 launches",
         "Aggregator: all_reduce or ring (within 3% of the fastest; next tree, 45% slower)."]),
    "one worker where more are slower": case(ONE, ("all_reduce", 2, 1.5), values={"speedup": 1.0},
        said=["\nUse 1 worker: 2 workers are 50% slower."]),
    "one launch is never sure and asks for more": case(ONE, ("all_reduce", 2, 0.6), launches=1,
        values={"confidence": "one_launch"},
        said=["\nNot sure: 1 launch; the variation between launches is unknown.\n", "\nNext: repeats=3",
         "\nFastest so far: 2 workers, 1.67 times as fast as one."]),
    "several workers are known by lossy aggregators alone": case(ONE, ("one_bit", 2, 0.6, LOSSY),
        said=["\nOn 2 workers 1.67 times as fast as one, but only with lossy aggregators of unknown",
         "\nAggregator: one_bit on 2 workers"]),
    "an exact aggregator is preferred to one of unknown accuracy": case(
        ONE, ("one_bit", 2, 0.6, LOSSY), ("all_reduce", 2, 0.9),
        said=["\nUse 2 workers: 1.11 times as fast as one."]),
    "the best case comes first whatever order the cells have": case(
        (*ONE, HOST), (*ONE, PEERS), ("all_reduce", 2, 0.9, HOST), ("all_reduce", 2, 0.52, PEERS),
        device="cuda", values={"shared": ["peer access on"]},
        said=["\nUse 2 GPUs: 1.92 times as fast as one."]),
    "ties of one aggregator are named by what differs": case(
        ONE, (*DDP, {"step": "eager"}), ("all_reduce", 2, 0.5501, {"step": "overlapped"}), said=[
         "Aggregator: all_reduce (eager step) or all_reduce (overlapped step) (within 3% of the fastest)"]),
    "a fast lossy aggregator that was not trained is named as no choice": case(
        ONE, DDP, RING, TREE, ("one_bit", 2, 0.551, LOSSY), said=["3% of the fastest; next tree, 45% slower;"
         " as fast: one_bit (lossy, accuracy not tested))"]),
    "no space stands before a semicolon": case(ONE, DDP, TREE, ("one_bit", 2, 0.551, LOSSY), said=[
         "Aggregator: all_reduce (next tree, 45% slower; as fast: one_bit (lossy, accuracy not tested))"]),
    "only what is nearly as fast is not resolved": case(ONE, ("all_reduce", 2, 0.5), ("tree", 2, 0.54),
        ("ring", 2, 0.53), ("host_parallel", 2, 2.0), launches=1, values={"unresolved": ["ring", "tree"]}),
    "weak scaling is said in throughput": case(ONE, ("all_reduce", 2, 1.0, {"global_batch": 128}),
        scaling="weak", local_batch=64, global_batch=64,
        said=["\nUse 2 workers: 2.00 times the throughput of one."]),
    "the fastest so far is said of what": case(ONE, ("all_reduce", 2, 1.1), launches=1,
        said=["\nFastest so far of 1 and 2 workers: 1 worker."]),
    "a slow lossy aggregator is not as fast": case(
        ONE, DDP, ("cntk", 2, 3.7, LOSSY), device="cuda", peer_access=True, unsaid=["lossy"]),
    "nor is one in another setting": case(ONE, DDP, ("cntk", 2, 0.55, LOSSY | HOST), device="cuda",
        peer_access=True, unsaid=["lossy"]),
    "one worker alone": case(ONE, said=["On 1 worker (no other number was measured):"]),
    "workers measured with lossy aggregators alone are not unmeasured": case(ONE, ("one_bit", 2, 1.2, LOSSY),
        said=["(no other number was measured without loss, 2 with lossy settings of unknown accuracy): "]),
    "a lossy aggregator is as fast only where its interval shows it": case(
        ONE, DDP, ("one_bit", 2, (0.55, 0.4, 0.75), LOSSY), unsaid=["as fast:"],
        said=["not ranked: one_bit (noisy; lossy, accuracy not tested)",
         "Sure (exact aggregators): 3 launches"]),
    "a lossy aggregator of one launch is not as fast": case(ONE, DDP, ("one_bit", 2, 0.55, LOSSY),
        launches=1, values={"lossy": []}),
    "an interval says of what and how sure": case(ONE, DDP, said=[
         "Sure: 3 launches, step time and speedup ± 0.1% (95%)."]),
    "what may be slower by more than a tie has its time and the bound": case(
        ONE, ("all_reduce", 2, (0.55, 0.5504, 0.5497)), ("ring", 2, (0.5615, 0.5645, 0.5675)),
        said=["(next ring, 2.6% slower (at most"]),
    "a quiet host leaves the answer as it is": case(ONE, ("all_reduce", 2, 0.6), values={"doubts": []},
        said=["\nUse 2 workers"]),
    "a sure answer keeps its headline below the doubt": case(ONE, ("all_reduce", 2, 0.5, {"summary": BUSY}),
        values={"confidence": "sure"},
        said=["\nDoubtful: other programs take 85% ", ". Use 2 workers: 2.00 times"]),
    "launches that all differ have no slow one": case(("all_reduce", 2, (0.9, 1.2, 1.5, 2.0)),
        values={"doubts": []}),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "more", "said", "unsaid", "values"), SAID.values(), ids=SAID)
def test_only_what_was_measured_is_claimed(study, cells, more, said, unsaid, values):
    fill(study, *cells, **more)
    (one,) = answers(study)
    text = f"\n{told(study)}\n"
    assert [part for part in said if part not in text] == []
    assert [part for part in unsaid if part in text] == []
    found = {name: one.values[name] for name in values}
    for name in {"ties", "unresolved"} & set(found):
        found[name] = [other["name"] for other in found[name]]
    assert {name: list(own) if isinstance(own, tuple) else own for name, own in found.items()} == values


def test_throughput_of_texts_is_in_tokens(study):
    study.add([[[iteration(0, 0.5)]]], summary={"tokens_per_sample": 1024}, model="gpt")
    assert "500 ms a step, 131 k tokens/s" in told(study)


def test_one_of_several_answers_says_what_is_not_resolved(study):
    for model in ("m0", "m1", "m2"):
        fill(study, ("all_reduce", 2, (0.5, 0.6, 0.55)), ("ring", 2, (0.61, 0.5, 0.56)), model=model)
    assert "Aggregator: all_reduce (fastest so far; not resolved from ring)." in verdict_lines(answers(study))


def test_limit_names_the_largest_loss_first(study):
    """Of 0.6 s on two workers 0.5 would be ideal: the smaller batch costs 0.08, the exchange 0.02."""
    add(study, "none", 1, 1.0, global_batch=64, local_batch=64)
    add_profiled(study, "none", 0.58, 0.58)
    add_profiled(study, "all_reduce", 0.6, 0.58, 0.02)
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


def test_limit_claims_no_more_than_its_two_measurements_agree_on(study):
    """By difference the exchange takes 0.1 s, by the profiled steps 0.3; launches scatter by 30%."""
    fill(study, ONE, ("tree", 2, 0.9))
    add_profiled(study, "none", 0.5, 0.3, launches=[[0.5 * factor] * 4 for factor in (1.3, 1.0, 0.7)])
    add_profiled(study, "all_reduce", 0.6, 0.3, 0.3, [[0.6 * factor] * 4 for factor in (0.7, 1.0, 1.3)])
    assert limit_of(study) == (
        "Limit: not known: the difference to a step without exchange is too uncertain."
    )


def test_noisy_study_is_measured_again_in_another_folder(study):
    fill(study, ONE, ("all_reduce", 2, 0.6))
    (found,) = answers(study)
    one = replace(found, values={**found.values, "confidence": "workers_open", "is_noisy": True})
    path = study.folder.path
    expected = ["scaling", "run", f"{path}/study.yaml", "--out", f"{path}-again"]
    assert shlex.split(next_run(one, study.folder).command) == expected


def test_more_repeats_go_on_in_the_folder(study):
    fill(study, ONE, ("all_reduce", 2, 0.6), launches=1)
    (one,) = answers(study)
    command = next_run(one, study.folder).command
    path = study.folder.path
    assert shlex.split(command) == ["scaling", "run", f"{path}/study.yaml", "--out", str(path), "repeats=3"]
    lines = [line.strip() for line in folded_answer(answer_of([one], command))]
    assert lines[-2:] == [command, "Aggregator: all_reduce (the only one measured)."]


def test_study_without_candidates_has_no_answer(study):
    study.add(["planned"])
    assert (answers(study), verdict_lines([])) == ([], [])


def test_names_keep_what_distinguishes_them():
    titles = [["m(a=[1, 2]) on d", "strong scaling", f"batch {batch}"] for batch in (8, 16)]
    assert short_names(titles) == [["m(a=[1, 2]) on d", "batch 8"], ["m(a=[1, 2]) on d", "batch 16"]]
    assert short_names(titles[:1]) == [["m(a=[1, 2]) on d"]]


def test_bandwidth_stands_with_the_time_that_it_is_of(study):
    """The exchange adds 0.1 s by difference; the communication that moves the bytes takes 0.08 s."""
    add(study, "none", 1, 1.0)
    add_profiled(study, "none", 0.5, 0.5)
    add_profiled(study, "all_reduce", 0.6, 0.5, 0.08, summary={"wire_bytes_per_rank": [8_000_000_000] * 2})
    assert limit_of(study).endswith("(transfer: 80 ms at 100 GB/s a rank).")


def test_command_of_several_proposals_is_that_of_the_first(study):
    """The smaller batch costs most; a captured step leaves the training as it is, and comes first."""
    gpu = {"device": "cuda", "global_batch": 64}
    add(study, "none", 1, 1.0, **gpu)
    for name, step_s in (("none", 0.58), ("all_reduce", 0.6)):
        add_profiled(study, name, step_s, 0.58, **gpu)
    (one,) = answers(study)
    command = next_run(one, study.folder).command
    line = verdict_lines([one], command)[-1]
    assert line.startswith("Next: try step=captured to see")
    assert "; or try a larger global batch (check the accuracy)" in line
    assert line.endswith(f". Command for the first: {command}")
    assert ("step=captured" in command, "workloads=" in command) == (True, False)


def test_several_answers_are_rows_and_the_first_has_the_sentence(study):
    for model, step_s in (("m0", 0.6), ("m1", 0.5)):
        fill(study, ONE, ("all_reduce", 2, step_s), model=model)
    unfinished = Finding("unfinished", (), {"num_cells": 4, "num_unfinished": 1, "state": "running"})
    answer = answer_of(answers(study), "scaling run DIR --next 1", [unfinished])
    assert answer.sentence.startswith("m0: use 2 workers: 1.67 times as fast as one.")
    assert (answer.details[0][:6], answer.explained[0]) == ("Sure: ", "Of 4 cells, 1 under way.")
    assert not any("m1" in line for line in answer.lines)
    assert [row[:2] for row in answer.table.rows] == [["m0", "2"], ["m1", "2"]]
    speedups = [row[answer.table.headings.index("speedup")] for row in answer.table.rows]
    assert [speedup.partition(" ")[0] for speedup in speedups] == ["1.67", "2.00"]


def test_several_answers_are_named_by_what_differs_even_where_it_is_the_default(study):
    for augmentation in ("none", "standard"):
        add(study, "none", 1, 1.0, augmentation=augmentation)
    for batch, accumulate in ((16, 1), (64, 4)):
        add(study, "none", 1, 1.0, model="gpt", global_batch=batch, local_batch=batch, accumulate=accumulate)
    names = sorted(name.partition(", ")[2] for name in names_of(answers(study)))
    assert names == [
        "global batch 16", "global batch 64, augmentation none", "global batch 64, augmentation standard",
        "global batch 64, micro-batches 4",
    ]  # fmt: skip


def test_training_is_named_with_its_augmentation(timed):
    timed.add_training([10.0, 11.0, 12.0], augmentation="standard")
    (one,) = verdicts(timed.table, timed.cells)
    assert title_of(one.values["workload"]).endswith("to an accuracy of 97.0%, cpu, augmentation standard")


def test_trainings_are_compared_in_the_seeds_that_both_have(timed):
    """One worker's 3 seeds have a median of 110 s; the seed that four workers have took it 90 s."""
    for seed, seconds in enumerate((90.0, 110.0, 120.0)):
        timed.add_training([seconds], aggregator="all_reduce", world_size=1, seed=seed)
    timed.add_training([60.0], aggregator="all_reduce", world_size=4, seed=0)
    said = "1 training on 4 workers, so the variation there is unknown; the speedup is of seed 0 alone"
    first = "Fastest so far: 4 workers, 1.50 times as fast as one. 60.0 s to 97.0% accuracy"
    text = "\n".join(verdict_lines(verdicts(timed.table, timed.cells)))
    assert (text.startswith(first), f"Not sure: {said}." in text) == (True, True)


def test_trainings_without_a_common_seed_have_no_speedup(timed):
    timed.add_training([90.0], aggregator="all_reduce", world_size=1, seed=1)
    timed.add_training([60.0], aggregator="all_reduce", world_size=4, seed=0)
    (one,) = verdicts(timed.table, timed.cells)
    assert verdict_lines([one])[0].startswith("Fastest so far of 1 and 4 workers: 4 workers. 60.0 s to")


def test_speedup_is_over_another_aggregator_on_one_worker_where_none_was_not_timed(study):
    fill(study, ("all_reduce", 1, 1.0), ("all_reduce", 2, 0.55))
    (line, *_) = verdict_lines(answers(study))
    assert line.startswith("Use 2 workers: 1.82 times as fast as one (one with all_reduce: 1001 ms). 550")
    assert line.endswith("91% efficiency.")
    (one,) = answers(study)
    low, high = one.values["speedup_low"], one.values["speedup_high"]
    assert low < one.values["speedup"] < high < 1.02 * low


def test_one_worker_that_was_not_measured_is_the_next_experiment(study):
    fill(study, ("all_reduce", 2, 0.55), ("ring", 2, 0.56), launches=1)
    (one,) = answers(study)
    said = "repeats=3 to decide which aggregator, and measure 1 worker too (world_sizes=[1,2])"
    assert text_of(one, "next").startswith(said)
    *_, out, repeats, sizes = shlex.split(next_run(one, study.folder).command)
    assert (repeats, sizes, out[-6:]) == ("repeats=3", "world_sizes=[1,2]", "-again")
