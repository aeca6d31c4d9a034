"""The answers of committed studies, their commands and pages, and what makes numbers doubtful."""

import functools
import re
import shlex
from pathlib import Path

import pytest

from scaling.aggregators.registry import REGISTRY
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.errors import StudyError
from scaling.report import write_report
from scaling.report.advice_text import lines_of
from scaling.report.answer import answer_of, limit_word
from scaling.report.text import next_experiment, text_of
from scaling.report.verdict_text import CAPTURED, command_of, next_of, next_run, verdict_lines
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.analysis.test_verdict import BUSY, ONE, REFERENCE, add, answers, fill


@functools.cache
def reference(name):
    """The first answer of a committed folder, and the words of its command."""
    folder = ResultsFolder(REFERENCE / name)
    cells = read_cells(folder)
    first = verdicts(build_table("", cells), cells)[0]
    return first, shlex.split(next_run(first, folder).command)


def test_next_best_with_a_wide_interval_has_its_range():
    found, _ = reference("quickstart-2xh100")
    why = text_of(found, "aggregator_why")
    assert why.startswith("fastest so far; not resolved from tree")
    assert why.endswith("not ranked: one_bit (noisy; lossy, accuracy not tested)")


def test_limit_says_what_its_computation_is_measured_against():
    found, _ = reference("fcn-r-4xh200")
    said = "within 3% of the fastest; ring(directions=2) perhaps too: 2.2% slower, at most 3.5%"
    assert text_of(found, "aggregator_why") == said
    assert text_of(found, "limit") == "a batch of 1,024 a GPU underuses it"
    said = "2.55 ms: ideal 71%, lost to computation 15%, other 2%, exchange 12%"
    assert text_of(found, "step").endswith(said)
    assert sum(found.values["losses"]["shares"].values()) == pytest.approx(1)


def test_high_mfu_asks_for_another_precision_and_more_launches_of_the_timed_cells_alone():
    """Quickstart's next step on GPUs is to time more launches, on all world sizes."""
    found, words = reference("quickstart-2xh100")
    assert "then try precision=tf32 or bf16: matrix products are faster" in text_of(found, "next")
    assert "captured" not in text_of(found, "next")
    assert words[5:] == ["kind=iteration", "repeats=5"]
    cells = resolve(load_study(words[2], words[5:]), AvailableMachine(2, 16, 1)).cells.values()
    assert ({cell.kind for cell in cells}, {cell.world_size for cell in cells}) == ({"iteration"}, {1, 2})


def test_captured_command_has_the_choice_where_a_captured_step_takes_it():
    _, words = reference("sharded-2xh100")
    assert words[-2:] == ["step=captured", "aggregators=[none,zero1,all_reduce]"]
    cells = resolve(load_study(words[2], words[5:]), AvailableMachine(2, 16, 1)).cells.values()
    assert {"none", "zero1", "all_reduce"} == {cell.aggregator for cell in cells}


def test_captured_step_takes_all_aggregators_that_its_command_may_name():
    taken = set()
    for name in REGISTRY.targets():
        cls = REGISTRY.load(name)
        if cls.graph_capturable and cls.exchanges and not cls.releases_gradients:
            taken |= {name} if cls.update_site == "replica" or cls().ddp_path() == "layered" else set()
    assert taken == CAPTURED


def test_step_mode_comes_before_a_larger_batch_of_which_the_text_doubts_the_accuracy():
    found, words = reference("fcn-r-4xh200")
    assert text_of(found, "next").startswith("try step=overlapped: it overlaps the exchange")
    assert text_of(found, "next").endswith("; or try a larger global batch (check the accuracy)")
    assert words[-2:] == ["step=overlapped", "aggregators=[none,no_op,all_reduce]"]


def test_command_names_the_choice_with_its_parameters_unless_a_step_mode_lacks_it(study):
    gpu = {"device": "cuda", "global_batch": 64}
    label = {"aggregator_parameters": {"directions": 2}, "aggregator_label": "ring(directions=2)"}
    fill(study, ONE, ("none", 2, 0.58), ("ring", 2, 0.6, label), ("all_reduce", 2, 0.8), **gpu)
    (one,) = answers(study)
    few = next_run(one, study.folder).command.partition(" 'aggregators=")[2]
    assert few == """[none,{"name": "ring", "directions": 2},all_reduce]'"""
    add(study, "all_reduce", 2, 0.8, step="overlapped", **gpu)
    (one,) = answers(study)
    assert next_run(one, study.folder).command.endswith("'aggregators=[none,all_reduce]'")


@pytest.mark.usefixtures("without_figures")
def test_answer_of_a_page_has_its_command(study):
    for model in ("m0", "m1"):
        add(study, "all_reduce", 2, 0.6, launches=1, model=model)
    header = write_report(study.folder).page.read_text().partition("<main>")[0]
    assert header.count("measure 1 worker too (world_sizes=[1,2]):") == 1
    assert header.count(" --next 1</code>") == 1


@pytest.mark.usefixtures("without_figures")
def test_page_of_several_workloads_names_all_and_shows_their_answers_above_what_can_be_chosen(study):
    for model in ("m0", "m1"):
        fill(study, ONE, ("all_reduce", 2, 0.6), model=model)
    header = write_report(study.folder).page.read_text().partition("<main>")[0]
    assert "2 workloads: m0 on synthetic; m1 on synthetic · strong scaling, global batch 64, cpu" in header
    assert header.count("m0 on synthetic: Use 2 workers: 1.67 times as fast as one.") == 1
    assert "<td>1.67 ±0.1%</td>" in header.partition('<th scope="row">m1 on synthetic</th>')[2]


def test_next_is_the_experiment_of_the_answer_that_is_named(monkeypatch):
    monkeypatch.chdir(REFERENCE)
    found, words = reference("fcn-r-4xh200")
    assert shlex.split(next_of(Path("fcn-r-4xh200"), 1).command)[5:] == words[5:]
    assert command_of([found], [], ResultsFolder(Path("fcn-r-4xh200"))) == "scaling run fcn-r-4xh200 --next 1"
    with pytest.raises(StudyError, match="--next 9: gpt-2xh200 has 2 answers"):
        next_of(Path("gpt-2xh200"), 9)


@pytest.fixture
def busy(study):
    """Two workers that wait for a core most of the time, and launches that differ by far."""
    fill(study, ONE)
    for name, factor in (("all_reduce", 1.0), ("ring", 1.1)):
        add(study, name, 2, tuple(factor * step_s for step_s in (0.3, 0.9, 2.0)), summary=BUSY)
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


def test_one_launch_that_took_far_longer_is_named(study):
    fill(study, ONE, ("all_reduce", 2, (0.9, 0.901, 0.902, 2.0)))
    ((doubt,),) = [one.values["doubts"] for one in answers(study)]
    assert text_of(doubt) == "launch 4 of 4 took 2.22 times as long as the others"
    assert next_experiment(doubt) == "run it again when the machine is idle"


def test_mean_far_above_the_typical_step_is_told(study):
    study.add_steps([[*[1.0] * 17, 4.0, 4.1, 4.2]] * 3, aggregator="all_reduce", world_size=2)
    assert verdict_lines(answers(study))[0].startswith("Doubtful: long steps take ")
