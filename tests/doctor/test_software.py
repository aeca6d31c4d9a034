"""What the doctor says of versions and launchers."""

import importlib.util

import pytest

from scaling.doctor import software


def versions_of(**packages):
    return packages.get


@pytest.mark.parametrize(
    ("torch", "state"), [("2.13.0+cpu", "ok"), ("2.6.0", "ok"), ("2.5.1+cu121", "error"), (None, "error")]
)
def test_torch_that_is_too_old_or_missing_is_an_error(torch, state):
    line = software.versions(versions_of(torch=torch, numpy="2.0"))
    assert line.state == state
    assert ("pip install 'torch>=2.6'" in line.fix) == (state == "error")


def test_launchers_that_are_there_are_named_with_their_versions():
    there = {"mpirun": "/usr/bin/mpirun", "srun": "/usr/bin/srun"}
    line = software.launchers(there.get, lambda program: "4.1.4" if "mpirun" in program else "")
    assert (line.state, line.text) == ("ok", "torchrun, mpirun (4.1.4), srun (/usr/bin/srun)")
    assert software.launchers(lambda _: None).text == "torchrun"


class TestTriton:
    @pytest.mark.parametrize(("version", "state"), [("3.6.0", "ok"), ("3.5.1", "warning"), (None, "warning")])
    def test_on_a_gpu_one_that_is_missing_or_too_old_is_a_warning(self, version, state):
        line = software.triton(True, lambda: version)
        assert line.state == state
        assert ("plain torch" in line.text) == ("triton>=3.6" in line.fix) == (state == "warning")
        assert version is None or version in line.text

    @pytest.mark.parametrize("version", ["3.6.0", "3.5.1", None])
    def test_without_a_gpu_it_is_not_needed(self, version):
        line = software.triton(False, lambda: version)
        assert (line.state, line.fix, "GPU" in line.text) == ("ok", "", True)


@pytest.mark.parametrize(("program", "package", "state"), [
    ("mpirun", "4.1.2", "ok"), (None, None, "ok"), ("mpirun", None, "warning"), (None, "4.1.2", "warning"),
])  # fmt: skip
def test_half_of_mpi_is_a_warning(program, package, state):
    line = software.mpi({"mpirun": program}.get, versions_of(mpi4py=package))
    assert line.state == state
    assert ("scaling-study[mpi]" in line.fix) == (state == "warning")


def test_horovod_that_is_not_there_is_no_fault(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = software.horovod(has_gpus=True)
    assert (line.state, "`make horovod`" in line.text) == ("ok", True)


def test_horovod_is_described_by_what_it_was_built_with(need):
    need(importlib.util.find_spec("horovod"), "Horovod is not installed; `make horovod` builds it")
    assert software.horovod(has_gpus=False).state == "ok"
    assert "Gloo" in software.horovod(has_gpus=False).text
