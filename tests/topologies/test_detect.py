"""The devices of a machine, from texts that its system gives."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest
import yaml

from topologies import detect as module
from topologies.build import build
from topologies.facts import Gpu, PcieLink
from topologies.file_format import MachineFile
from topologies.file_text import as_yaml, validated

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Xeon(R) Platinum 8468: 48 cores
cpu MHz\t\t: 2100.000

processor\t: 1
model name\t: another
"""
MEMINFO = "MemTotal:       32768 kB\nMemFree:        1024 kB\n"
TWO_GPUS = "0, NVIDIA H200, 143771, 580.159.04\n1, NVIDIA H200, 143771, 580.159.04\n"


class TestHost:
    @pytest.mark.parametrize(("text", "name"), [
        (CPUINFO, "Intel(R) Xeon(R) Platinum 8468: 48 cores"),
        *((text, "aarch64") for text in (None, "", "processor\t: 0\nFeatures\t: fp asimd\n")),
    ])  # fmt: skip
    def test_processor_has_the_name_of_its_first_core_or_architecture(
        self, tmp_path, monkeypatch, text, name
    ):
        if text is not None:
            (tmp_path / "cpuinfo").write_text(text)
        monkeypatch.setattr(module.platform, "processor", lambda: "")
        monkeypatch.setattr(module.platform, "machine", lambda: "aarch64")
        assert module.cpu_model(tmp_path / "cpuinfo") == name

    @pytest.mark.parametrize(("text", "size"), [(MEMINFO, 2**25), ("SwapTotal: 0 kB\n", None), (None, None)])
    def test_memory_is_in_bytes_or_none(self, tmp_path, text, size):
        if text is not None:
            (tmp_path / "meminfo").write_text(text)
        assert module.memory_bytes(tmp_path / "meminfo") == size

    def test_cores_are_those_that_this_process_may_use_and_all_where_nobody_says(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
        assert module.num_usable_cores() == 3
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert module.num_usable_cores() == 1


def test_fields_of_a_gpu_are_read_with_their_units_and_memory_that_the_driver_does_not_tell_is_none():
    expected = {"index": 3, "name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "driver": "580.159.04"}
    assert module.parse_gpu_line("3, NVIDIA H200, 143771, 580.159.04") == expected
    for memory in ("[N/A]", "[Not Supported]", "Insufficient Permissions"):
        assert module.parse_gpu_line(f"0, NVIDIA GB10, {memory}, 580.95")["memory_bytes"] is None


class TestGpus:
    @pytest.fixture
    def answer(self, monkeypatch):
        """Puts an nvidia-smi in place that gives this answer; returns the commands it was called with."""
        asked = []

        def install(output):
            def run(command, **_):
                asked.append(command)
                if isinstance(output, Exception):
                    raise output
                return SimpleNamespace(stdout=output)

            monkeypatch.setattr(module.detect_smi.shutil, "which", lambda name: f"/usr/bin/{name}")
            monkeypatch.setattr(module.detect_smi.subprocess, "run", run)
            return asked

        return install

    def test_gpus_are_asked_for_by_an_exact_command(self, answer):
        asked = answer(TWO_GPUS)
        assert [gpu["index"] for gpu in module.nvidia_gpus()] == [0, 1]
        query = "--query-gpu=index,name,memory.total,driver_version"
        assert asked == [["/usr/bin/nvidia-smi", query, "--format=csv,noheader,nounits"]]

    @pytest.mark.parametrize("output", [
        "", "No devices were found\n",
        FileNotFoundError(),
        subprocess.TimeoutExpired("nvidia-smi", 30),
        subprocess.CalledProcessError(9, "nvidia-smi"),
    ], ids=str)  # fmt: skip
    def test_driver_without_gpus_or_that_fails_or_none_at_all_gives_none(self, answer, monkeypatch, output):
        answer(output)
        assert module.nvidia_gpus() == []
        monkeypatch.setattr(module.detect_smi.shutil, "which", lambda name: None)
        assert module.nvidia_gpus() == []


class TestVisibleGpus:
    GPUS = tuple(Gpu(n, "NVIDIA H200", f"GPU-{n}a", f"0000:{n}8:00.0") for n in range(3))
    MIXED = (*GPUS, Gpu(3, "NVIDIA A2", "GPU-0b", "0000:38:00.0"))

    @pytest.mark.parametrize(("wanted", "indices"), [
        (None, [0, 1, 2]), ("", []), ("1", [1]), ("2,0", [2, 0]), (" 2 , GPU-1a ", [2, 1]),
        ("GPU-2", [2]),  # a prefix will do
        ("GPU-", []),  # of more than one
        ("0,-1,1", [0]),  # nothing behind what is no GPU
        ("0,7,1", [0]), ("none", []),
        ("1,1", []),  # one twice
    ])  # fmt: skip
    def test_variable_chooses_and_orders(self, wanted, indices):
        environ = {} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted}
        assert [gpu.index for gpu in module.visible_gpus(self.GPUS, environ)] == indices

    @pytest.mark.parametrize("environ", [{}, {"CUDA_VISIBLE_DEVICES": "0"}], ids=str)
    def test_numbers_of_different_gpus_are_told_only_in_the_order_of_the_bus(self, environ):
        assert module.visible_gpus(self.MIXED, environ) is None
        assert module.visible_gpus(self.MIXED, {**environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})[0].index == 0

    def test_names_of_different_gpus_are_told_and_parts_of_one_are_not(self):
        (gpu,) = module.visible_gpus(self.MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-0b"})
        assert gpu.index == 3
        assert module.visible_gpus(self.GPUS, {"CUDA_VISIBLE_DEVICES": "MIG-1"}) is None
        assert module.visible_gpus((), {"CUDA_VISIBLE_DEVICES": "0"}) == ()


class TestMachine:
    def test_without_nvml_the_program_is_asked_and_what_is_missing_is_told(self, monkeypatch):
        monkeypatch.setattr(module.detect_nvml, "load", lambda: None)
        gpu = Gpu(0, "NVIDIA H200", "GPU-0", "0000:18:00.0", PcieLink(5, 16))
        monkeypatch.setattr(module.detect_smi, "read_gpus", lambda: (gpu,))
        gpus, missing = module.find_gpus()
        assert gpus == (gpu,)
        assert missing == [
            "bandwidth of the GPUs' memories, and where each NVLink ends: needs NVML: "
            "pip install 'scaling-study[gpu]'"
        ]

    def test_nvml_that_fails_is_shut_down_and_the_program_asked(self, monkeypatch, fake_nvml):
        nvml = fake_nvml()
        nvml.nvmlDeviceGetCount = nvml.fail
        monkeypatch.setattr(module.detect_nvml, "load", lambda: nvml)
        monkeypatch.setattr(module.detect_smi, "read_gpus", lambda: ())
        assert (module.find_gpus(), nvml.shut_downs) == (((), []), [1])

    def test_links_that_nvml_does_not_tell_are_asked_of_the_program(self, monkeypatch, fake_nvml):
        nvml = fake_nvml({"bus": 0x18, "peers": None}, {"bus": 0x2A, "peers": None})
        monkeypatch.setattr(module.detect_nvml, "load", lambda: nvml)
        matrix = " \tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"
        monkeypatch.setattr(module.detect_smi.shutil, "which", lambda name: f"/usr/bin/{name}")
        answer = lambda command, **_: SimpleNamespace(stdout=matrix if "-m" in command else "")  # noqa: E731
        monkeypatch.setattr(module.detect_smi.subprocess, "run", answer)
        found, missing = module.find_gpus()
        assert [gpu.nvlinks for gpu in found] == [{1: 4}, {0: 4}]
        assert [gpu.memory_bits for gpu in found] == [6144, 6144]
        assert "peer access: the driver does not say" in missing[0]

    def test_this_machine_gives_a_valid_machine_file_of_plain_data(self):
        file = module.detect()
        assert json.loads(json.dumps(file)) == file
        topology = validated(as_yaml(file), "here")
        assert topology.machine.of_kind("cpu")
        assert topology.machine.of_kind("host_memory")
        # As the store writes it into a results folder.
        again = validated(yaml.safe_dump(file), "topology.yaml")
        assert again == build(MachineFile.model_validate(file), "here")

    def test_gpu_of_no_known_numa_node_is_told_where_there_are_several(self, monkeypatch, tmp_path):
        for number in (0, 1):
            node = tmp_path / f"devices/system/node/node{number}"
            node.mkdir(parents=True)
            (node / "cpulist").write_text(f"{number}\n")
        gpu = Gpu(0, "NVIDIA H200", "GPU-0", "0000:18:00.0")
        monkeypatch.setattr(module, "find_gpus", lambda: ((gpu,), []))
        facts = module.read_facts(tmp_path)
        assert [node.number for node in facts.host.nodes] == [0, 1]
        assert facts.missing == ("which NUMA node gpu0 belong to: they are put on the first",)
