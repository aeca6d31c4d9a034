"""Two environments in turns: their order, what is a pair, and how the other environment is named."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from scaling.errors import LaunchError, StoreError
from scaling.store import ResultsFolder
from scaling.study.campaign import THIS, Campaign, other_environment, other_goes_first, run_campaign
from scaling.study.launches import Launch, Settings, remaining_launches
from tests.study.test_launches import CELL, end, study_of

OTHER = "env:NCCL_ALGO=Ring"
CELLS = [CELL, replace(CELL, world_size=1), replace(CELL, aggregator="tree")]


@pytest.fixture
def folders(tmp_path):
    return ResultsFolder(tmp_path / "a"), ResultsFolder(tmp_path / "b")


class Run:
    """Stands for `StudyRun`: a launch is over at once, and what ran is noted."""

    def __init__(self, name, folder, ran, repeats=4, fails=()):
        self.name, self.folder, self.ran, self.fails = name, folder, ran, fails
        self.study = study_of(CELLS, repeats)
        self.zygotes = SimpleNamespace(wait_until_imported=lambda: None)

    def begin(self):
        pass

    def launches(self):
        return remaining_launches(self.folder, self.study)

    def run(self, launch):
        self.ran.append((launch.repeat, launch.settings.world_size, self.name))
        for cell in launch.cells:
            fails = (cell.id, launch.repeat) in self.fails
            end(self.folder, cell, launch.repeat, "failed" if fails else "done")


def run_both(folders, fails=()):
    ran = []
    campaign = Campaign.of(*folders, OTHER)
    campaign.measure_halves_again()
    run_campaign(Run("a", folders[0], ran), Run("b", folders[1], ran, fails=fails), campaign)
    return ran


def ids(folder):
    return {(one.cell_id, one.repeat): one.launch.get("campaign") for one in folder.runs()}


def test_the_same_launches_follow_each_other_and_neither_environment_always_goes_first(folders):
    ran = run_both(folders)
    pairs = [ran[index : index + 2] for index in range(0, len(ran), 2)]
    assert len(pairs) == 4 * 2  # repeats, world sizes
    assert all(one[:2] == other[:2] and {one[2], other[2]} == {"a", "b"} for one, other in pairs)
    for size in (1, 2):
        firsts = [one[2] for one, _ in pairs if one[1] == size]
        assert [set(firsts[at : at + 2]) for at in (0, 2)] == [{"a", "b"}] * 2
    launch = Launch(Settings(2, "cpu", 1, None), 0, [])
    assert 70 < sum(other_goes_first(f"study {number}", launch) for number in range(200)) < 130


def test_runs_of_both_are_marked_as_one_campaign_and_another_environment_needs_another_folder(folders):
    run_both(folders)
    marks = ids(folders[0])
    assert len(marks) == 4 * len(CELLS)
    assert len(set(marks.values())) == 1
    assert None not in marks.values()
    assert ids(folders[1]) == marks
    names = [{one.launch["environment"] for one in folder.runs()} for folder in folders]
    assert names == [{THIS}, {OTHER}]
    with pytest.raises(StoreError, match=r"measured in env:NCCL_ALGO=Ring, and --against names env:X=1"):
        Campaign.of(*folders, "env:X=1")


def test_what_is_done_is_not_measured_again_but_a_pair_that_was_cut_in_two_is_in_both(folders):
    run_both(folders)
    assert run_both(folders) == []
    cut = folders[1].run(CELL.id, 1)
    folders[1].reset_run(cut)
    assert sorted(run_both(folders)) == [(1, 2, "a"), (1, 2, "b")]
    assert ids(folders[0]) == ids(folders[1])


def test_partner_of_a_failed_run_is_measured_again_with_it_and_not_before(folders):
    run_both(folders, fails={(CELL.id, 0)})
    assert folders[1].run(CELL.id, 0).state == "failed"
    assert run_both(folders) == []
    folders[1].reset_run(folders[1].run(CELL.id, 0))
    assert sorted(run_both(folders)) == [(0, 2, "a"), (0, 2, "b")]


class TestEnvironment:
    def test_variables_are_set_and_removed(self, tmp_path):
        other = other_environment("env:ONE='two words' GONE=", tmp_path)
        found = other.workers.variables_from({"GONE": "x", "STAYS": "y"})
        assert found == {"ONE": "two words", "STAYS": "y"}
        assert (other.workers.python, other.workers.folder) == (sys.executable, None)

    def test_virtual_environments_python_is_taken(self, tmp_path):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(sys.executable)
        workers = other_environment(f"venv:{tmp_path}", tmp_path).workers
        assert workers.python == str(tmp_path / "bin" / "python")
        found = workers.variables_from({"PATH": "/usr/bin", "PYTHONHOME": "/usr"})
        assert found["VIRTUAL_ENV"] == str(tmp_path)
        assert found["PATH"].startswith(f"{tmp_path / 'bin'}{os.pathsep}")
        assert "PYTHONHOME" not in found

    def test_checkout_is_imported_from_first(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PYTHONPATH", "/mine")
        workers = other_environment(f"checkout:{tmp_path}", tmp_path).workers
        assert workers.folder == tmp_path
        path = workers.variables_from({})["PYTHONPATH"].split(os.pathsep)
        assert path == [str(tmp_path), "/mine", os.getcwd()]

    def test_commit_of_the_current_folders_repository_is_checked_out(self, tmp_path, monkeypatch):
        repository = tmp_path / "repository"
        inner = repository / "inner"
        inner.mkdir(parents=True)

        def git(*words):
            identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
            command = ["git", "-C", str(repository), *identity, *words]
            return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

        git("init", "--quiet")
        commits = []
        for text in ("old", "new"):
            (inner / "code.py").write_text(text)
            git("add", ".")
            git("commit", "--quiet", "-m", text)
            commits.append(git("rev-parse", "HEAD"))
        monkeypatch.chdir(inner)
        for _ in range(2):  # the clone that is there is used again
            other = other_environment("commit:HEAD~1", tmp_path / "out")
            assert other.name == f"commit:{commits[0][:12]}"
            assert (other.workers.folder / "code.py").read_text() == "old"
        assert (inner / "code.py").read_text() == "new"
        assert git("worktree", "list").count("\n") == 0
        with pytest.raises(LaunchError, match=r"commit:nowhere: git says .*name a commit, tag or branch"):
            other_environment("commit:nowhere", tmp_path / "out")

    @pytest.mark.parametrize(("text", "message"), [
        ("NCCL_ALGO=Ring", "allowed: env:NAME=VALUE .*venv:FOLDER, checkout:FOLDER or commit:REVISION"),
        ("conda:x", "names no environment; allowed: env:"),
        ("env:", "names no environment"),
        ("env:RING", "'RING' sets no variable; allowed: NAME=VALUE, or NAME= to remove it"),
        ("env:A='b", "quote values as in a shell"),
        ("env:OMP_NUM_THREADS=2", "each launch sets OMP_NUM_THREADS itself; use the study's `threads`"),
        ("env:RANK=2", "each launch sets RANK itself"),
        ("venv:/nowhere", "there is no /nowhere/bin/python; name the folder of a virtual environment"),
        ("checkout:/nowhere", "/nowhere is no folder; name one that has the code"),
    ])  # fmt: skip
    def test_what_cannot_be_is_refused(self, text, message, tmp_path):
        with pytest.raises(LaunchError, match=message):
            other_environment(text, tmp_path)
