"""Aggregators over MPI in a Slurm job, whose tasks MPI finds by PMIx; a wrong `--mpi` is no world of one."""

import ctypes.util

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slurm]

SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --nodes={nodes} --ntasks-per-node={per} --time=5 --output=slurm-%j.out
# Open MPI between the emulated nodes, which are one host.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {more}
srun --mpi={mpi} {python} -m scaling.worker {study} --out {out}
"""


def test_x(cluster, study):
    import sys, subprocess, os
    print(cluster.ask("srun", "--mpi=list"), subprocess.run(["srun","--mpi=list"],env=cluster.environment, capture_output=True, text=True))
    for mpi, more, nodes, per in (("pmix", "",1,2), ("pmix", "MPI4PY_LIBMPI=libmpi.so.40",1,2), ("pmix","",2,1)):
        study.write(["all_reduce", "mpi"])
        out = study.folder / f"out{mpi}{len(more)}"
        script = study.folder / "job.sh"
        script.write_text(SCRIPT.format(mpi=mpi, more=more, python=sys.executable, study=study.study, out=out,nodes=nodes,per=per))
        done = subprocess.run(["sbatch","--parsable",str(script)], env=study.environment, cwd=study.folder, capture_output=True, text=True)
        print(done)
        job = done.stdout.strip()
        study.jobs.append(job)
        print(cluster.wait_for(job, "COMPLETED","FAILED","CANCELLED","TIMEOUT"))
        print(study.log(job)[-3000:])
        print(subprocess.run(["grep","-h","mpi","-r",str(out)],capture_output=True,text=True).stdout[:500])
    print(subprocess.run('grep -h -i pmix '+str(cluster.folder)+'/slurmd*.log '+str(cluster.folder)+'/*.out | tail -40',shell=True,capture_output=True,text=True).stdout)
    assert 0
