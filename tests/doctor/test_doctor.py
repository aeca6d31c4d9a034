"""`scaling doctor`: what it says of GPUs, versions, launchers and the host; errors are exit code 1."""

import importlib.util
import itertools
import json
import re
import resource
import socket

import pytest

from scaling import doctor
from scaling.doctor import host, software
from scaling.doctor.devices import Gpus, devices, nccl, peer_access
from scaling.doctor.line import CheckResult

SUBJECTS = [
    "versions", "devices", "peer access", "NCCL", "Triton", "launchers", "MPI", "Horovod", "rank", "ports",
    "shared memory", "limits", "NUMA", "load", "data sets", "write access", "clock",
]  # fmt: skip
TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def test_every_subject_is_a_line_for_people_and_an_object_for_programs(call):
    code, text, _ = call("doctor")
    assert [line[9:24].strip() for line in text.splitlines() if line[0] != " "] == SUBJECTS
    told = json.loads(call("doctor", "--json")[1])
    assert [one["name"] for one in told] == SUBJECTS
    assert code == int(any(one["state"] == "error" for one in told))
    assert all(set(one) == {"name", "state", "text", "fix"} for one in told)
    assert all(one["fix"] for one in told if one["state"] == "error")


@pytest.mark.parametrize(("state", "code"), [("ok", 0), ("warning", 0), ("error", 1)])
def test_exit_code_is_1_for_errors_alone(call, monkeypatch, state, code):
    monkeypatch.setattr(
        doctor, "examine", lambda *_: [CheckResult("clock", "ok", ""), CheckResult("ports", state, "x", "y")]
    )
    assert call("doctor")[0] == code


def test_fix_is_a_line_of_its_own_and_long_findings_go_on_below_where_they_began():
    line = CheckResult("ports", "error", "loopback cannot be used", "allow it")
    said = "error    ports          loopback cannot be used"
    assert line.describe() == f"{said}\n                        fix: allow it"
    line = CheckResult("launchers", "ok", ", ".join(["mpirun"] * 12), " ".join(["install"] * 20))
    found, fix = line.describe().split("fix: ")
    assert max(map(len, line.describe().splitlines())) <= 80
    assert (found.splitlines()[1].index("mpirun"), fix.splitlines()[1].index("install")) == (24, 29)


def test_ranks_say_which_variables_they_go_by_and_those_that_a_launch_has_left_are_an_error(tmp_path):
    (line,) = doctor.examine(TORCHRUN, tmp_path)
    assert line.text.startswith("rank 1 (RANK) of 2 (WORLD_SIZE), local rank 1 (LOCAL_RANK) of 2")
    lines = doctor.examine({**TORCHRUN, "RANK": "0", "LOCAL_RANK": "0"}, tmp_path)
    assert [one.name for one in lines] == SUBJECTS
    line = doctor.rank({"RANK": "0"})
    assert (line.state, line.text.startswith("torchrun set RANK, but")) == ("error", True)
    assert doctor.rank({}).text == "none: no launcher has started this process"


class TestFiles:
    def test_data_sets_that_are_missing_are_a_warning(self, monkeypatch, tmp_path):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("SCALING_DATA_DIR", raising=False)
        line = host.data_sets()
        assert (line.state, line.text) == ("warning", "digits, text, synthetic; not here: mnist, cifar10")
        monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "none"))
        assert host.data_sets().state == "error"

    def test_folder_that_cannot_be_written_is_an_error_and_a_full_disk_a_warning(self, monkeypatch, tmp_path):
        cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        assert host.write_access(cache, tmp_path).state == "ok"
        (tmp_path / "file").touch()
        line = host.write_access(cache, tmp_path / "file")
        assert (line.state, line.fix) == ("error", "use --out elsewhere")
        line = host.write_access({"XDG_CACHE_HOME": str(tmp_path / "file")}, tmp_path)
        assert (line.state, line.fix) == ("error", "set XDG_CACHE_HOME to a writable folder")
        monkeypatch.setattr(host, "MIN_FREE_BYTES", 1 << 62)
        assert host.write_access({"XDG_CACHE_HOME": str(tmp_path)}, tmp_path).state == "warning"


