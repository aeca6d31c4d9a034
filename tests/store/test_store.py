"""The results folder: nothing is lost, nothing is half written, and what is damaged is named."""

import errno
import gzip
import json
import math
import os
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.errors import DiskFullError, StoreError
from scaling.store import SCHEMA_VERSION, ResultsFolder, RunRecord, files
from tests.made import contents

CELL = "0123456789ab"
VARIABLES = {"kind": "own", "device": "cpu", "world_size": 2}
"""Of the least that a cell has."""


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    """A results folder with a study and one planned run."""
    made = ResultsFolder(tmp_path / "results")
    made.write_study({"name": "by-hand"})
    made.plan_run(CELL, 0, VARIABLES)
    return made


def run_folder(folder: ResultsFolder, repeat: int = 0) -> Path:
    return folder.path / "runs" / CELL / str(repeat)


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk() fills the disk."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    return lambda: monkeypatch.setattr(files.secrets, "token_hex", full)


def start(folder: ResultsFolder, rows: list[dict] | None = None) -> RunRecord:
    """Starts the run, with samples of rank 0 if there are any."""
    record = folder.run(CELL, 0)
    folder.start_run(record, {"launcher": "local"})
    if rows:
        folder.sample_writer(CELL, 0, 0)(rows)
    return record


@pytest.mark.parametrize(("names", "is_foreign"), [
    ([], False),
    (["environment.json", "topology.yaml", ".lock"], False),
    (["thesis.tex"], True),
    (["environment.json", ".lock", "thesis.tex"], True),
])  # fmt: skip
def test_one_file_that_no_study_writes_makes_a_folder_foreign(tmp_path, names, is_foreign):
    for name in names:
        (tmp_path / name).touch()
    assert ResultsFolder(tmp_path).holds_foreign_files() == is_foreign
    assert not ResultsFolder(tmp_path / "absent").holds_foreign_files()


