"""Which MPI a process belongs to: its launcher's, found by what started it."""

import os
import sys

import pytest

from launchers.mpi import daemon, library, released_cores, started_by_mpi
from launchers.rank_info import RankInfo


def info(table):
    return RankInfo(0, 0, 2, 2, table, table=table)


@pytest.mark.parametrize(("table", "variables", "is_mpi"), [
    ("openmpi", {}, True), ("mpich", {}, True), ("srun", {"PMIX_RANK": "0"}, True),
    ("srun", {"PMI_RANK": "0"}, True), ("srun", {}, False),
    ("torchrun", {"PMIX_RANK": "0"}, False),  # srun started torchrun, not its workers
    ("horovodrun", {}, False),
])  # fmt: skip
def test_mpi_started_the_workers_of_mpirun_and_of_srun_with_mpi(table, variables, is_mpi):
    assert started_by_mpi(info(table), variables) == is_mpi


@pytest.fixture
def add(tmp_path, monkeypatch):
    """add(pid, parent, program): a process, in the kernel's view of them in the folder proc."""
    monkeypatch.setattr(os, "getppid", lambda: 40)

    def added(pid, parent, program):
        entry = tmp_path / "proc" / str(pid)
        entry.mkdir(parents=True)
        (entry / "stat").write_text(f"{pid} (a (strange) name) S {parent} 1 1")
        program = tmp_path / program
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch()
        (entry / "exe").symlink_to(program)

    return added


@pytest.mark.parametrize(
    ("launcher", "program"),
    [("openmpi", "prterun"), ("openmpi", "orted"), ("openmpi", "orterun"), ("mpich", "hydra_pmi_proxy")],
)
def test_daemon_is_found_behind_shells(add, tmp_path, launcher, program):
    add(40, 30, "usr/bin/bash")
    assert daemon(launcher, tmp_path / "proc") is None  # 30 is another user's
    add(30, 20, f"opt/mpi/bin/{program}")
    add(20, 1, "usr/bin/bash")
    assert daemon(launcher, tmp_path / "proc") == (30, tmp_path / "opt/mpi/bin" / program)


def test_process_of_no_mpi_is_no_daemon(add, tmp_path):
    add(40, 30, "usr/bin/bash")
    add(30, 1, "usr/bin/sshd")
    assert daemon("openmpi", tmp_path / "proc") is None


def test_library_is_that_beside_the_program_and_goes_by_its_name_where_none_is(tmp_path):
    program = tmp_path / "bin" / "prterun"
    for found in (library("openmpi", program), library("openmpi", None)):
        assert found == "libmpi.so.40"
    assert library("mpich", None) == "libmpi.so.12:libmpich.so.12"
    (tmp_path / "lib").mkdir()
    for name, launcher in (("libmpi.so.40", "openmpi"), ("libmpi.so.12", "mpich")):
        (tmp_path / "lib" / name).touch()
        assert library(launcher, program) == str(tmp_path / "lib" / name)


@pytest.mark.skipif(sys.platform != "linux", reason="binding is Linux's")
def test_cores_are_those_of_the_launcher():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert released_cores(os.getppid()) == (1, len(os.sched_getaffinity(os.getppid())))
        assert os.sched_getaffinity(0) == os.sched_getaffinity(os.getppid())
    finally:
        os.sched_setaffinity(0, before)
