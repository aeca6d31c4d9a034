"""Cells whose aggregators need a library that a launch lacks stay planned; without others nothing begins."""

import importlib.util

import pytest

from scaling.errors import LaunchError
from scaling.report.status import describe_status, status_table
from scaling.store import ResultsFolder
from scaling.study.scope import runnable
from tests.made import resolved_study


def study(*aggregators, world_sizes=(2,)):
    keys = {"name": "mine", "device": "cpu", "repeats": 2}
    return resolved_study(aggregators=list(aggregators), world_sizes=list(world_sizes), **keys)


@pytest.fixture
def without_horovod(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def folder(tmp_path):
    """Makes a folder with all runs of a study planned."""

    def make(of):
        folder = ResultsFolder(tmp_path)
        folder.write_study({"name": "mine"})
        for cell in of.cells.values():
            for repeat in range(2):
                folder.plan_run(cell.id, repeat, cell.to_dict())
        return folder

    return make


def names(of):
    return sorted({cell.aggregator for cell in of.cells.values()})  # the second of an A/A pair is no other


@pytest.mark.parametrize("name", ["mpi", "mpi_one_bit"])
def test_mpi_needs_workers_that_mpi_has_started(name):
    both = study("all_reduce", name)
    assert runnable(both, by_mpi=True).study == both
    assert names(runnable(both, by_mpi=False).study) == ["all_reduce"]


@pytest.mark.parametrize("by_mpi", [False, True])
def test_horovod_needs_to_be_there_whoever_starts_the_workers(without_horovod, by_mpi):
    with pytest.raises(LaunchError, match=r"aggregator 'horovod\(compression=fp16\)' .*`make horovod`"):
        runnable(study({"name": "horovod", "compression": "fp16"}), by_mpi=by_mpi)
    assert names(runnable(study("horovod", "ring"), by_mpi=by_mpi).study) == ["ring"]


def test_others_need_nothing(without_horovod):
    four = study("none", "ring", "host_serial", "cntk")
    assert runnable(four, by_mpi=False).study == four


def test_study_of_which_nothing_can_run_is_refused():
    with pytest.raises(LaunchError, match=r"mine: aggregator 'mpi' cannot run in this launch: .*mpirun"):
        runnable(study("mpi", "mpi_one_bit"), by_mpi=False)


def test_world_size_of_which_nothing_can_run_is_refused():
    both = study("mpi", world_sizes=[1, 2])
    mixed = type(both)(both.name, both.repeats, both.cells | study("ring").cells, both.notes)
    runnable(mixed, by_mpi=False)
    runnable(mixed, by_mpi=False, world_size=2)
    with pytest.raises(LaunchError, match="aggregator 'mpi' cannot run in this launch"):
        runnable(mixed, by_mpi=False, world_size=1)


def test_runs_that_stay_planned_are_named_in_a_line_with_what_to_start_instead(without_horovod, folder):
    some = study("ring", "mpi", "mpi_one_bit", "horovod")
    results = folder(some)
    lines = runnable(some, by_mpi=False).record_missing_libraries(results)
    planned = ["2 runs of horovod stay planned,", "4 runs of mpi, mpi_one_bit stay planned,"]
    assert sorted(line.partition(" since")[0] for line in lines) == planned
    assert any("`mpirun -np N python -m scaling.worker STUDY`" in line for line in lines)
    reasons = {record.cell["aggregator"]: record.reason for record in results.runs()}
    assert reasons["ring"] is None
    assert reasons["mpi"].startswith("the launch lacks mpi: it needs mpi4py")


def test_only_what_is_planned_and_of_this_launchs_size_is_named(folder):
    some = study("ring", "mpi", world_sizes=[1, 2])
    results = folder(some)
    can_run = runnable(some, by_mpi=False, world_size=2)
    (line,) = can_run.record_missing_libraries(results)
    assert line.startswith("2 runs of mpi stay planned")
    done, failed = (record for record in results.runs() if record.reason is not None)
    results.finish_run(done, {})
    (line,) = can_run.record_missing_libraries(results)
    assert line.startswith("1 run of mpi stays planned")
    results.fail_run(failed, "planted")
    assert can_run.record_missing_libraries(results) == []


def test_status_says_what_the_runs_that_are_left_wait_for(folder):
    some = study("ring", "mpi")
    results = folder(some)
    for record in results.runs():
        if record.cell["aggregator"] == "ring":
            results.finish_run(record, {})
    runnable(some, by_mpi=False).record_missing_libraries(results)
    rows = {row["aggregator"]: row for row in status_table(results)}
    assert (rows["ring"]["num_waiting"], rows["mpi"]["num_waiting"]) == (0, 2)
    text = " ".join(describe_status(list(rows.values())).split())
    assert "the launch lacks mpi: it needs mpi4py" in text
    assert text.endswith(": 2 with 2 workers; 2 of them need another launch, as said above")
