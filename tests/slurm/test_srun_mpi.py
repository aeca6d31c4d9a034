"""Aggregators over MPI in a Slurm job, whose tasks MPI finds by PMIx; a wrong `--mpi` is no world of one."""

import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --nodes={nodes} --ntasks=2 --time=5 --output=slurm-%j.out
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo  # loopback alone
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {library}
srun --mpi={mpi} "{python}" -m scaling.worker "{study}" --out "{out}"
"""


@pytest.fixture
def run(study, openmpi, need):
    """run(mpi, nodes): a job with two tasks of `srun --mpi=...`; how it ended, and what it printed."""
    # Tried, since Slurm lists a plugin of PMIx that cannot be loaded.
    said = study.cluster.ask("srun", "--mpi=pmix", "--time=1", "echo", "started")
    need(said == "started", "`srun --mpi=pmix` does not work; Debian: apt-get install libpmix-dev")

    def submit(mpi, nodes, library=""):
        script = study.folder / f"{mpi}.sbatch"
        words = {"mpi": mpi, "nodes": nodes, "library": library, "python": sys.executable}
        script.write_text(SCRIPT.format(**words, study=study.study, out=study.out))
        options = [f"--chdir={study.folder}", f"--export=ALL,{study.exported}"]
        job = study.cluster.ask("sbatch", "--parsable", *options, str(script))
        study.jobs.append(job)
        return study.cluster.wait_for(job, "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), study.log(job)

    names = ("PYTHONPATH", "SCALING_TEST_GO")
    study.exported = ",".join(f"{name}={study.environment[name]}" for name in names)
    study.write_small(["all_reduce", "mpi"])
    return submit


def test_wrong_flag_is_an_error_before_any_cell(study, run):
    state, log = run("pmi2", nodes=1)
    assert state == "FAILED"
    for rank in (0, 1):
        assert f"error: rank {rank} (SLURM_PROCID) of 2 (SLURM_NTASKS)" in log
    assert "says rank 0 of 1: use `srun --mpi=pmix` for Open MPI" in log
    assert set(study.states().values()) == {"planned"}


@pytest.mark.parametrize(
    ("nodes", "launcher", "library"),
    [(1, "openmpi", ""), (2, "openmpi", ""), (2, "system_openmpi", "MPI4PY_LIBMPI=libmpi.so.40")],
)
def test_tasks_meet_by_pmix_and_mpi_gives_what_torch_gives(study, run, request, nodes, launcher, library):
    program = request.getfixturevalue(launcher).program
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    needed = re.search(r"[\d.]+\d", told.stdout)[0]
    state, log = run("pmix", nodes, library)
    assert state == "COMPLETED", log
    assert set(study.states().values()) == {"done"}
    records = study.results().runs()
    for record in records:
        assert (record.launch["launcher"], record.launch["num_nodes"]) == ("srun", nodes)
        assert record.launch["mpi"].startswith(f"Open MPI v{needed}")
    losses = [study.results().samples(record.cell_id, 0)[0][0]["step_losses"] for record in records]
    assert len(losses) == 2
    assert losses[0] == losses[1]  # two ranks: however a library adds, there is one order
