"""MPI's world is the launch's, or an error on every rank; and what ends one rank ends all."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from launchers.rank_info import RankInfo
from scaling.runtime import LaunchLibraries
from tests.waiting import LIMIT_S, left_of

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")
MADE_BY_MPI = ("mpich_shm_", "sm_segment.")


def is_mapped(path):
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:  # it ended, or is another user's
            continue
    return False


@pytest.fixture(autouse=True)
def no_shared_memory_is_left():
    """Ranks that are killed by force leave MPI's files, which nobody else removes."""
    before = set(SHARED_MEMORY.glob("*"))
    yield
    for path in set(SHARED_MEMORY.glob("*")) - before:
        if path.name.startswith(MADE_BY_MPI) and not is_mapped(path):
            path.unlink(missing_ok=True)


def start(launcher, *words, **environment):
    return launcher.run(2, *words, cwd=ROOT, env={"PYTHONPATH": str(ROOT), **environment})


@pytest.mark.parametrize(("how", "word"), [("raise", "RuntimeError: planted failure"), ("leave", "")])
def test_rank_that_raises_or_leaves_ends_all(mpirun, how, word):
    done = start(mpirun, __file__, how)
    assert done.returncode != 0
    assert word in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_workers_do_not_outlive_an_mpirun_that_is_killed_by_force(mpirun):
    process = mpirun.start(2, __file__, "wait", cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        pids = [int(process.stdout.readline()) for _ in range(2)]
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
    left = left_of(pids)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_world_of_one_is_an_error_on_every_rank(mpich, openmpi, need):
    """mpi4py with another MPI than the launcher's: each process would be rank 0 of 1."""
    library = Path(openmpi.program).parents[1] / "lib" / "libmpi.so.40"
    need(library.exists(), f"no {library}: Open MPI is not from the package index")
    done = start(mpich, "-m", "scaling.worker", "mnist", MPI4PY_LIBMPI=str(library))
    assert done.returncode == 2
    for rank in (0, 1):
        assert f"error: rank {rank} (PMI_RANK) of 2 (PMI_SIZE)" in done.stderr
    assert done.stderr.count("says rank 0 of 1: mpi4py has loaded another MPI than the mpirun in use") == 2


def test_library_that_is_not_there_is_named(mpich):
    done = start(mpich, "-m", "scaling.worker", "mnist", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 2
    assert "mpi4py cannot be used: cannot load MPI library /nowhere/libmpi.so" in done.stderr
    assert "pip install 'scaling-study[mpi]'" in done.stderr


def main(how):
    """The last rank raises or leaves while the others wait in MPI; or all wait."""
    info = RankInfo.from_env(os.environ)
    libraries = LaunchLibraries(info)
    if how == "wait":
        os.write(1, f"{os.getpid()}\n".encode())  # at once: the ranks' lines are not mixed
        time.sleep(600)
    if info.rank == info.world_size - 1:
        if how == "raise":
            raise RuntimeError("planted failure")
        libraries.end_all(3)
        sys.exit(3)
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    main(sys.argv[1])
