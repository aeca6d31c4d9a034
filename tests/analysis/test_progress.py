"""How fast a study goes on, from its records, with a clock of the test's own."""

import platform
from datetime import datetime, timezone

import pytest

from scaling.analysis.progress import progress
from scaling.report.status import describe_status, progress_as_dict, progress_lines, run_name, status_table
from scaling.store import ResultsFolder, RunRecord


def at(minute, second=0, hour=12):
    return datetime(2026, 1, 1, hour, minute, second, tzinfo=timezone.utc)


@pytest.fixture
def folder(tmp_path):
    made = ResultsFolder(tmp_path)
    made.write_study({"name": "watched"})
    return made


VARIABLES = {
    **{"kind": "iteration", "model": "mlp", "dataset": "digits", "step": "eager", "device": "cpu"},
    **{"scaling": "strong", "local_batch": 32, "global_batch": 64, "learning_rate": 0.1, "momentum": 0.0},
    **{"threads": 1, "seed": 0},
}


def write(folder, number, state, start=None, end=None, *, size=2, repeat=0, reason=None, host=None, **cell):
    launch = {"started_at": start and start.isoformat(), "finished_at": end and end.isoformat(), "host": host}
    launch = {name: value for name, value in launch.items() if value}
    own = {**VARIABLES, "aggregator": "ring", "aggregator_label": "ring", "world_size": size, **cell}
    folder.write_run(RunRecord(f"{number:012x}", repeat, own, state, reason, launch=launch))


def test_rest_is_estimated_by_world_size_with_the_launches_start_up(folder):
    write(folder, 1, "done", at(0), at(1))
    write(folder, 2, "done", at(1), at(2))
    write(folder, 3, "done", at(2), at(5), size=4)
    write(folder, 1, "planned", repeat=1)
    write(folder, 3, "planned", size=4, repeat=1)
    folder.write_launch_times({"start_up_s": 10.0, "total_s": 130.0, "cells": []})
    found = progress(folder, at(6))
    assert found.left_s == pytest.approx(60 + 180 + 2 * 10)
    assert (found.runs_per_hour, found.idle_s) == (pytest.approx(3 / 5 * 60), 60)
    assert not found.is_over


def test_running_cell_is_named_and_its_time_counts(folder):
    write(folder, 1, "done", at(0), at(2))
    write(folder, 2, "running", at(2), aggregator_label="tree")
    found = progress(folder, at(3))
    ((run, seconds),) = found.running
    assert run_name(run).startswith("tree on 2 workers")
    assert (seconds, found.left_s, found.idle_s) == (60, pytest.approx(60), None)
    assert "now: tree on 2 workers" in "\n".join(progress_lines(found))


@pytest.mark.parametrize("part", ["", ".2"])
def test_what_was_killed_is_not_said_to_run(folder, part):
    write(folder, 1, "done", at(0), at(2))
    write(folder, 2, "running", at(2), host=platform.node(), aggregator_label="tree")
    write(folder, 3, "running", at(2), host="another", aggregator_label="ring")
    with folder.lock(part):
        assert (len(progress(folder, at(3)).running), progress(folder, at(3)).killed) == (2, [])
    found = progress(folder, at(3))
    ((run, seconds),) = found.killed
    assert run_name(run).startswith("tree on 2 workers")
    assert seconds == 60
    ((elsewhere, _),) = found.running
    assert run_name(elsewhere).startswith("ring on 2 workers")
    assert "killed while it ran: tree on 2 workers" in "\n".join(progress_lines(found))
    assert [cell["seconds"] for cell in progress_as_dict(found)["killed"]] == [60]
    assert progress_lines(found)[0] == "1/3 runs over: 1 done, 1 running, 1 killed"


def test_status_calls_a_killed_run_so(study, monkeypatch):
    study.add(["running", "planned"])
    assert [row["state"] for row in status_table(study.folder)] == ["running"]  # on a host called "here"
    monkeypatch.setattr(platform, "node", lambda: "here")
    (row,) = status_table(study.folder)
    assert (row["state"], row["states"]) == ("killed", ["killed", "planned"])
    with study.folder.lock():
        assert [row["state"] for row in status_table(study.folder)] == ["running"]
    assert "2 of 2 runs are left" in describe_status([row])


def test_the_look_at_a_folder_that_others_share_keeps_nobody_out(folder):
    write(folder, 2, "running", at(2), host=platform.node())
    with folder.lock(shared=True):
        ((run, _),) = progress(folder, at(3)).killed
        assert run_name(run).startswith("ring on 2 workers")
        with folder.lock(".2"):
            assert progress(folder, at(3)).killed == []


def test_last_error_is_the_latest_and_nothing_is_left_of_a_finished_study(folder):
    write(folder, 1, "failed", at(0), at(1), reason="out of memory")
    write(folder, 2, "failed", at(1), at(2), reason="a worker died")
    found = progress(folder, at(9))
    assert run_name(found.last_error) == "ring on 2 workers, mlp, repeat 0"
    assert (found.last_error.reason, found.is_over, found.left_s) == ("a worker died", True, 0.0)


def test_rate_is_of_this_go_not_of_the_night_between(folder):
    write(folder, 1, "done", at(0, hour=1), at(1, hour=1))
    write(folder, 2, "done", at(0), at(1))
    write(folder, 3, "done", at(1), at(2))
    assert progress(folder, at(3)).runs_per_hour == pytest.approx(60)


def test_before_the_first_run_nothing_is_estimated(folder):
    write(folder, 1, "planned")
    found = progress(folder, at(0))
    assert (found.runs_per_hour, found.left_s, found.last_error, found.idle_s) == (None, None, None, None)
    assert progress_lines(found) == ["0/1 runs over: 1 planned"]


def test_status_tells_replicates_and_what_else_was_chosen_apart(study):
    for replicate in (0, 1):
        study.add_steps([[0.1] * 3], aggregator="ring", world_size=2, aa_replicate=replicate)
    study.add_steps([[0.1] * 3], aggregator="ring", world_size=2, step="overlapped", bucket_mb=25)
    lines = describe_status(status_table(study.folder)).splitlines()
    assert (len(set(lines)), sum("(A/A replicate)" in line for line in lines)) == (len(lines), 1)
    assert sum("overlapped, 25 MiB" in line or "overlapped" in line for line in lines) == 1