class TestWriting:
    def test_files_are_replaced_without_a_temporary_one_left_and_come_back_as_written(self, folder):
        for number in range(3):
            folder.write_environment({"number": number})
            folder.write_topology({"number": number})
            folder.write_text("summary.csv", f"{number}\n")
        expected = {"study.yaml", "environment.json", "topology.yaml", "summary.csv"}
        assert set(contents(folder.path)) == expected | {f"runs/{CELL}/0/run.json"}
        assert (folder.environment(), (folder.path / "summary.csv").read_text()) == ({"number": 2}, "2\n")
        study = {"name": "by-hand", "parts": [{"kind": "iteration", "world_sizes": [1, 2]}], "notes": ["ü"]}
        folder.write_study(study)
        assert folder.study() == study
        assert folder.write_figure("speedup.svg", b"<svg/>").read_bytes() == b"<svg/>"
        first = folder.next_log_path()
        first.write_text("")
        assert [first.name, folder.next_log_path().name] == ["001.log", "002.log"]

    def test_file_keeps_its_old_content_when_the_new_one_cannot_be_finished(self, folder, monkeypatch):
        folder.write_text("report.html", "old")

        def fails(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(files.os, "fsync", fails)
        with pytest.raises(StoreError, match=r"report\.html: cannot be written: the disk is full"):
            folder.write_text("report.html", "new")
        assert (folder.path / "report.html").read_text() == "old"

    def test_full_disk_says_what_is_needed_and_what_is_free(self, folder, full_disk, monkeypatch):
        real = os.statvfs(folder.path)
        room = {name: getattr(real, name) for name in ("f_files", "f_favail", "f_frsize")}
        full_disk()
        no_files = {"f_bavail": 10**9, "f_files": 8, "f_favail": 0}
        for values, said in (
            ({"f_bavail": 3}, f"(2.5 MB needed, {3 * real.f_frsize / 1e3:.1f} kB free)"),
            (no_files, "(2.5 MB needed, no further files are possible)"),
        ):
            monkeypatch.setattr(os, "statvfs", lambda _, v=values: SimpleNamespace(**{**room, **v}))
            with pytest.raises(DiskFullError) as error:
                folder.write_text("report.html", "x" * 2_500_000)
            assert f"report.html: cannot be written: the disk is full {said}; free some" in str(error.value)

    def test_run_on_a_full_disk_is_planned_again_in_place(self, folder, full_disk):
        record = start(folder)
        full_disk()
        with pytest.raises(DiskFullError, match=r"run\.json: cannot be written: the disk is full"):
            folder.finish_run(record, {"wire_bytes": 8})
        planned = folder.run(CELL, 0)
        assert (planned.state, planned.summary, planned.launch["launcher"]) == ("planned", {}, "local")
        with pytest.raises(DiskFullError):
            folder.start_run(planned, {"launcher": "local"})
        assert folder.run(CELL, 0).state == "planned"

    def test_death_on_a_full_disk_is_counted_in_place(self, folder, full_disk):
        record = start(folder)
        full_disk()
        folder.reset_run(record, died="rank 1 was killed")
        assert (folder.run(CELL, 0).state, folder.run(CELL, 0).deaths) == ("planned", 1)

    @pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
    def test_files_have_the_mode_of_the_umask(self, folder, umask):
        before = os.umask(umask)
        try:
            folder.write_study({"name": "x"})
            folder.sample_writer(CELL, 0, 0)([{"iteration": 0}])
        finally:
            os.umask(before)
        for path in (folder.path / "study.yaml", folder.path / f"runs/{CELL}/0/rank0.jsonl"):
            assert path.stat().st_mode & 0o777 == 0o666 & ~umask

    def test_folder_that_cannot_be_made_and_one_in_the_place_of_a_file_are_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match=r"file/results/study\.yaml: cannot be written: Not a directory"):
            ResultsFolder(tmp_path / "file" / "results").write_study({})
        (tmp_path / "summary.csv").mkdir()
        with pytest.raises(StoreError, match=r"summary.csv is a folder; a file is to be written there"):
            ResultsFolder(tmp_path).write_text("summary.csv", "a")


class TestStates:
    def test_run_goes_from_planned_over_running_and_failed_with_its_reason_to_done(self, folder):
        assert folder.run(CELL, 0).state == "planned"
        record = start(folder)
        running = folder.run(CELL, 0)
        assert (running.state, list(running.launch)[:2]) == ("running", ["launcher", "started_at"])
        folder.fail_run(record, "out of memory")
        assert (folder.run(CELL, 0).state, folder.run(CELL, 0).reason) == ("failed", "out of memory")
        folder.reset_run(record)
        record = start(folder)
        assert (folder.run(CELL, 0).state, folder.run(CELL, 0).reason) == ("running", None)
        folder.finish_run(record, {"bytes": 3}, ["a note"])
        done = folder.run(CELL, 0)
        assert (done.state, done.summary, done.notes) == ("done", {"bytes": 3}, ["a note"])
        assert (done.cell, "finished_at" in done.launch) == (VARIABLES, True)

    @pytest.mark.parametrize("letter", ["x", "ä", "語"])
    def test_record_keeps_the_beginning_of_a_long_error_and_says_where_the_rest_is(self, folder, letter):
        folder.fail_run(start(folder), letter * 5_000_000)
        reason = folder.runs()[0].reason
        assert len(reason.encode()) <= 4096
        kept = reason.count(letter)
        said = f"{letter * kept} [{5_000_000 - kept} more characters are in the log: launches/*.log]"
        assert reason == said

    def test_first_death_plans_the_run_again_the_second_fails_it_and_being_stopped_is_none(self, folder):
        for _ in range(3):
            folder.reset_run(start(folder))
        assert (folder.run(CELL, 0).state, folder.run(CELL, 0).deaths) == ("planned", 0)
        folder.reset_run(start(folder), died="exit code -9")
        assert (folder.run(CELL, 0).state, folder.run(CELL, 0).deaths) == ("planned", 1)
        folder.reset_run(start(folder), died="exit code -9")
        record = folder.run(CELL, 0)
        assert (record.state, record.reason) == ("failed", "a worker died 2 times, last: exit code -9")

    def test_planning_never_overwrites_and_runs_are_in_the_order_of_cell_and_repeat(self, folder):
        folder.finish_run(start(folder), {"bytes": 3})
        before = (run_folder(folder) / "run.json").read_bytes()
        folder.plan_run(CELL, 0, {"world_size": 4})
        assert (run_folder(folder) / "run.json").read_bytes() == before
        for cell_id, repeat in ((CELL, 10), (CELL, 2), ("000000000000", 1)):
            folder.plan_run(cell_id, repeat, VARIABLES)
        order = [("000000000000", 1), (CELL, 0), (CELL, 2), (CELL, 10)]
        assert [(r.cell_id, r.repeat) for r in folder.runs()] == order


