"""What the doctor says of ports, memory, limits, cores and the clock."""

import itertools
import resource
import socket

import pytest

from scaling.doctor import host


def test_host_whose_name_has_no_address_is_a_warning():
    def unknown(name):
        raise OSError("Name or service not known")

    line = host.ports({}, resolve=unknown)
    assert (line.state, "GLOO_SOCKET_IFNAME" in line.fix) == ("warning", True)
    assert host.ports({}, resolve=lambda name: "127.0.1.1").state == "ok"


def test_occupied_master_port_is_an_error_unless_it_is_this_launchs_own():
    with socket.create_server(("", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = host.ports({"MASTER_PORT": port}, resolve=str)
        assert (line.state, line.text) == ("error", f"MASTER_PORT {port} is taken")
        assert host.ports({"MASTER_PORT": port, "RANK": "0"}, resolve=str).state == "ok"
    assert host.ports({"MASTER_PORT": port}, resolve=str).state == "ok"


def test_small_shared_memory_is_a_warning(tmp_path, monkeypatch):
    assert host.shared_memory(tmp_path / "none").state == "warning"
    assert host.shared_memory(tmp_path).text.endswith(f"GB free in {tmp_path}")
    monkeypatch.setattr(host, "MIN_SHARED_BYTES", 1 << 62)
    line = host.shared_memory(tmp_path)
    assert (line.state, "--shm-size" in line.fix) == ("warning", True)


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


def test_cores_that_may_not_be_used_are_a_warning(tmp_path):
    node = tmp_path / "devices/system/node"
    for number, cpus in enumerate(("0-3", "4-7")):
        (node / f"node{number}").mkdir(parents=True)
        (node / f"node{number}" / "cpulist").write_text(f"{cpus}\n")
    assert host.numa(8, 8, tmp_path).text == "2 nodes, 8 of 8 cores may be used"
    assert host.numa(8, 8, tmp_path).state == "ok"
    line = host.numa(2, 8, tmp_path)
    assert (line.state, line.text) == ("warning", "2 nodes, 2 of 8 cores may be used")


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

    def test_fine_clock_is_fine(self, tmp_path):
        line = self.line(tmp_path)
        assert (line.state, line.text) == ("ok", "tsc, steps of 100 ns")

    @pytest.mark.parametrize(
        "change", [{"source": "hpet"}, {"step_s": 1e-5}, {"governor": "powersave"}], ids=str
    )
    def test_what_makes_times_uncertain_is_a_warning(self, tmp_path, change):
        line = self.line(tmp_path, **change)
        assert line.state == "warning"
        assert line.fix
