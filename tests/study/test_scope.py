"""What one `scaling run` is concerned with: all launches or one size, and what its libraries can run."""

import importlib.util
import threading
from functools import partial
from types import SimpleNamespace

import pytest

from launchers.local import LocalLauncher
from launchers.slurm_steps import SlurmSrun
from scaling.errors import LaunchError, StoreError, StudyError
from scaling.report.status import describe_status, status_table
from scaling.store import ResultsFolder, RunRecord
from scaling.study.resolve import JobShape, job_shape
from scaling.study.run import alone_on_this_host, retry_failed
from scaling.study.scope import Scope, runnable, scope_for
from tests.made import made_study, resolved_study
from tests.waiting import LIMIT_S, wait_until

JOB = {
    **{"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"},
    **{"SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "4"},
}


@pytest.fixture
def resolved():
    return resolved_study(name="x", kind="convergence", epochs=1, device="cpu", aggregators=["all_reduce"])


@pytest.fixture
def folder(tmp_path, resolved):
    folder = ResultsFolder(tmp_path / "out")
    for cell_id, cell in resolved.cells.items():
        folder.write_run(RunRecord(cell_id, 0, cell.to_dict(), state="failed", deaths=2))
    return folder


def test_size_alone_has_its_own_launches_and_records_and_has_to_be_the_studys(folder, resolved):
    assert retry_failed(folder, Scope(world_size=2)) == 1
    states = {record.cell["world_size"]: record.state for record in folder.runs()}
    assert states == {1: "failed", 2: "planned"}
    assert [one.settings.world_size for one in Scope(world_size=2).launches(folder, resolved)] == [2]
    assert Scope(world_size=1).launches(folder, resolved) == []
    assert len(Scope().records(folder)) == 2
    Scope(world_size=2).require_cells(resolved)
    with pytest.raises(LaunchError, match=r"study 'x' has no cell of world size 3; it has \[1, 2\]"):
        Scope(world_size=3).require_cells(resolved)


def test_sizes_work_beside_each_other_and_all_of_them_alone(folder):
    with Scope(world_size=1).lock(folder), Scope(world_size=2).lock(folder):
        for other in (Scope(), Scope(world_size=2)):
            refused = pytest.raises(StoreError, match="another `scaling run` or launch works in")
            with refused, other.lock(folder):
                pass
    with Scope().lock(folder), pytest.raises(StoreError), Scope(world_size=1).lock(folder):
        pass


def test_launcher_is_chosen_by_name():
    assert scope_for("local", None, None, {}) == Scope(LocalLauncher(), None)
    scope = scope_for("slurm-srun", 2, 4, JOB)
    assert (scope.launcher.num_nodes, scope.world_size) == (2, 4)
    assert scope.launcher == SlurmSrun(2, 2, "n1", 20_017, 300.0)


@pytest.mark.parametrize(("name", "workers", "environ", "message"), [
    ("pbs", None, JOB, "no launcher 'pbs'; allowed: local, torchrun, mpirun, horovodrun, slurm-torch"),
    ("local", 2, {}, "--workers-per-node is for the launchers of Slurm"),
    ("slurm-srun", None, {}, "SLURM_JOB_NUM_NODES is not set; `scaling submit` makes the job"),
    ("slurm-srun", None, {**JOB, "SCALING_JOIN_TIMEOUT_S": "x"}, "SCALING_JOIN_TIMEOUT_S is 'x'"),
])  # fmt: skip
def test_launcher_that_cannot_be_used_here_is_refused(name, workers, environ, message):
    with pytest.raises(LaunchError, match=message):
        scope_for(name, workers, None, environ)


def test_two_world_sizes_of_one_host_are_never_timed_at_once(folder):
    began, said = threading.Event(), []
    progress = SimpleNamespace(say=said.append)

    def measure():
        with alone_on_this_host(folder, Scope(world_size=2), progress):
            began.set()

    thread = threading.Thread(target=measure)
    with alone_on_this_host(folder, Scope(world_size=1), progress):
        thread.start()
        wait_until(lambda: said, "the other to say that it waits")
        assert not began.is_set()
    thread.join(LIMIT_S)
    assert began.is_set()
    assert said == ["another world size of this study is measured on this host: waiting for its launch"]


def job(nodes: int) -> Scope:
    return Scope(SlurmSrun(2, nodes, "host", 29500, 300.0))


def study(*sizes: int):
    return SimpleNamespace(cells={str(size): SimpleNamespace(world_size=size) for size in sizes})


def test_sizes_that_the_job_does_not_hold_stay_planned_and_are_named(tmp_path):
    folder = ResultsFolder(tmp_path)
    for cell, size, state in (("a", 2, "done"), ("b", 4, "planned"), ("c", 4, "planned"), ("d", 8, "done")):
        variables = {"kind": "own", "device": "cpu", "world_size": size}
        folder.write_run(RunRecord(cell, 0, variables, state=state))
    said = "2 runs with 4 workers stay planned: 4 workers need 2 nodes of 2; the job has 1"
    assert job(1).left_out(folder, study(2, 4, 8)) == [said]
    assert job(4).too_large(study(2, 4, 8)) == {}
    with pytest.raises(LaunchError, match="4 workers need 2 nodes of 2; the job has 1"):
        job(1).too_large(study(4, 8))  # no size of the study is left
    assert Scope().too_large(study(10**6)) == {}, "elsewhere it is an error when its launch comes"


asked = partial(made_study, name="x", world_sizes=[1, 4, 2])


@pytest.mark.parametrize(("changes", "nodes", "gpus", "shape"), [
    ({}, None, None, ([1, 2, 4], 1, 4, 4)), ({}, 2, None, ([1, 2, 4], 2, 2, 2)),
    ({}, None, 2, ([1, 2, 4], 2, 2, 2)), ({}, None, 8, ([1, 2, 4], 1, 8, 8)),
    ({}, 3, 2, ([1, 2, 4], 3, 2, 2)), ({}, 1, 0, ([1, 2, 4], 1, 4, 0)),
    ({"device": "cpu"}, 2, None, ([1, 2, 4], 2, 2, 0)),
    # Sizes that the study drops where GPUs are missing are not asked for.
    ({"missing_devices": "drop"}, 1, 2, ([1, 2], 1, 2, 2)),
    ({"missing_devices": "error"}, 1, 2, ([1, 2, 4], 1, 2, 2)),
    ({"missing_devices": "drop", "device": "cpu"}, 1, 2, ([1, 2, 4], 1, 2, 2)),
])  # fmt: skip
def test_what_is_not_asked_for_follows_from_the_largest_world_size(changes, nodes, gpus, shape):
    assert job_shape(asked(**changes), nodes, gpus) == JobShape(*shape)


def test_study_of_which_no_size_fits_or_that_says_cuda_without_gpus_is_refused():
    with pytest.raises(StudyError, match="no world size of study 'x' fits on 1 x 2 GPUs"):
        job_shape(asked(missing_devices="drop", world_sizes=[4]), 1, 2)
    with pytest.raises(StudyError, match="has device: cuda; give --gpus-per-node"):
        job_shape(asked(device="cuda"), None, 0)


def study_of(*aggregators, world_sizes=(2,)):
    keys = {"name": "mine", "device": "cpu", "repeats": 2}
    return resolved_study(aggregators=list(aggregators), world_sizes=list(world_sizes), **keys)


@pytest.fixture
def without_horovod(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def planned(tmp_path, of):
    folder = ResultsFolder(tmp_path)
    folder.write_study({"name": "mine"})
    for cell in of.cells.values():
        for repeat in range(2):
            folder.plan_run(cell.id, repeat, cell.to_dict())
    return folder


def names(of):
    return sorted({cell.aggregator for cell in of.cells.values()})  # the second of an A/A pair is no other


@pytest.mark.parametrize("name", ["mpi", "mpi_one_bit"])
def test_mpi_needs_workers_that_mpi_has_started(name):
    both = study_of("all_reduce", name)
    assert runnable(both, by_mpi=True).study == both
    assert names(runnable(both, by_mpi=False).study) == ["all_reduce"]


@pytest.mark.parametrize("by_mpi", [False, True])
def test_horovod_needs_to_be_there_whoever_starts_the_workers_and_others_need_nothing(
    without_horovod, by_mpi
):
    with pytest.raises(LaunchError, match=r"aggregator 'horovod\(compression=fp16\)' .*`make horovod`"):
        runnable(study_of({"name": "horovod", "compression": "fp16"}), by_mpi=by_mpi)
    assert names(runnable(study_of("horovod", "ring"), by_mpi=by_mpi).study) == ["ring"]
    others = study_of("none", "ring", "host_serial", "cntk")
    assert runnable(others, by_mpi=by_mpi).study == others


def test_study_and_world_size_of_which_nothing_can_run_are_refused():
    with pytest.raises(LaunchError, match=r"mine: aggregator 'mpi' cannot run in this launch: .*mpirun"):
        runnable(study_of("mpi", "mpi_one_bit"), by_mpi=False)
    both = study_of("mpi", world_sizes=[1, 2])
    mixed = type(both)(both.name, both.repeats, both.cells | study_of("ring").cells, both.notes)
    runnable(mixed, by_mpi=False)
    runnable(mixed, by_mpi=False, world_size=2)
    with pytest.raises(LaunchError, match="aggregator 'mpi' cannot run in this launch"):
        runnable(mixed, by_mpi=False, world_size=1)


def test_runs_that_stay_planned_are_named_in_a_line_with_what_to_start_instead(without_horovod, tmp_path):
    some = study_of("ring", "mpi", "mpi_one_bit", "horovod")
    results = planned(tmp_path, some)
    lines = runnable(some, by_mpi=False).record_missing_libraries(results)
    said = ["2 runs of horovod stay planned,", "4 runs of mpi, mpi_one_bit stay planned,"]
    assert sorted(line.partition(" since")[0] for line in lines) == said
    assert any("`mpirun -np N python -m scaling.worker STUDY`" in line for line in lines)
    reasons = {record.cell["aggregator"]: record.reason for record in results.runs()}
    assert reasons["ring"] is None
    assert reasons["mpi"].startswith("the launch lacks mpi: it needs mpi4py")


def test_only_what_is_planned_and_of_this_launchs_size_is_named(tmp_path):
    some = study_of("ring", "mpi", world_sizes=[1, 2])
    results = planned(tmp_path, some)
    can_run = runnable(some, by_mpi=False, world_size=2)
    (line,) = can_run.record_missing_libraries(results)
    assert line.startswith("2 runs of mpi stay planned")
    done, failed = (record for record in results.runs() if record.reason is not None)
    results.finish_run(done, {})
    (line,) = can_run.record_missing_libraries(results)
    assert line.startswith("1 run of mpi stays planned")
    results.fail_run(failed, "planted")
    assert can_run.record_missing_libraries(results) == []


def test_status_says_what_the_runs_that_are_left_wait_for(tmp_path):
    some = study_of("ring", "mpi")
    results = planned(tmp_path, some)
    for record in results.runs():
        if record.cell["aggregator"] == "ring":
            results.finish_run(record, {})
    runnable(some, by_mpi=False).record_missing_libraries(results)
    rows = {row["aggregator"]: row for row in status_table(results)}
    assert (rows["ring"]["num_waiting"], rows["mpi"]["num_waiting"]) == (0, 2)
    text = " ".join(describe_status(list(rows.values())).split())
    assert "the launch lacks mpi: it needs mpi4py" in text
    assert text.endswith(": 2 with 2 workers; 2 of them need another launch, as said above")
