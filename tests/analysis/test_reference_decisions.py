"""Answers of committed folders stay within what these show; commands, pages and doubts of an answer."""

import functools
import math
import random
import re
import shlex
from pathlib import Path

import pytest

from scaling.aggregators.registry import REGISTRY
from scaling.analysis.columns import to_rows
from scaling.analysis.compare import Side, compare_sides
from scaling.analysis.explain import explained
from scaling.analysis.explain_view import Known
from scaling.analysis.noise import aa_pairs
from scaling.analysis.questions import answers as question_answers
from scaling.analysis.questions import question_of
from scaling.analysis.recommend import recommend
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.analysis.verdict import verdicts
from scaling.axes import Role, columns_without
from scaling.errors import ScalingError, StudyError
from scaling.report import write_report
from scaling.report.advice_text import lines_of
from scaling.report.answer import answer_of, limit_word
from scaling.report.terminal import MOST_LINES, WIDTH, height, screen
from scaling.report.text import line_of, next_experiment, text_of
from scaling.report.verdict_text import CAPTURED, asked, command_of, next_of, next_run, verdict_lines
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from tests.analysis.test_verdict import BUSY, ONE, add, answers, fill

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
NAMES = sorted(
    path.name for path in REFERENCE.iterdir() if not path.name.startswith(("device-", "transfer-", "README"))
)
IN_MAKE_TEST = random.Random(0).sample(NAMES, len(NAMES) // 4)
FOLDERS = [pytest.param(name, marks=[pytest.mark.quality] * (name not in IN_MAKE_TEST)) for name in NAMES]
"""One in four is read by `make test`, by all tests of this file, the others by `make test-all`."""


@pytest.fixture(scope="module", params=FOLDERS)
def committed(request):
    """Summary, rows and cells of a committed folder, for reading alone; one is kept at a time."""
    cells = read_cells(ResultsFolder(REFERENCE / request.param))
    table = build_table(request.param, cells)
    return table, to_rows(table), cells


def is_sane(low, high):
    return low >= 0 and math.isfinite(high) and high <= 100 * low  # a wider one tells nothing


def test_no_interval_is_below_zero_or_absurdly_wide(committed):
    table, rows, cells = committed
    for row in rows:
        if row["iteration_s_low"] is not None:
            assert is_sane(row["iteration_s_low"], row["iteration_s_high"]), row["cell_id"]
    for one in recommend(table, cells):
        if one.choice is not None and one.choice.low is not None:
            assert is_sane(one.choice.low, one.choice.high), one.choice.name


def test_one_launch_has_no_verdict_and_a_folder_does_not_differ_from_itself(committed):
    table, _, cells = committed
    for one in (*recommend(table, cells), *recommend(table, cells, "efficiency >= 0.8")):
        if one.choice is not None and one.choice.num_launches == 1:
            is_alone = one.runner_up is None
            assert is_alone or one.state == "one_launch", one.choice.name
    try:
        side = Side.of([table], [cells])
        found = compare_sides(side, side)
    except ScalingError:  # it has no cell that is compared
        return
    assert {one.verdict for one in found.cells} <= {"same", "not resolved"}
    for one in found.cells:
        if min(one.num_launches) == 1:
            assert (one.verdict, one.difference.interval) == ("not resolved", None)
        else:
            assert is_sane(*one.difference.interval), one.name


def test_answer_fits_on_a_screen_and_begins_with_the_first_workload(committed):
    table, rows, cells = committed
    found, asked = verdicts(table, cells), question_answers(question_of({}, rows), table, cells)
    if not found:
        return
    answer = answer_of(found, "scaling run DIR/study.yaml --out DIR-again repeats=3", answers=asked)
    lines = screen(answer, command="scaling report DIR --all", page="DIR/report.html")
    assert height(lines) <= MOST_LINES
    assert all(len(line) <= WIDTH for line in lines if answer.command not in line)
    assert len(answer.table.rows) == len(asked or found)
    assert answer.sentence
    assert not re.search(r"±\D{0,2}[1-9]\d\d+", "\n".join(lines))


def test_causes_have_a_controlled_pair_and_a_replicate_has_the_cause_of_its_cell(committed):
    _, rows, cells = committed
    launches = {cell.cell_id: len(cell.launches) for cell in cells}
    checks = {row["cell_id"]: row["exposed_check"] for row in rows if row["exposed_check"] is not None}
    causes = {}
    for cell_id, check in checks.items():
        if check.kind == "exposed_times_differ":
            causes[cell_id] = check.values["cause"]
            fewest = min(launches[one] for one in check.cells)
            assert len(check.cells) == 2, cell_id
            assert fewest > 1 or causes[cell_id] == "one_launch", cell_id
    for row in rows:
        if row["cell_id"] in checks and checks[row["cell_id"]].kind == "exposed_times_agree":
            assert row["noise_floor"] is None or row["noise_floor"] < 0.1, row["cell_id"]
    for first, second in aa_pairs(cells):
        both = {causes[one.cell_id] for one in (first, second) if one.cell_id in causes}
        assert len(both) <= 1, (first.cell_id, second.cell_id)


def test_no_advice_is_what_the_cell_has_or_the_study_measured(committed):
    table, rows, cells = committed
    by_id = {row["cell_id"]: row for row in rows}
    settings = [name for name in columns_without(Role.RECORDED) if name != "bucket_mb"]
    for cell_id, findings in explained(Known.of(to_rows(table), cells)).items():
        row = by_id[cell_id]
        for key, values in re.findall(r"try (\w+)=(\S+(?: or \S+)*)", "; ".join(map(line_of, findings))):
            measured = [row] + [
                other
                for other in rows
                if other["iteration_s"] is not None
                and all(other[one] == row[one] for one in settings if one != key)
            ]
            taken = {str(other[key]).lower() for other in measured}
            assert not taken & set(re.split(" or |[:;,]", values)), (cell_id, key, values)
        for name in re.findall(r"measure (\S+) in a convergence part", "; ".join(map(line_of, findings))):
            trained = [one for one in rows if one["kind"] == "convergence" and one["model"] == row["model"]]
            assert name not in {one["aggregator"] for one in trained}, cell_id


def belongs_to(changes, experiment):
    """Whether the command does what the experiment proposes first."""
    first = experiment.partition("; ")[0].partition(", or ")[0]
    changed = [word for word in changes if not word.startswith(("kind=", "aggregators=", "tf32="))]
    names = ["larger" if word.startswith("workloads=") else word for word in changed]
    return bool(first) and all(name in first for name in names)


def test_next_command_is_one_that_the_study_takes(committed, request):
    """Where there is one: it can be pasted, and makes a study with cells."""
    (name,) = request.node.callspec.params.values()
    table, rows, cells = committed
    folder = ResultsFolder(REFERENCE / name)
    found = asked(verdicts(table, cells), question_of(folder.study(), rows))
    made = next_run(found[0], folder) if found else None
    without = ("compression-", "converge-gpt-", "paper-convergence-")
    assert (made is None) == name.startswith(without), "nothing is proposed there"
    if made is None or name.startswith("planted-"):
        return
    words = shlex.split(made.command)
    assert (words[:2], words[3:5]) == (["scaling", "run"], ["--out", words[4]])
    assert words[4] != str(folder.path)  # it is archived
    is_by_mpi = words[5:7] == ["--launcher", "mpirun"]
    assert is_by_mpi == name.startswith("libraries-")
    changes = words[7:] if is_by_mpi else words[5:]
    assert belongs_to(changes, text_of(found[0], "next"))
    assert resolve(load_study(words[2], changes), AvailableMachine(8, 16, 1)).cells


@functools.cache
def reference(name):
    """The first answer of a committed folder, and the words of its command."""
    folder = ResultsFolder(REFERENCE / name)
    cells = read_cells(folder)
    first = verdicts(build_table("", cells), cells)[0]
    return first, shlex.split(next_run(first, folder).command)


def test_wide_intervals_are_said_and_ask_for_launches_of_timed_cells_and_high_mfu_for_another_precision():
    found, _ = reference("quickstart-2xh100")
    why = text_of(found, "aggregator_why")
    assert why.startswith("fastest so far; not resolved from tree")
    assert why.endswith("not ranked: one_bit (noisy; lossy, accuracy not tested)")
    found, words = reference("quickstart-2xh100")
    assert "then try precision=tf32 or bf16: matrix products are faster" in text_of(found, "next")
    assert "captured" not in text_of(found, "next")
    assert words[5:] == ["kind=iteration", "repeats=5"]
    cells = resolve(load_study(words[2], words[5:]), AvailableMachine(2, 16, 1)).cells.values()
    assert ({cell.kind for cell in cells}, {cell.world_size for cell in cells}) == ({"iteration"}, {1, 2})


def test_limit_says_what_it_is_measured_against_and_a_step_mode_comes_before_a_larger_batch():
    found, words = reference("fcn-r-4xh200")
    said = "within 3% of the fastest; ring(directions=2) perhaps too: 2.2% slower, at most 3.5%"
    assert text_of(found, "aggregator_why") == said
    assert text_of(found, "limit") == "a batch of 1,024 a GPU underuses it"
    said = "2.55 ms: ideal 71%, lost to computation 15%, other 2%, exchange 12%"
    assert text_of(found, "step").endswith(said)
    assert sum(found.values["losses"]["shares"].values()) == pytest.approx(1)
    assert text_of(found, "next").startswith("try step=overlapped: it overlaps the exchange")
    assert text_of(found, "next").endswith("; or try a larger global batch (check the accuracy)")
    assert words[-2:] == ["step=overlapped", "aggregators=[none,no_op,all_reduce]"]


def test_captured_command_has_the_choice_if_the_step_takes_it_as_all_that_it_may_name():
    _, words = reference("sharded-2xh100")
    assert words[-2:] == ["step=captured", "aggregators=[none,zero1,all_reduce]"]
    cells = resolve(load_study(words[2], words[5:]), AvailableMachine(2, 16, 1)).cells.values()
    assert {"none", "zero1", "all_reduce"} == {cell.aggregator for cell in cells}
    taken = set()
    for name in REGISTRY.targets():
        cls = REGISTRY.load(name)
        if cls.graph_capturable and cls.exchanges and not cls.releases_gradients:
            taken |= {name} if cls.update_site == "replica" or cls().ddp_path() == "layered" else set()
    assert taken == CAPTURED


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
    assert header.count("m0: use 2 workers: 1.67 times as fast as one.") == 1
    assert "<td>1.67 ±0.1%</td>" in header.partition('<th scope="row">m1</th>')[2]


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


def test_busy_host_comes_first_replaces_more_repeats_and_no_wide_interval_is_a_number(busy):
    (one,) = answers(busy)
    first, *rest = verdict_lines([one], next_run(one, busy.folder).command)
    cause = "other programs take 85% of the cores"
    assert first.startswith(f"Too noisy to say: {cause}: so much of the time each worker waits for one.")
    assert "Run it again when the machine is idle. Fastest so far" in first
    assert rest[-1].startswith("Next: run it again when the machine is idle: scaling run")
    assert "repeats=" not in " ".join([first, *rest])
    assert "-again" in rest[-1]
    assert limit_word(one) == "unknown (noise)"
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
