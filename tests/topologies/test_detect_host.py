"""Processors, memories and the PCIe bus, from a /sys made for the test."""

import pytest

from scaling.doctor import host as doctor
from topologies import detect_host
from topologies.detect import load_text
from topologies.facts import NumaNode, PcieLink, PciePlace


@pytest.fixture
def sysfs(tmp_path):
    """Writes files of a sysfs: `sysfs({"devices/...": "text"})`."""

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return tmp_path

    return write


def node(number, cpus, kibibytes=1024):
    folder = f"devices/system/node/node{number}"
    return {f"{folder}/cpulist": cpus, f"{folder}/meminfo": f"Node {number} MemTotal:  {kibibytes} kB"}


def sockets(**numbers):
    return {f"devices/system/cpu/{cpu}/topology/physical_package_id": to for cpu, to in numbers.items()}


MIB = 2**20


class TestHost:
    @pytest.mark.parametrize(("files", "cores", "quota", "nodes"), [
        ({**node(0, "0-3"), **node(1, "4-7"), **node(2, "8-11"), **node(3, "12-15", 2048),
          **sockets(cpu0=0, cpu4=0, cpu8=1, cpu12=1)}, range(16), 16,
         [(0, 0, 4, MIB), (1, 0, 4, MIB), (2, 1, 4, MIB), (3, 1, 4, 2 * MIB)]),
        ({**node(0, "0-7"), **node(1, "8-15")}, (0, 1, 2, 3, 8, 9, 10, 11), 4,  # a quota reduces all alike
         [(0, 0, 2, MIB), (1, 0, 2, MIB)]),
        ({**node(0, "0-3"), **node(1, "")}, (0, 1), 2, [(0, 0, 2, MIB)]),  # memory without cores
        ({**node(0, "0-3"), **sockets(cpu0=-1)}, (0,), 1, [(0, 0, 1, MIB)]),  # a socket that is not told
        ({}, (0, 1), 2, [(0, 0, 2, 2**30)]),  # a kernel without nodes
    ])  # fmt: skip
    def test_nodes_have_their_sockets_usable_cores_and_memory(self, sysfs, files, cores, quota, nodes):
        host = detect_host.read_host("A CPU", set(cores), quota, 2**30, sysfs(files))
        assert host.nodes == tuple(NumaNode(*one) for one in nodes)

    @pytest.mark.parametrize(
        ("numbers", "text"),
        [({0, 1, 2, 5, 8, 9}, "0-2,5,8-9"), ({3}, "3"), (set(), ""), (range(300), "0-299"), ([4, 2], "2,4")],
        ids=str,
    )
    def test_lists_of_cores_are_written_and_read_as_the_kernel_does(self, numbers, text):
        assert (detect_host.cpu_list(numbers), detect_host.parse_cpu_list(text)) == (text, set(numbers))
        assert detect_host.parse_cpu_list(f"{text}\n") == set(numbers)

    def test_cores_of_the_nodes_are_in_order_of_the_nodes(self, sysfs):
        sys = sysfs({**node(10, "5"), **node(2, "0-2,4"), **node(3, "")})
        assert list(detect_host.node_cpus(sys).items()) == [(2, {0, 1, 2, 4}), (10, {5})]

    def test_each_governor_is_named_once(self, sysfs, tmp_path):
        assert detect_host.cpu_governors(tmp_path) is None
        governors = {"cpu0": "schedutil", "cpu1": "performance", "cpu12": "schedutil"}
        files = {f"devices/system/cpu/{cpu}/cpufreq/scaling_governor": to for cpu, to in governors.items()}
        assert detect_host.cpu_governors(sysfs(files)) == ["performance", "schedutil"]

    def test_boot_is_told_by_eight_digits_where_the_kernel_tells(self, tmp_path):
        assert detect_host.boot_id(tmp_path / "boot_id") is None
        (tmp_path / "boot_id").write_text("3fa2c1b0-9c1e-4b7a-8f3e-1d2c3b4a5968\n")
        assert detect_host.boot_id(tmp_path / "boot_id") == "3fa2c1b0"


class TestBus:
    def test_bridges_above_a_device_are_found_root_first(self, sysfs):
        way = "devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0"
        sys = sysfs({f"{way}/numa_node": 1})
        (sys / "bus/pci/devices").mkdir(parents=True)
        (sys / "bus/pci/devices/0000:18:00.0").symlink_to(sys / way)
        assert detect_host.pci_place("0000:18:00.0", sys) == PciePlace(1, ("0000:15:01.0", "0000:16:00.0"))

    def test_node_that_is_not_told_and_device_that_is_not_shown(self, sysfs):
        sys = sysfs({"bus/pci/devices/0000:18:00.0/numa_node": -1})
        assert detect_host.pci_place("0000:18:00.0", sys).numa_node is None
        assert detect_host.pci_place("0000:19:00.0", sys) == PciePlace()

    def test_link_of_a_bridge(self, sysfs):
        folder = "bus/pci/devices/0000:15:01.0"
        sys = sysfs({f"{folder}/max_link_speed": "32.0 GT/s PCIe", f"{folder}/current_link_width": 16})
        assert detect_host.bridge_link("0000:15:01.0", sys) == PcieLink(5, 16)
        sysfs({f"{folder}/current_link_width": 0})
        assert detect_host.bridge_link("0000:15:01.0", sys) is None
        assert detect_host.bridge_link("0000:15:02.0", sys) is None


def test_hyperthreads_of_one_core_are_one_physical_core(tmp_path):
    for cpu, (socket, core) in enumerate([(0, 0), (0, 1), (0, 0), (0, 1), (1, 0)]):
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n")
        (folder / "physical_package_id").write_text(f"{socket}\n")
    assert (detect_host.num_physical(range(5), tmp_path), detect_host.num_physical([0, 2], tmp_path)) == (
        3,
        1,
    )
    assert detect_host.num_physical(range(4), tmp_path / "nothing") == 4


BEFORE = "cpu  1\ncpu0 100 0 50 800 50 0 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\n"
AFTER = "cpu  1\ncpu0 180 0 50 810 60 0 0 0 80 0\ncpu1 10 0 0 1090 0 0 0 0 0 0\ncpu2 900 0 0 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(("cores", "ratio"), [((0,), 0.8), ((1,), 0.1), ((0, 1), 0.45)])
def test_busy_part_of_the_cores_that_may_be_used(tmp_path, cores, ratio):
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    assert detect_host.busy_ratio(cores, stat, lambda: stat.write_text(AFTER) and None) == pytest.approx(
        ratio
    )


def test_system_without_counters_tells_nothing(tmp_path):
    assert detect_host.busy_ratio((0,), tmp_path / "stat", lambda: None) is None
    assert load_text(lambda _: None) == ""


def test_doctor_warns_of_other_programs():
    assert load_text(lambda _: 0.1) == ""
    line = doctor.load(load_text(lambda _: 0.85))
    said = "other programs take 85% of the cores: times will be too long and scatter"
    assert ((line.state, line.text), doctor.load("").state) == (("warning", said), "ok")
