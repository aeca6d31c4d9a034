"""What a verb writes, renames or removes stays in the folder that it was given, whatever links that has."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.errors import StoreError
from scaling.store.files import append_whole
from scaling.store.folder import ResultsFolder
from tests.made import contents
from tests.received_folder import SHEET

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "planted-faults-4xh200"
FOLDERS = ("runs", "runs/*", "runs/*/*", "figures", "launches", "sheets")
FILES = (
    "study.yaml", "environment.json", "topology.yaml", "summary.csv", "budget.csv", "report.html",
    "runs.jsonl.gz", "samples.csv.gz", ".runs.jsonl.gz", ".lock", "runs/*/*/run.json", "runs/*/*/rank0.jsonl",
)  # fmt: skip
PLACES = (*FOLDERS, FILES)
STUDY = """
name: s
kind: iteration
device: cpu
step: overlapped
workloads: [{model: mlp, dataset: digits, global_batch: 8}]
aggregators: [all_reduce]
world_sizes: [2]
scaling: strong
"""
OWN = ("runs", "launches", FILES)
VERBS = {
    "export --archive": ("export {folder} --archive", PLACES),
    "export --unarchive": ("export {folder} --unarchive", PLACES),
    "report": ("report {folder}", ("runs", "figures", FILES)),
    "status": ("status {folder}", ("runs",)),
    "recommend": ("recommend {folder}", ("runs",)),
    "explain": ("explain {folder}", ("runs",)),
    "run": ("run {study} --out {folder}", OWN),
    "submit": ("submit {study} --out {folder} --dry-run", OWN),
    "plan": ("plan {study} --out {folder}", OWN),
    "predict": ("predict {study} --from {folder} --topology hgx-h200-4", OWN),
}
"""Verb -> its words, and the places at which the folder has a link."""


def record_of(folder):
    """Of a first attempt that was cut off, whose samples are moved aside."""
    return min(folder.runs(), key=lambda run: run.cell_id)


WRITES = {
    "start_run": lambda folder: folder.start_run(record_of(folder), {"launcher": "local"}),
    "fail_run": lambda folder: folder.fail_run(record_of(folder), "out of memory"),
    "reset_run": lambda folder: folder.reset_run(record_of(folder)),
    "plan_run": lambda folder: folder.plan_run(record_of(folder).cell_id, 7, {}),
    "sample_writer": lambda folder: folder.sample_writer(record_of(folder).cell_id, 0, 0)([{"a": 1}]),
    "remove_checkpoints": lambda folder: folder.remove_checkpoints(record_of(folder).cell_id, 0),
    "require_room": lambda folder: folder.require_room(),
    "write_study": lambda folder: folder.write_study({"name": "s"}),
    "write_environment": lambda folder: folder.write_environment({"torch": "1"}),
    "write_topology": lambda folder: folder.write_topology({"name": "t"}),
    "write_text": lambda folder: folder.write_text("summary.csv", "x"),
    "write_figure": lambda folder: folder.write_figure("a.svg", b"x"),
    "next_log_path": lambda folder: folder.next_log_path().write_text("x"),
    "write_launch_times": lambda folder: folder.write_launch_times({"total_s": 2.0, "cells": []}),
    "write_predictions": lambda folder: folder.write_predictions([]),
    "lock": lambda folder: folder.lock().__enter__(),
}
"""By what `run`, its jobs and `import-table` write; `verify --save-to` and `attach` have tests of their
own."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with its runs' own files and folders for all that can be made."""
    folder = tmp_path_factory.mktemp("prepared") / "mine"
    shutil.copytree(REFERENCE, folder)
    if ResultsFolder(folder).is_archived():
        ResultsFolder(folder).unarchive()
    for name in ("figures", "launches", "sheets"):
        (folder / name).mkdir(exist_ok=True)
    for name in FILES:
        if "*" not in name and not name.startswith(("runs.", "samples.")):
            (folder / name).touch()
    return folder


