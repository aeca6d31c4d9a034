"""What the answer of a study claims: only what was measured, in words that say of what."""

import functools
import shlex
from pathlib import Path

import pytest

from scaling.aggregators.registry import REGISTRY
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.errors import StudyError
from scaling.report import write_report
from scaling.report.text import text_of
from scaling.report.verdict_text import CAPTURED, command_of, next_of, next_run, verdict_lines
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.analysis.test_verdict import REFERENCE, add, answers


def told(study):
    return "\n".join(verdict_lines(answers(study)))


@functools.cache
def reference(name):
    """The first answer of a committed folder, and the words of its command."""
    folder = ResultsFolder(REFERENCE / name)
    cells = read_cells(folder)
    first = verdicts(build_table("", cells), cells)[0]
    return first, shlex.split(next_run(first, folder).command)


@pytest.mark.parametrize(("step_s", "peer_access"), [(3.7, True), (0.55, False)])
def test_slow_lossy_aggregator_and_one_in_another_setting_is_not_called_as_fast(study, step_s, peer_access):
    add(study, "none", 1, 1.0, device="cuda", peer_access=True)
    add(study, "all_reduce", 2, 0.55, device="cuda", peer_access=True)
    add(study, "cntk", 2, step_s, device="cuda", peer_access=peer_access, lossy=True)
    assert "lossy" not in told(study)


def test_workers_that_were_measured_with_lossy_aggregators_alone_are_not_called_unmeasured(study):
    add(study, "none", 1, 1.0)
    assert "Only 1 worker was measured: speedup unknown." in told(study)
    add(study, "one_bit", 2, 1.2, lossy=True)
    assert "was measured without loss, 2 with lossy settings of unknown accuracy: speedup" in told(study)


def test_lossy_aggregator_is_called_as_fast_only_where_its_interval_shows_it(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.55)
    study.add_steps([[one] * 6 for one in (0.55, 0.4, 0.75)], aggregator="one_bit", world_size=2, lossy=True)
    assert "as fast" not in told(study).partition("Aggregator")[2]
    assert "not ranked: one_bit (noisy; lossy, accuracy not tested)" in told(study)
    assert "Sure (exact aggregators): 3 launches" in told(study)


def test_lossy_aggregator_of_one_launch_is_not_called_as_fast(study):
    for name, size, step_s in (("none", 1, 1.0), ("all_reduce", 2, 0.55), ("one_bit", 2, 0.55)):
        add(study, name, size, step_s, launches=1, lossy=name == "one_bit")
    assert answers(study)[0].values["lossy"] == []


def test_interval_says_of_what_and_how_sure(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.55)
    assert "Sure: 3 launches, step time ± 0.1%, speedup and efficiency ± 0.1% (95%)." in told(study)


def test_one_that_may_be_slower_by_more_than_a_tie_has_its_measured_time_and_the_bound(study):
    add(study, "none", 1, 1.0)
    for aggregator, steps in (("all_reduce", (0.55, 0.5504, 0.5497)), ("ring", (0.5615, 0.5645, 0.5675))):
        study.add_steps([[one] * 6 for one in steps], aggregator=aggregator, world_size=2)
    assert "(next ring, 2.6% slower (at most" in told(study)


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


def test_high_mfu_asks_for_another_precision_not_for_a_captured_step():
    found, words = reference("quickstart-2xh100")
    assert "then try precision=tf32 or bf16: matrix products are faster" in text_of(found, "next")
    assert "captured" not in text_of(found, "next")
    assert words[-2:] == ["kind=iteration", "repeats=5"]


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
    add(study, "none", 1, 1.0, **gpu)
    ring = {"aggregator_parameters": {"directions": 2}, "aggregator_label": "ring(directions=2)"}
    add(study, "none", 2, 0.58, **gpu)
    add(study, "ring", 2, 0.6, **gpu, **ring)
    add(study, "all_reduce", 2, 0.8, **gpu)
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
        add(study, "none", 1, 1.0, model=model)
        add(study, "all_reduce", 2, 0.6, model=model)
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
