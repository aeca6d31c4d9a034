"""A batch job runs what it can hold, and says what it leaves planned."""

from types import SimpleNamespace

import pytest

from launchers.slurm_steps import SlurmSrun
from scaling.errors import LaunchError
from scaling.store import ResultsFolder, RunRecord
from scaling.study.scope import Scope


def job(nodes: int) -> Scope:
    return Scope(SlurmSrun(2, nodes, "host", 29500, 300.0))


def study(*sizes: int):
    return SimpleNamespace(cells={str(size): SimpleNamespace(world_size=size) for size in sizes})


def test_sizes_that_the_job_does_not_hold_stay_planned_and_are_named(tmp_path):
    folder = ResultsFolder(tmp_path)
    for cell, size, state in (("a", 2, "done"), ("b", 4, "planned"), ("c", 4, "planned"), ("d", 8, "done")):
        folder.write_run(
            RunRecord(cell, 0, {"kind": "own", "device": "cpu", "world_size": size}, state=state)
        )
    assert job(1).left_out(folder, study(2, 4, 8)) == [
        "2 runs with 4 workers stay planned: 4 workers need 2 nodes of 2; the job has 1"
    ]
    assert job(4).too_large(study(2, 4, 8)) == {}
    assert Scope().too_large(study(10**6)) == {}, "elsewhere it is an error when its launch comes"


def test_job_that_holds_no_size_of_the_study_is_refused():
    with pytest.raises(LaunchError, match="4 workers need 2 nodes of 2; the job has 1"):
        job(1).too_large(study(4, 8))
