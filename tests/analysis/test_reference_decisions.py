"""What is concluded from every committed folder of timed cells or trainings stays within what it shows."""

import math
import random
import re
import shlex
from pathlib import Path

import pytest

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
from scaling.errors import ScalingError
from scaling.report.answer import answer_of
from scaling.report.terminal import MOST_LINES, WIDTH, height, screen
from scaling.report.text import line_of, text_of
from scaling.report.verdict_text import next_run
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
NAMES = sorted(
    path.name for path in REFERENCE.iterdir() if not path.name.startswith(("device-", "transfer-", "README"))
)
IN_MAKE_TEST = random.Random(0).sample(NAMES, len(NAMES) // 4)
FOLDERS = [pytest.param(name, marks=[pytest.mark.quality] * (name not in IN_MAKE_TEST)) for name in NAMES]
"""One in four is read by `make test`, by all tests of this file, the others by `make test-all`."""
COARSE = 0.1
"""Part of an iteration within which two times do not agree: it is not known so well."""

WITHOUT_NEXT = ("compression-", "converge-gpt-")
"""Folders whose answer proposes nothing to run."""

WIDEST = 100.0
"""Times that an interval's end is its start: a wider one tells nothing."""


@pytest.fixture(scope="module", params=FOLDERS)
def study(request):
    """Summary, rows and cells of a committed folder, for reading alone; one is kept at a time."""
    cells = read_cells(ResultsFolder(REFERENCE / request.param))
    table = build_table(request.param, cells)
    return table, to_rows(table), cells


def is_sane(low, high):
    return low >= 0 and math.isfinite(high) and high <= WIDEST * low


def test_no_interval_is_below_zero_or_absurdly_wide(study):
    table, rows, cells = study
    for row in rows:
        if row["iteration_s_low"] is not None:
            assert is_sane(row["iteration_s_low"], row["iteration_s_high"]), row["cell_id"]
    for one in recommend(table, cells):
        if one.choice is not None and one.choice.low is not None:
            assert is_sane(one.choice.low, one.choice.high), one.choice.name


def test_one_launch_has_no_verdict_and_a_folder_does_not_differ_from_itself(study):
    table, _, cells = study
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


def test_answer_fits_on_a_screen_and_begins_with_the_first_workload(study):
    table, rows, cells = study
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


def test_causes_have_a_controlled_pair_and_a_replicate_has_the_cause_of_its_cell(study):
    _, rows, cells = study
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
            assert row["noise_floor"] is None or row["noise_floor"] < COARSE, row["cell_id"]
    for first, second in aa_pairs(cells):
        both = {causes[one.cell_id] for one in (first, second) if one.cell_id in causes}
        assert len(both) <= 1, (first.cell_id, second.cell_id)


def test_no_advice_is_what_the_cell_has_or_the_study_measured(study):
    table, rows, cells = study
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


def test_next_command_is_one_that_the_study_takes(study, request):
    """Where there is one: it can be pasted, and makes a study with cells."""
    (name,) = request.node.callspec.params.values()
    table, _, cells = study
    found, folder = verdicts(table, cells), ResultsFolder(REFERENCE / name)
    made = next_run(found[0], folder) if found else None
    assert (made is None) == name.startswith(WITHOUT_NEXT)
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
