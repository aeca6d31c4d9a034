"""Aggregators over MPI in a Slurm job, whose tasks MPI finds by PMIx; a wrong `--mpi` is no world of one."""

import sys

import pytest

pytestmark = pytest.mark.processes

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --nodes=1 --ntasks=2 --time=5 --output=slurm-%j.out
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo  # loopback alone
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
srun --mpi={mpi} "{python}" -m scaling.worker "{study}" --out "{out}"
"""


@pytest.fixture
def run(study, openmpi, need):
    """run(mpi): a job with two tasks started by `srun --mpi=...`; how it ended, and what it printed."""
    plugins = study.cluster.ask("srun", "--mpi=list")
    need("pmix" in plugins, "Slurm has no PMIx here; Debian: apt-get install libpmix2")

    def submit(mpi):
        script = study.folder / f"{mpi}.sbatch"
        script.write_text(SCRIPT.format(mpi=mpi, python=sys.executable, study=study.study, out=study.out))
        job = study.cluster.ask(
            "sbatch", "--parsable", f"--chdir={study.folder}", f"--export=ALL,{study.exported}", str(script)
        )
        study.jobs.append(job)
        return study.cluster.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), study.log(job)

    study.exported = ",".join(
        f"{name}={study.environment[name]}" for name in ("PYTHONPATH", "SCALING_TEST_GO")
    )
    study.write(["all_reduce", "mpi"])
    return submit


def test_tasks_find_each_other_by_pmix_and_a_wrong_flag_is_an_error_before_any_cell(study, run):
    state, log = run("pmi2")
    assert state == "FAILED"
    for rank in (0, 1):
        assert f"error: rank {rank} (SLURM_PROCID) of 2 (SLURM_NTASKS)" in log
    assert "says rank 0 of 1: use `srun --mpi=pmix` for Open MPI" in log
    assert set(study.states().values()) == {"planned"}

    state, log = run("pmix")
    assert state == "COMPLETED", log
    assert set(study.states().values()) == {"done"}
    records = study.results().runs()
    assert {record.launch["launcher"] for record in records} == {"srun"}
    assert all(record.launch["mpi"].startswith("Open MPI") for record in records)
