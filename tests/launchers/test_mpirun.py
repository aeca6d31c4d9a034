"""The exact command line and variables of a launch by mpirun, and which mpirun it is."""

import pytest

from launchers.base import LaunchSpec
from launchers.local import HorovodrunLauncher, MpirunLauncher
from launchers.rank_info import RankInfo

SPEC = LaunchSpec(4, 2, "scaling.worker", ["mnist", "repeats=5", "--out", "results/my study"])
WORKER = ["python3", "-m", "scaling.worker", "mnist", "repeats=5", "--out", "results/my study"]


def test_open_mpi_is_told_not_to_bind():
    launcher = MpirunLauncher("/opt/bin/mpirun", "openmpi", as_root=False)
    options = ["--bind-to", "none", "--oversubscribe", "-np", "4"]
    assert launcher.command(SPEC, "python3") == ["/opt/bin/mpirun", *options, *WORKER]


def test_mpich_does_not_bind():
    launcher = MpirunLauncher("/opt/bin/mpirun", "mpich", as_root=True)
    assert launcher.command(SPEC, "python3") == ["/opt/bin/mpirun", "-np", "4", *WORKER]


def test_variables_name_the_mpi_and_let_root_in(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    own = {"OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    for family, as_root, more in (("openmpi", True, root), ("openmpi", False, {}), ("mpich", True, {})):
        launcher = MpirunLauncher("mpirun", family, as_root)
        assert launcher.environment(SPEC) == {"SCALING_LAUNCHER": family, **own, **more}


def test_worker_reads_back_who_started_it():
    openmpi = {"RANK": "0", "LOCAL_RANK": "0", "SIZE": "4", "LOCAL_SIZE": "4"}
    variables = {f"OMPI_COMM_WORLD_{name}": value for name, value in openmpi.items()}
    launcher = MpirunLauncher("mpirun", "openmpi", as_root=False)
    assert RankInfo.from_env({**variables, **launcher.environment(SPEC)}).launcher == "openmpi"


@pytest.fixture
def mpirun(tmp_path):
    """mpirun(what it says of its version): the Python next to it."""

    def make(text):
        program = tmp_path / "mpirun"
        program.write_text(f"#!/bin/sh\necho '{text}'\n")
        program.chmod(0o755)
        return str(tmp_path / "python3")

    return make


@pytest.mark.parametrize(
    ("text", "family"), [("mpirun (Open MPI) 5.0.11", "openmpi"), ("HYDRA build details:", "mpich")]
)
def test_mpirun_next_to_this_python_is_taken_and_asked_whose_it_is(mpirun, tmp_path, text, family):
    found = MpirunLauncher.find(mpirun(text))
    assert (found.program, found.family) == (str(tmp_path / "mpirun"), family)


def test_mpirun_of_others_is_named(mpirun):
    with pytest.raises(ValueError, match=r"is neither Open MPI's nor MPICH's: 'Strange MPI 1'"):
        MpirunLauncher.find(mpirun("Strange MPI 1"))


def test_missing_mpirun_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no mpirun next to this Python or on the PATH; pip install"):
        MpirunLauncher.find(str(tmp_path / "python3"))


def test_horovodrun_goes_over_gloo(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    expected = ["python3", "-m", "horovod.runner.launch", "-np", "4", "--gloo", *WORKER]
    assert HorovodrunLauncher().command(SPEC, "python3") == expected
    assert HorovodrunLauncher().environment(SPEC) == {
        "SCALING_LAUNCHER": "horovodrun",
        "OMP_NUM_THREADS": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