class TestSamples:
    def test_samples_come_back_by_rank_and_line(self, folder):
        start(folder)
        for rank in (1, 0, 10, *range(2, 10)):
            append = folder.sample_writer(CELL, 0, rank)
            append([{"rank": rank, "iteration": 0}])
            append([{"rank": rank, "iteration": 1}])
        samples = folder.samples(CELL, 0)
        assert [[row["rank"] for row in rows] for rows in samples] == [[rank] * 2 for rank in range(11)]
        assert [row["iteration"] for row in samples[10]] == [0, 1]

    def test_numbers_that_are_not_finite_become_null_in_valid_json_lines(self, folder):
        rows = [{"loss": math.nan, "losses": [1.5, math.inf], "deep": {"a": -math.inf}, "text": "NaN"}]
        start(folder, rows)

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        text = (run_folder(folder) / "rank0.jsonl").read_text()
        assert text.count("\n") == 1
        expected = {"loss": None, "losses": [1.5, None], "deep": {"a": None}, "text": "NaN"}
        assert json.loads(text, parse_constant=refuse) == expected

    def test_samples_of_attempts_cut_off_move_aside_and_none_is_lost(self, folder):
        for attempt in range(3):
            start(folder, [{"attempt": attempt}])
            folder.reset_run(folder.run(CELL, 0))
        start(folder)
        assert folder.samples(CELL, 0) == []
        moved = run_folder(folder).glob("attempt-*/rank0.jsonl")
        kept = {path.parent.name: json.loads(path.read_text()) for path in moved}
        assert kept == {f"attempt-{n + 1}": {"attempt": n} for n in range(3)}

    def test_line_written_in_part_is_left_out_of_what_is_not_over_if_it_is_the_last(self, folder):
        start(folder, [{"a": 0}])
        file = run_folder(folder) / "rank0.jsonl"
        with file.open("a") as appended:
            appended.write('{"a": 1, "los')
        assert folder.samples(CELL, 0, unfinished=True) == [[{"a": 0}]]
        with pytest.raises(StoreError, match="line 2 is damaged"):
            folder.samples(CELL, 0)
        with file.open("a") as appended:
            appended.write('\n{"a": 2}\n')
        with pytest.raises(StoreError, match="line 2 is damaged"):
            folder.samples(CELL, 0, unfinished=True)

    def test_samples_that_were_compressed_are_read_but_not_cut_short_and_move_aside_too(self, folder):
        start(folder, [{"iteration": 0}, {"iteration": 1}])
        before = folder.samples(CELL, 0)
        path = run_folder(folder) / "rank0.jsonl"
        packed = path.with_suffix(".jsonl.gz")
        packed.write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert folder.samples(CELL, 0) == before
        packed.write_bytes(packed.read_bytes()[:-9])
        with pytest.raises(StoreError, match=r"rank0\.jsonl\.gz"):
            folder.samples(CELL, 0)
        folder.reset_run(folder.run(CELL, 0))
        start(folder, [{"attempt": 1}])
        assert folder.samples(CELL, 0) == [[{"attempt": 1}]]
        assert [path.name for path in run_folder(folder).glob("attempt-1/*")] == ["rank0.jsonl.gz"]

    def test_missing_rank_and_a_damaged_line_are_errors_with_their_path(self, folder):
        start(folder, [{"iteration": 0}])
        path = run_folder(folder) / "rank0.jsonl"
        path.write_bytes(path.read_bytes() + b'{"note": "\xff"}\n')
        with pytest.raises(StoreError, match=r"rank0\.jsonl, line 2 is damaged"):
            folder.samples(CELL, 0)
        folder.sample_writer(CELL, 0, 2)([{"iteration": 0}])
        with pytest.raises(StoreError, match=rf"runs/{CELL}/0: samples of ranks \[0, 2\].*missing"):
            folder.samples(CELL, 0)


