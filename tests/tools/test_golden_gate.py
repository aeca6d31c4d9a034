"""The golden gate names what differs between reports of two commits; the call trace counts moves."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling.store import ResultsFolder
from tests.made import loaded
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "results" / "reference" / "planted-faults-4xh200"


@pytest.fixture
def gate():
    return loaded(ROOT / "tools" / "golden_gate.py")


@pytest.fixture
def sides(tmp_path):
    """Two folders of reports that are the same."""
    for side in ("before", "after"):
        folder = tmp_path / side / "results" / "reference" / "study"
        (folder / "figures").mkdir(parents=True)
        (folder / "summary.csv").write_text("cell_id,speedup\na,1.5\nb,2.5\n")
        (folder / "report.html").write_text("<html>\n<p>one</p>\n</html>\n")
        (folder / "figures" / "speedup.svg").write_text("<svg/>\n")
        (folder / "figures" / "speedup.png").write_bytes(side.encode())
    return tmp_path / "before", tmp_path / "after"


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("summary.csv", "cell_id,speedup\na,1.5\nb,2.25\n", "row 2, column speedup: '2.5' against '2.25'"),
        ("summary.csv", "cell_id,speedup\na,1.5\n", "2 rows before, 1 after"),
        ("summary.csv", "cell_id,gain\na,1.5\nb,2.5\n", "columns: only before speedup; only after gain;"),
        ("summary.csv", "cell_id,speedup\r\na,1.5\nb,2.5\n", "line 1: "),
        ("report.html", "<html>\n<p>two</p>\n</html>\n", "line 2: '<p>one</p>' against '<p>two</p>'"),
        ("figures/speedup.svg", "<svg/>", "line 2: '' against ''"),
        ("figures/speedup.svg", None, "only before"),
        ("links.csv", "a\n", "only after"),
    ],
)
def test_what_differs_is_named_with_its_place(gate, sides, file, content, said):
    path = sides[1] / gate.REFERENCE / "study" / file
    path.write_bytes(content.encode()) if content is not None else path.unlink()
    (line,) = gate.differences(*sides, ["study"], gate.SUFFIXES)
    assert line.startswith(f"study/{file}: {said}")
    assert len(gate.differences(*sides, ["study"], (".csv",))) == file.endswith(".csv")


def test_the_same_reports_have_no_difference_whatever_their_pictures(gate, sides):
    assert gate.differences(*sides, ["study"], gate.SUFFIXES) == []


@pytest.mark.processes
def test_a_change_of_one_sample_is_found_and_a_change_of_form_is_none(tmp_path):
    """In a repository of its own: the second commit archives both studies, and one has another sample."""
    repository = tmp_path / "repository"
    for package in ("scaling", "launchers", "topologies"):
        shutil.copytree(ROOT / package, repository / package, ignore=shutil.ignore_patterns("__pycache__"))
    (repository / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "golden_gate.py", repository / "tools")
    studies = [repository / "results" / "reference" / name for name in ("as-it-was", "changed")]
    for study in studies:
        shutil.copytree(STUDY, study, ignore=shutil.ignore_patterns("figures", "*.html"))
        ResultsFolder(study).unarchive()

    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit():
        git("add", "--all", "--force")
        git("commit", "--quiet", "--message", "a state")
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    before = commit()
    path = min(studies[1].glob("runs/*/0/rank0.jsonl"))
    *lines, last = path.read_text().splitlines()
    sample = json.loads(last)
    sample["step_s"] *= 1.5
    path.write_text("\n".join([*lines, json.dumps(sample)]) + "\n")
    for study in studies:
        ResultsFolder(study).archive()
    command = [sys.executable, "tools/golden_gate.py", before, commit(), "--csv"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1, done.stderr
    *found, total = done.stdout.splitlines()
    assert {line.split(":")[0] for line in found} <= {"changed/summary.csv", "changed/budget.csv"}
    assert re.match(r"changed/\S+: row \d+, column \w+: '[\d.e-]+' against '[\d.e-]+'$", found[0])
    assert total == f"2 folders, {len(found)} differences"


def test_every_file_but_the_first_is_come_to_and_counts_do_not_change():
    call_trace = loaded(ROOT / "tools" / "call_trace.py")
    moves = call_trace.trace("mnist")
    assert {"overrides.py", "schema.py", "resolve.py", "training_cells.py", "cell.py"} <= set(moves)
    assert moves.total() > len(moves) - 1
    assert call_trace.trace("mnist") == moves
    assert sys.getprofile() is None