def refused(call, *words):
    """The command line refuses what leads out of a results folder."""
    code, _, err = call(*words)
    assert (code, "outside of the results folder" in err) == (2, True), err


@pytest.fixture
def mine(prepared, tmp_path):
    return shutil.copytree(prepared, tmp_path / "mine")


def write_inputs(path):
    (path / "study.yaml").write_text(STUDY)
    (path / "rates.csv").write_text("workers,samples_per_s\n1,100\n2,180\n")


def with_link(mine, place, received):
    """A received folder in which `place`, or each of several, leads into `mine`."""
    shutil.copytree(mine, received)
    for one in [place] if isinstance(place, str) else place:
        here = next(iter(sorted(received.glob(one))), received / one)
        if here.is_dir():
            shutil.rmtree(here)
        else:
            here.unlink(missing_ok=True)
        here.symlink_to(mine / here.relative_to(received))
    return received


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("verb", "place"),
    [(v, place) for v, (_, places) in VERBS.items() for place in places],
    ids=lambda each: each if isinstance(each, str) else "files",
)
def test_no_verb_changes_a_folder_that_a_link_leads_to(verb, place, mine, call, tmp_path):
    received = with_link(mine, place, tmp_path / "received")
    if verb == "export --unarchive":
        with_files = shutil.copytree(mine, tmp_path / "archived")
        ResultsFolder(with_files).archive(unfinished=True)
        for name in ("runs.jsonl.gz", "samples.csv.gz"):
            (received / name).unlink(missing_ok=True)
            shutil.copy(with_files / name, received / name)
    before = contents(mine)
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    call(*VERBS[verb][0].format(folder=received, study=study).split())
    assert contents(mine) == before


@pytest.mark.parametrize("place", PLACES, ids=lambda each: each if isinstance(each, str) else "files")
def test_no_write_of_a_run_goes_through_a_link(place, mine, tmp_path):
    next(iter(sorted(mine.glob("runs/*/0")))).joinpath("checkpoint-rank0.pt").touch()
    received = with_link(mine, place, tmp_path / "received")
    before = contents(mine)
    for name, write in WRITES.items():
        with suppress(StoreError):
            write(ResultsFolder(received))
        assert contents(mine) == before, name


@pytest.mark.parametrize(("place", "words"), [
    ("sheets", "verify top_k --world-sizes 2 --examples 1 --save-to {}"), ("runs", "export {} --archive"),
])  # fmt: skip
def test_no_sheet_is_saved_and_nothing_is_archived_through_a_link(
    place, words, mine, call, tmp_path, monkeypatch
):
    sheet = SimpleNamespace(lines=lambda: [], as_dict=lambda: SHEET)
    monkeypatch.setattr("scaling.conformance.fidelity.sheet_of", lambda _: sheet)
    received = with_link(mine, place, tmp_path / "received")
    before = contents(mine)
    refused(call, *words.format(received).split())
    assert (contents(mine), (received / "runs.jsonl.gz").exists()) == (before, False)


def test_an_attached_run_is_joined_through_no_link(mine, call, tmp_path, monkeypatch):
    monkeypatch.setattr("scaling.attach.study.signal.signal", lambda *_: None)
    monkeypatch.setattr("scaling.attach.study.QUIET_S", 0.5)
    order = {"out": str(mine / "launches" / "1"), "arm": "baseline", "deadline_s": 5.0}
    (mine / "launches" / "1").mkdir()
    (mine / "launches" / "1" / "order.json").write_text(json.dumps(order))
    before = contents(mine)
    refused(call, "attach", "--join", with_link(mine, "launches/1", tmp_path / "received"), "--", "true")
    assert contents(mine) == before