class TestLaunchTimes:
    def test_times_come_back_by_number_and_a_folder_that_is_not_there_has_none(self, folder, tmp_path):
        for number in (10, 2):
            folder.write_launch_times({"world_size": number, "total_s": 1.5, "cells": []}, number)
        assert [launch["world_size"] for launch in folder.launch_times()] == [2, 10]
        assert (folder.path / "launches" / "002.json").exists()
        none = ResultsFolder(tmp_path / "none")
        assert (none.runs(), none.launch_times(), none.path.exists()) == ([], [], False)

    def test_next_free_number_is_taken_without_one_and_written_again_with_it_beside_the_logs(self, folder):
        folder.next_log_path().write_text("printed")
        first = folder.write_launch_times({"total_s": 1.0})
        second = folder.write_launch_times({"total_s": math.nan})
        assert folder.write_launch_times({"total_s": 3.0}, 1) == first
        assert [first.name, second.name, folder.next_log_path().name] == ["001.json", "002.json", "002.log"]
        assert [launch["total_s"] for launch in folder.launch_times()] == [3.0, None]


class TestDamage:
    @pytest.mark.parametrize("text", [b"", b"{", b"[]", b"3", b'{"schema_version": 1, "no": 2}', b"\xff\x00"])
    @pytest.mark.parametrize(("name", "read"), [
        (f"runs/{CELL}/0/run.json", lambda folder: folder.run(CELL, 0)),
        (f"runs/{CELL}/0/run.json", ResultsFolder.runs),
        ("study.yaml", ResultsFolder.study), ("environment.json", ResultsFolder.environment),
        ("launches/001.json", ResultsFolder.launch_times),
    ])  # fmt: skip
    def test_damaged_file_is_an_error_with_its_path(self, folder, name, read, text):
        (folder.path / "launches").mkdir()
        whole = name.endswith("run.json") or b":" not in text  # of others any mapping will do
        (folder.path / name).write_bytes(text if whole else b"{[1]")
        with pytest.raises(StoreError, match=rf"results/{name} is damaged"):
            read(folder)

    @pytest.mark.parametrize("version", [0, SCHEMA_VERSION + 1, None, True])
    def test_other_schema_version_is_an_error_with_both_numbers(self, folder, version):
        path = run_folder(folder) / "run.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
        said = rf"run\.json: schema_version is {version}; this program reads 1 to {SCHEMA_VERSION}"
        with pytest.raises(StoreError, match=said):
            folder.run(CELL, 0)

    def test_file_that_is_not_there_is_an_error_with_its_path(self, folder):
        with pytest.raises(StoreError, match=rf"runs/{CELL}/7/run\.json is missing"):
            folder.run(CELL, 7)
        with pytest.raises(StoreError, match=r"results/environment\.json is missing; restore it"):
            folder.environment()


