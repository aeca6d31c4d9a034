"""What makes numbers doubtful comes before what they say, and replaces advice to repeat."""

import re

import pytest

from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.report.advice_text import lines_of
from scaling.report.answer import answer_of, limit_word
from scaling.report.text import next_experiment, text_of
from scaling.report.verdict_text import next_run, verdict_lines
from tests.analysis.test_verdict import add, answers

BUSY = {"host": [{"window_s": 1.0, "queued_s": 0.85, "cores": [0, 1]}] * 2}


@pytest.fixture
def busy(study):
    """Two workers that wait for a core most of the time, and launches that differ by far."""
    add(study, "none", 1, 1.0)
    for name, factor in (("all_reduce", 1.0), ("ring", 1.1)):
        launches = [[factor * step_s] * 6 for step_s in (0.3, 0.9, 2.0)]
        study.add_steps(launches, aggregator=name, world_size=2, summary=BUSY)
    return study


def test_busy_host_comes_first_and_replaces_more_repeats(busy):
    (one,) = answers(busy)
    first, *rest = verdict_lines([one], next_run(one, busy.folder).command)
    cause = "other programs take 85% of the cores"
    assert first.startswith(f"Too noisy to say: {cause}: so much of the time each worker waits for one.")
    assert "Run it again when the machine is idle. Fastest so far" in first
    assert rest[-1].startswith("Next: run it again when the machine is idle: scaling run")
    assert "repeats=" not in " ".join([first, *rest])
    assert "-again" in rest[-1]
    assert limit_word(one) == "unknown (noise)"


def test_wide_interval_is_no_number_in_any_text(busy):
    (one,), cells = answers(busy), read_cells(busy.folder)
    (found,) = recommend(build_table("", cells), cells)
    told = " ".join(" ".join(lines_of(found)).split())
    answer = answer_of([one])
    assert not re.search(r"±\s?[1-9]\d{2}", " ".join([*answer.lines, *answer.table.rows[0]]))
    assert ("repeats" in told, "other programs take 85% of the cores" in told) == (False, True)


def test_quiet_host_leaves_the_answer_as_it_is(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.6)
    (one,) = answers(study)
    assert not one.values["doubts"]
    assert verdict_lines([one])[0].startswith("Use 2 workers")


def test_sure_answer_keeps_its_headline_below_the_doubt(study):
    add(study, "none", 1, 1.0)
    steps = [[0.5 * (1 + 0.0005 * launch + 0.0001 * i) for i in range(6)] for launch in range(3)]
    study.add_steps(steps, aggregator="all_reduce", world_size=2, summary=BUSY)
    (one,) = answers(study)
    assert one.values["confidence"] == "sure"
    said = verdict_lines([one])[0]
    assert re.match(r"Doubtful: other programs take 85% .*\. Use 2 workers: 2\.00 times", said)


def test_one_launch_that_took_far_longer_is_named(study):
    add(study, "none", 1, 1.0)
    launches = [[step_s] * 6 for step_s in (0.9, 0.901, 0.902, 2.0)]
    study.add_steps(launches, aggregator="all_reduce", world_size=2)
    (one,) = answers(study)
    (doubt,) = one.values["doubts"]
    assert text_of(doubt) == "launch 4 of 4 took 2.22 times as long as the others"
    assert next_experiment(doubt) == "run it again when the machine is idle"


def test_launches_that_all_differ_have_no_slow_one(study):
    study.add_steps([[step_s] * 6 for step_s in (0.9, 1.2, 1.5, 2.0)], aggregator="all_reduce", world_size=2)
    assert not answers(study)[0].values["doubts"]


def test_mean_far_above_the_typical_step_is_told(study):
    study.add_steps([[*[1.0] * 17, 4.0, 4.1, 4.2]] * 3, aggregator="all_reduce", world_size=2)
    assert verdict_lines(answers(study))[0].startswith("Doubtful: long steps take ")