H200 = {"name": "NVIDIA H200", "memory_bytes": 150_000_000_000, "driver": "580.1"}
FOUR = Gpus([H200] * 4, 4, "13.0", "2.28.3", [])
NONE = Gpus([], 0, None, None, [])


@pytest.mark.parametrize(("line", "state", "said"), [
    (devices(NONE, 2), "ok", "no GPU: CPU processes over Gloo; 2 cores\n"),
    (peer_access(NONE, {}), "ok", ".*"), (nccl(NONE, {}), "ok", ".*"),
    (devices(FOUR, 64), "ok", "4 x NVIDIA H200, CUDA 13.0, driver 580.1; 64 cores\n"),
    (peer_access(FOUR, {}), "ok", "between all 4 GPUs\n"), (nccl(FOUR, {}), "ok", "2.28.3\n"),
    (devices(Gpus([H200], 0, None, None, []), 8), "error",
     "1 GPUs, driver 580.1, but torch was built without CUDA\ninstall torch for CUDA; or use device=cpu"),
    (devices(Gpus([H200], 0, "13.0", None, []), 8), "error", ".*\n.*update the driver.*"),
    (devices(Gpus([H200] * 4, 2, "13.0", "2.28.3", []), 64), "warning", ".*\nsee CUDA_VISIBLE_DEVICES"),
    (peer_access(Gpus([H200] * 2, 2, "13.0", "2.28.3", [(0, 1), (1, 0)]), {}), "warning",
     "none from GPU 0 to 1, 1 to 0: these go through host memory\n.*peer_access=false.*"),
    (peer_access(FOUR, {"NCCL_P2P_DISABLE": "1"}), "warning", ".*\n.*"),
    (nccl(FOUR, {"NCCL_ALGO": "Ring", "NCCL_VERSION": "2.27"}), "warning",
     "2.28.3, told NCCL_ALGO=Ring\n.*"),
])  # fmt: skip
def test_what_is_said_of_gpus_and_what_to_do(line, state, said):
    assert line.state == state
    assert re.fullmatch(said, f"{line.text}\n{line.fix}", re.DOTALL), line.describe()


def test_host_without_an_address_is_a_warning_and_another_ones_master_port_an_error():
    def unknown(name):
        raise OSError("Name or service not known")

    line = host.ports({}, resolve=unknown)
    assert (line.state, "GLOO_SOCKET_IFNAME" in line.fix) == ("warning", True)
    assert host.ports({}, resolve=lambda name: "127.0.1.1").state == "ok"
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = host.ports({"MASTER_PORT": port}, resolve=str)
        assert (line.state, line.text) == ("error", f"MASTER_PORT {port} is taken")
        assert host.ports({"MASTER_PORT": port, "RANK": "0"}, resolve=str).state == "ok"
    assert host.ports({"MASTER_PORT": port}, resolve=str).state == "ok"