class TestRequire:
    @pytest.mark.parametrize(("name", "said"), [
        ("none", "no results folder {}/none"), ("file", "no results folder {}/file"),
        (".", "{} is no results folder: it has no study.yaml"),
    ])  # fmt: skip
    def test_folder_with_a_study_is_itself_and_another_is_an_error(self, folder, tmp_path, name, said):
        assert folder.require() is folder
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match=said.format(tmp_path)):
            ResultsFolder(tmp_path / name).require()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_folder_without_permission_is_an_error_with_the_path(self, folder):
        folder.path.chmod(0)
        try:
            with pytest.raises(StoreError, match="results cannot be read; check its permissions"):
                folder.require()
        finally:
            folder.path.chmod(0o755)


def refusing(error: int = errno.ENOLCK):
    """A flock of a file system without locks."""

    def flock(*_):
        raise OSError(error, os.strerror(error))

    return flock


class TestWritersAsReaders:
    """What could not be read again is not written."""

    def test_record_or_run_with_such_a_fact_is_refused_with_its_name_and_the_one_before_stays(self, folder):
        record = start(folder)
        record.deaths = -1
        with pytest.raises(StoreError, match=r"was to be written to .*run.json is damaged: deaths is -1"):
            folder.write_run(record)
        assert folder.run(CELL, 0).state == "running"
        folder.finish_run(start(folder), {"num_parameters": -3})
        again = folder.run(CELL, 0)
        assert again.state == "failed"
        assert again.reason.startswith("what was to be recorded is damaged: summary.num_parameters is -3")

    @pytest.mark.parametrize(("kind", "good", "bad", "said"), [
        ("iteration", {"iteration": 0, "warmup": False, "step_s": 1.0}, {"step_s": -1.0}, "step_s is -1.0"),
        ("convergence", {"epoch": 0, "train_s": 1.0}, {"epoch": -1}, "epoch is -1"),
        ("device", {"phase": "copy", "seconds": 1.0}, {"seconds": -1.0}, "seconds is -1.0"),
    ])  # fmt: skip
    def test_samples_are_refused_with_the_line_that_is_wrong(self, folder, kind, good, bad, said):
        start(folder)
        write = folder.sample_writer(CELL, 0, 0, kind)
        write([good])
        with pytest.raises(StoreError, match=rf"rank0\.jsonl, line 2 is damaged: {said}"):
            write([good, {**good, **bad}])
        assert folder.samples(CELL, 0) == [[good]]

    def test_samples_of_a_plug_ins_kind_are_its_own_affair(self, folder):
        start(folder)
        folder.sample_writer(CELL, 0, 0, "own")([{"step_s": -1.0}])
        assert folder.samples(CELL, 0) == [[{"step_s": -1.0}]]


