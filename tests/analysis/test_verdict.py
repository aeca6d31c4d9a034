"""The answer of a study: two questions, answered each by itself, in at most five lines."""

import pytest

from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.report.titles import short_names
from scaling.report.verdict_text import MOST_LINES, verdict_lines
from tests.made_studies import iteration


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
    assert [tie["name"] for tie in one.values["ties"]] == ["ring"]
    assert one.values["confidence"] == "sure"
    text = "\n".join(verdict_lines([one]))
    assert text.startswith("Use 2 workers: 1.82 times faster than one. 550")
    assert "Aggregator: all_reduce or ring (either of these: within 0.1%; next tree, 45% slower)." in text
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
    assert "Not sure: 1 launch: the variation between launches is unknown." in verdict_lines([one])
    assert any(line.startswith("Next: repeats=3") for line in verdict_lines([one]))
    assert verdict_lines([one])[0].startswith("Fastest so far: 2 workers, 1.67 times the speed of one.")
    (line, _) = verdict_lines([one, one])
    assert line.endswith("Aggregator: all_reduce. One launch: repeats=3 to decide.")
    assert "faster than" not in line
    assert "slower" not in line


def test_one_of_several_answers_says_what_is_not_resolved(study):
    for model in ("m0", "m1"):
        for name, steps in (("all_reduce", (0.5, 0.6, 0.55)), ("ring", (0.61, 0.5, 0.56))):
            study.add_steps([[one] * 6 for one in steps], aggregator=name, world_size=2, model=model)
    for line in verdict_lines(answers(study)):
        assert "Aggregator: all_reduce (fastest so far; not resolved from ring)." in line


def test_lossy_aggregators_of_unknown_accuracy_are_said_where_nothing_else_has_several_workers(study):
    add(study, "none", 1, 1.0)
    add(study, "one_bit", 2, 0.6, lossy=True)
    (one,) = answers(study)
    headline, aggregator, *_ = verdict_lines([one])
    assert "On 2 workers: 1.67 times faster than one, but only with lossy aggregators of unknown" in headline
    assert aggregator.startswith("Aggregator: one_bit on 2 workers")
    add(study, "all_reduce", 2, 0.9)
    assert verdict_lines(answers(study))[0].startswith("Use 2 workers: 1.11 times faster than one.")


def test_best_case_comes_first_whatever_order_the_cells_have(study):
    add(study, "none", 1, 1.0, device="cuda", peer_access=False)
    add(study, "none", 1, 1.0, device="cuda", peer_access=True)
    add(study, "all_reduce", 2, 0.9, device="cuda", peer_access=False)
    add(study, "all_reduce", 2, 0.52, device="cuda", peer_access=True)
    (one,) = answers(study)
    assert verdict_lines([one])[0].startswith("Use 2 GPUs: 1.92 times faster than one.")
    assert one.values["shared"] == ["peer access on"]


@pytest.mark.parametrize("number", [1, 2, 7])
def test_answers_take_at_most_five_lines(study, number):
    for model in range(number):
        add(study, "none", 1, 1.0, model=f"m{model}")
        add(study, "all_reduce", 2, 0.6, model=f"m{model}")
    found = answers(study)
    assert len(found) == number
    assert len(verdict_lines(found)) <= MOST_LINES


def test_study_without_candidates_has_no_answer(study):
    study.add(["planned"])
    assert answers(study) == []
    assert verdict_lines([]) == []


def test_names_keep_what_distinguishes_them():
    titles = [["m(a=[1, 2]) on d", "strong scaling", f"batch {batch}"] for batch in (8, 16)]
    assert short_names(titles) == [["m(a=[1, 2]) on d", "batch 8"], ["m(a=[1, 2]) on d", "batch 16"]]
    assert short_names(titles[:1]) == [["m(a=[1, 2]) on d"]]