def test_small_shared_memory_and_cores_that_may_not_be_used_are_warnings(tmp_path, monkeypatch):
    assert host.shared_memory(tmp_path / "none").state == "warning"
    assert host.shared_memory(tmp_path).text.endswith(f"GB free in {tmp_path}")
    monkeypatch.setattr(host, "MIN_SHARED_BYTES", 1 << 62)
    line = host.shared_memory(tmp_path)
    assert (line.state, "--shm-size" in line.fix) == ("warning", True)
    node = tmp_path / "devices/system/node"
    for number, cpus in enumerate(("0-3", "4-7")):
        (node / f"node{number}").mkdir(parents=True)
        (node / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    assert host.numa(8, 8, tmp_path).text == "2 nodes, 8 of 8 cores may be used"
    assert host.numa(8, 8, tmp_path).state == "ok"
    line = host.numa(2, 8, tmp_path)
    assert (line.state, line.text) == ("warning", "2 nodes, 2 of 8 cores may be used")


@pytest.mark.parametrize(("files", "locked", "has_gpus", "fix"), [
    (4096, resource.RLIM_INFINITY, True, ""), (4096, 8 << 20, False, ""),
    (4096, 8 << 20, True, "ulimit -l unlimited"),
    (256, resource.RLIM_INFINITY, False, "ulimit -n 1024"),
    (resource.RLIM_INFINITY, resource.RLIM_INFINITY, True, ""),
])  # fmt: skip
def test_limits_that_hinder_are_a_warning(files, locked, has_gpus, fix):
    values = {resource.RLIMIT_NOFILE: files, resource.RLIMIT_MEMLOCK: locked}
    line = host.limits(has_gpus, lambda kind: (values[kind], values[kind]))
    assert (line.state, line.fix) == ("warning" if fix else "ok", fix)


class TestClock:
    def line(self, tmp_path, source="tsc", step_s=1e-7, governor=None):
        file = tmp_path / "current_clocksource"
        file.write_text(f"{source}\n")
        if governor:
            folder = tmp_path / "devices/system/cpu/cpu0/cpufreq"
            folder.mkdir(parents=True)
            (folder / "scaling_governor").write_text(f"{governor}\n")
        ticks = itertools.count()
        return host.clock(lambda: next(ticks) * step_s, file, tmp_path)

    @pytest.mark.parametrize(
        "change", [{}, {"source": "hpet"}, {"step_s": 1e-5}, {"governor": "powersave"}], ids=str
    )
    def test_what_makes_times_uncertain_is_a_warning_and_a_fine_clock_is_fine(self, tmp_path, change):
        line = self.line(tmp_path, **change)
        assert (line.state, bool(line.fix)) == (("warning", True) if change else ("ok", False))
        assert change or line.text == "tsc, steps of 100 ns"


def versions_of(**packages):
    return packages.get


@pytest.mark.parametrize(
    ("torch", "state"), [("2.13.0+cpu", "ok"), ("2.6.0", "ok"), ("2.5.1+cu121", "error"), (None, "error")]
)
def test_torch_that_is_too_old_or_missing_is_an_error(torch, state):
    line = software.versions(versions_of(torch=torch, numpy="2.0"))
    assert line.state == state
    assert ("pip install 'torch>=2.6'" in line.fix) == (state == "error")


def test_launchers_that_are_there_are_named_and_horovod_that_is_not_is_no_fault(monkeypatch):
    there = {"mpirun": "/usr/bin/mpirun", "srun": "/usr/bin/srun"}
    line = software.launchers(there.get, lambda program: "4.1.4" if "mpirun" in program else "")
    assert (line.state, line.text) == ("ok", "torchrun, mpirun (4.1.4), srun (/usr/bin/srun)")
    assert software.launchers(lambda _: None).text == "torchrun"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = software.horovod(has_gpus=True)
    assert (line.state, "`make horovod`" in line.text) == ("ok", True)


@pytest.mark.parametrize(("version", "state"), [("3.6.0", "ok"), ("3.5.1", "warning"), (None, "warning")])
def test_on_a_gpu_a_triton_that_is_missing_or_too_old_is_a_warning(version, state):
    line = software.triton(True, lambda: version)
    assert line.state == state
    assert ("plain torch" in line.text) == ("triton>=3.6" in line.fix) == (state == "warning")
    assert version is None or version in line.text
    unneeded = software.triton(False, lambda: version)
    assert (unneeded.state, unneeded.fix, "GPU" in unneeded.text) == ("ok", "", True)


@pytest.mark.parametrize(("program", "package", "state"), [
    ("mpirun", "4.1.2", "ok"), (None, None, "ok"), ("mpirun", None, "warning"), (None, "4.1.2", "warning"),
])  # fmt: skip
def test_half_of_mpi_is_a_warning(program, package, state):
    line = software.mpi({"mpirun": program}.get, versions_of(mpi4py=package))
    assert line.state == state
    assert ("scaling-study[mpi]" in line.fix) == (state == "warning")


def test_horovod_is_described_by_what_it_was_built_with(need):
    need(importlib.util.find_spec("horovod"), "Horovod is not installed; `make horovod` builds it")
    assert software.horovod(has_gpus=False).state == "ok"
    assert "Gloo" in software.horovod(has_gpus=False).text