class TestLock:
    def test_second_holder_is_refused_until_the_first_lets_go_and_launches_by_hand_share_it(self, folder):
        with pytest.raises(KeyError), folder.lock():
            with pytest.raises(StoreError, match=f"another `scaling run` or launch works in {folder.path}"):
                ResultsFolder(folder.path).lock().__enter__()
            assert folder.exists()
            raise KeyError
        with ResultsFolder(folder.path).lock():
            pass

        def other():
            return ResultsFolder(folder.path)

        with folder.lock(shared=True), folder.lock(".2"):
            with other().lock(shared=True), other().lock(".4"):
                pass
            with pytest.raises(StoreError, match="works in"):
                other().lock(".2").__enter__()
            with pytest.raises(StoreError, match="works in"):
                other().lock().__enter__()

    def test_pipe_or_file_in_its_place_is_an_error_and_it_makes_the_folder(self, folder, tmp_path):
        os.mkfifo(folder.path / ".lock")
        with pytest.raises(StoreError, match=r"\.lock: cannot be written"):
            folder.lock().__enter__()
        assert not folder.is_locked()
        with ResultsFolder(tmp_path / "a" / "b").lock():
            assert (tmp_path / "a" / "b").is_dir()
        (tmp_path / "out").touch()
        with pytest.raises(StoreError, match="out is no folder; use another one"):
            ResultsFolder(tmp_path / "out").lock().__enter__()

    @pytest.mark.parametrize("error", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
    def test_file_system_that_refuses_locks_has_a_holder_by_its_process(self, folder, monkeypatch, error):
        monkeypatch.setattr("fcntl.flock", refusing(error))
        with ExitStack() as held:
            with pytest.warns(RuntimeWarning, match="has no locks; work in it from one host"):
                held.enter_context(folder.lock())
            assert folder.is_locked()
            with pytest.raises(StoreError, match="works in"):
                ResultsFolder(folder.path).lock().__enter__()
        assert not folder.is_locked()
        with folder.lock(shared=True), folder.lock(shared=True):
            assert not folder.is_locked()

    def test_process_that_was_killed_holds_nothing_where_locks_are_refused(self, folder, monkeypatch):
        monkeypatch.setattr("fcntl.flock", refusing())
        lock = folder.lock()
        lock.__enter__()
        named = (folder.path / ".lock").read_text()
        host, pid, began = named.split()
        for other in (f"{host} {pid} {int(began) + 1}", f"{host} 4194305 1", f"elsewhere {pid} {began}", "x"):
            (folder.path / ".lock").write_text(other)
            assert not folder.is_locked(), other
        (folder.path / ".lock").write_text(named)
        assert folder.is_locked()
        lock.__exit__(None, None, None)
        assert not folder.is_locked()


class TestCheckpoints:
    """Where checkpoints lie, and which of them a cut leaves."""

    def test_last_two_are_kept_the_last_one_first_also_in_the_place_of_a_folder(self, folder):
        files = folder.checkpoints(CELL, 0, 3)
        for content in (b"one", b"two", b"three"):
            files.write(content)
        assert [content for _, content in files.read()] == [b"three", b"two"]
        kept = {path.name for path in folder.path.rglob("*rank*")}
        assert kept == {"checkpoint-rank3.before.pt", "checkpoint-rank3.pt"}
        files.clear()
        assert files.read() == []
        folder.checkpoints(CELL, 0, 0).write(b"one")
        for other in ((CELL, 0, 1), (CELL, 1, 0), ("other", 0, 0)):
            assert folder.checkpoints(*other).read() == []
        files = folder.checkpoints(CELL, 0, 5)
        (folder.path / f"runs/{CELL}/0/checkpoint-rank5.pt").mkdir(parents=True)
        assert [content for _, content in files.read()] == [None]
        files.write(b"one")
        assert [content for _, content in files.read()] == [b"one"]

    def test_cut_between_two_files_leaves_the_one_before(self, folder, monkeypatch):
        files = folder.checkpoints(CELL, 0, 0)
        files.write(b"one")
        real = os.replace

        def cut(source, target):
            if not str(target).endswith("before.pt"):
                raise KeyboardInterrupt
            real(source, target)

        monkeypatch.setattr(os, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            files.write(b"two")
        assert [content for _, content in files.read()] == [b"one"]

    def test_all_of_a_run_are_removed_with_what_was_being_written(self, folder):
        for rank in (0, 1):
            files = folder.checkpoints(CELL, 0, rank)
            files.write(b"one")
            files.write(b"two")
        (folder.path / f"runs/{CELL}/0/.checkpoint-rank1.pt.x7y").write_bytes(b"part")
        (folder.path / f"runs/{CELL}/0/rank0.jsonl").write_text("{}\n")
        folder.checkpoints(CELL, 1, 0).write(b"of another run")
        folder.remove_checkpoints(CELL, 0)
        assert {path.name for path in folder.path.rglob("*rank*")} == {"checkpoint-rank0.pt", "rank0.jsonl"}
        folder.remove_checkpoints(CELL, 0)  # again: nothing is there