def test_runs_may_be_a_link_to_another_disk(mine, call, tmp_path):
    disk = tmp_path / "disk" / "runs-of-mine"
    disk.parent.mkdir()
    before = contents(mine)
    shutil.move(mine / "runs", disk)
    (mine / "runs").symlink_to(disk)
    assert (call("export", mine, "--archive")[0], contents(disk)) == (0, {})
    assert call("export", mine, "--unarchive")[0] == 0
    assert {f"runs/{name}": content for name, content in contents(disk).items()} == {
        name: content for name, content in before.items() if name.startswith("runs/")
    }


def test_folder_itself_may_be_a_link(mine, call, tmp_path):
    (tmp_path / "link").symlink_to(mine)
    assert call("export", tmp_path / "link", "--archive")[0] == 0
    assert (mine / "runs.jsonl.gz").exists()
    assert not (mine / "runs").exists()


def test_neither_samples_nor_a_locks_file_go_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "rank0.jsonl").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match=r"rank0\.jsonl: cannot be written"):
        append_whole(tmp_path / "rank0.jsonl", b"{}\n")
    assert (tmp_path / "precious").read_text() == "mine"
    # Where a file system has no locks, its holder is written to it.
    (tmp_path / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(StoreError, match=r"\.lock: cannot be written"), ResultsFolder(tmp_path).lock():
        pass
    assert not (tmp_path / "new").exists()


def test_runs_that_lead_on_to_the_disk_of_another_results_folder_are_refused(mine, call, tmp_path):
    shutil.move(mine / "runs", tmp_path / "disk")
    (mine / "runs").symlink_to(tmp_path / "disk")
    before = contents(tmp_path / "disk")
    received = with_link(mine, "runs", tmp_path / "received")
    assert (call("export", received, "--archive")[0], contents(tmp_path / "disk")) == (2, before)


@pytest.mark.parametrize(("words", "part"), [
    (("history", "out"), "0001"), (("tune", "study.yaml", "--out", "out"), "probe"),
    (("run", "study.yaml", "--out", "out", "--against", "env:A=1"), "b"),
])  # fmt: skip
def test_folders_of_several_studies_hold_no_link_that_leads_out(words, part, call, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "out" / part).symlink_to(tmp_path / "mine")
    (tmp_path / "study.yaml").write_text(STUDY)
    refused(call, *words)
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("part", ["runs", "launches", "figures"])
def test_a_results_folder_is_not_made_in_what_another_one_keeps(part, mine, call, tmp_path):
    write_inputs(tmp_path)
    before = contents(mine)
    for words in (("run", "study.yaml"), ("import-table", "rates.csv", "--batch", "64")):
        code, _, err = call(*words, "--out", mine / part / "new")
        assert code == 2, err
        assert "keeps its own files there; use another folder" in err
    assert contents(mine) == before


@pytest.mark.parametrize("part", ["runs", "launches", "figures", "sheets"])
def test_a_project_with_a_study_of_its_own_is_no_results_folder(part, mine, call, tmp_path):
    project = tmp_path / "project"
    (project / part).mkdir(parents=True)
    write_inputs(project)
    out = project / part / "first"
    code, _, err = call("import-table", project / "rates.csv", "--batch", "64", "--out", out)
    assert code == 0, err
    assert call("report", out)[0] == 0
    assert call("export", mine, "--format", "tensorboard", "--out", project / part)[0] == 0


def test_a_results_folder_that_was_made_in_the_runs_of_another_one_is_read(mine, call, tmp_path):
    inner = shutil.copytree(mine, tmp_path / "inner").rename(mine / "runs" / "inner")
    code, _, err = call("report", inner)
    assert code == 0, err
    assert (inner / "report.html").exists()


def test_files_of_tensorboard_go_through_no_link(mine, call, tmp_path):
    call("export", mine, "--format", "tensorboard", "--out", tmp_path / "board")
    run = next(path for path in (tmp_path / "board").iterdir() if path.is_dir())
    (tmp_path / "precious").mkdir()
    shutil.rmtree(run)
    run.symlink_to(tmp_path / "precious")
    refused(call, "export", mine, "--format", "tensorboard", "--out", tmp_path / "board")
    assert not list((tmp_path / "precious").iterdir())
