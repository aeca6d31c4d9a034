"""One `scaling run` is concerned with all launches of a folder, or with one world size beside others."""

import threading
from functools import partial
from types import SimpleNamespace

import pytest

from launchers.local import LocalLauncher
from launchers.slurm_steps import SlurmSrun
from scaling.errors import LaunchError, StoreError, StudyError
from scaling.store import ResultsFolder, RunRecord
from scaling.study.resolve import JobShape, job_shape
from scaling.study.run import alone_on_this_host, retry_failed
from scaling.study.scope import Scope, scope_for
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


def test_size_alone_has_its_own_launches_and_records(folder, resolved):
    assert retry_failed(folder, Scope(world_size=2)) == 1
    states = {record.cell["world_size"]: record.state for record in folder.runs()}
    assert states == {1: "failed", 2: "planned"}
    assert [one.settings.world_size for one in Scope(world_size=2).launches(folder, resolved)] == [2]
    assert Scope(world_size=1).launches(folder, resolved) == []
    assert len(Scope().records(folder)) == 2


def test_size_that_the_study_does_not_have_is_refused(resolved):
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
    assert Scope().too_large(study(10**6)) == {}, "elsewhere it is an error when its launch comes"


def test_job_that_holds_no_size_of_the_study_is_refused():
    with pytest.raises(LaunchError, match="4 workers need 2 nodes of 2; the job has 1"):
        job(1).too_large(study(4, 8))


asked = partial(made_study, name="x", world_sizes=[1, 4, 2])


@pytest.mark.parametrize(("nodes", "gpus", "shape"), [
    (None, None, JobShape([1, 2, 4], 1, 4, 4)), (2, None, JobShape([1, 2, 4], 2, 2, 2)),
    (None, 2, JobShape([1, 2, 4], 2, 2, 2)), (None, 8, JobShape([1, 2, 4], 1, 8, 8)),
    (3, 2, JobShape([1, 2, 4], 3, 2, 2)), (1, 0, JobShape([1, 2, 4], 1, 4, 0)),
])  # fmt: skip
def test_what_is_not_asked_for_follows_from_the_largest_world_size(nodes, gpus, shape):
    assert job_shape(asked(), nodes, gpus) == shape


def test_study_on_processors_asks_for_no_gpus():
    assert job_shape(asked(device="cpu"), 2) == JobShape([1, 2, 4], 2, 2, 0)


def test_sizes_that_the_study_drops_where_gpus_are_missing_are_not_asked_for():
    assert job_shape(asked(missing_devices="drop"), 1, 2).world_sizes == [1, 2]
    assert job_shape(asked(missing_devices="error"), 1, 2).world_sizes == [1, 2, 4]
    assert job_shape(asked(missing_devices="drop", device="cpu"), 1, 2).world_sizes == [1, 2, 4]


def test_study_of_which_no_size_fits_or_that_says_cuda_without_gpus_is_refused():
    with pytest.raises(StudyError, match="no world size of study 'x' fits on 1 x 2 GPUs"):
        job_shape(asked(missing_devices="drop", world_sizes=[4]), 1, 2)
    with pytest.raises(StudyError, match="has device: cuda; give --gpus-per-node"):
        job_shape(asked(device="cuda"), None, 0)
