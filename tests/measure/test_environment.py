"""What identifies an environment, what is said when two differ, and what the kernel says of a process."""

import copy
import json
import os
from pathlib import Path

import pytest

from scaling.errors import StoreError
from scaling.measure import environment, host
from scaling.measure.environment import IDENTITY, collect, gpu_subset, require_same, settings
from topologies.facts import Gpu, PcieLink

FOLDER = Path("results/by-hand")

ENVIRONMENT = {
    "hostname": "here",
    "command": "scaling run mnist",
    "cpu": {"model": "A fast one", "usable_cores": 8},
    "cpu_governors": ["performance"],
    "numa_nodes": [{"number": 0, "cpus": "0-7"}],
    "memory_bytes": 2**34,
    "gpus": [{"name": "Big", "memory_bytes": 2**37}] * 2,
    "versions": {"torch": "2.6.0", "driver": "580.1", "cudnn": 90100},
    "settings": {"NCCL_ALGO": "Ring"},
    "git": {"commit": "abc", "dirty": False},
}


SETTINGS = (
    "NCCL_P2P_DISABLE CUDA_LAUNCH_BLOCKING CUBLAS_WORKSPACE_CONFIG NVIDIA_TF32_OVERRIDE OMP_PROC_BIND "
    "MKL_NUM_THREADS KMP_AFFINITY TORCH_ALLOW_TF32_CUBLAS_OVERRIDE HOROVOD_FUSION_THRESHOLD "
    "HOROVOD_CYCLE_TIME SCALING_LINK_RATE"  # the last of launchers.two_hosts
)
NO_SETTINGS = (
    "HOME PATH RANK MASTER_PORT TORCHELASTIC_RUN_ID "  # torchrun's own, new with each launch
    "TORCH_NCCL_ASYNC_ERROR_HANDLING CUDA_VISIBLE_DEVICES "  # dealt out anew to each job
    "OMP_NUM_THREADS "  # part of the cell
    "CUDA_HOME CUDA_PATH CUDA_VERSION MY_NCCL_ALGO HOROVOD_RANK HOROVOD_GLOO_RENDEZVOUS_PORT"
)


class TestSettings:
    @pytest.mark.parametrize("name", [*SETTINGS.split(), *NO_SETTINGS.split()])
    def test_variable_that_changes_speed_or_bits_is_a_setting_and_no_other_one(self, name):
        assert settings({name: "1"}) == ({name: "1"} if name in SETTINGS.split() else {})

    def test_settings_are_in_order_of_their_names_and_other_variables_recorded_for_people(self):
        found = settings({"NCCL_PROTO": "LL", "CUDA_CACHE_DISABLE": "1", "NCCL_ALGO": "Tree"})
        assert list(found) == ["CUDA_CACHE_DISABLE", "NCCL_ALGO", "NCCL_PROTO"]
        environ = {"OMP_NUM_THREADS": "2", "OMP_PROC_BIND": "true", "NCCL_VERSION": "2.27", "HOME": "/"}
        assert environment.variables(environ) == {name: environ[name] for name in environ if name != "HOME"}


class TestRequireSame:
    @pytest.mark.parametrize(
        "changes",
        [
            *({}, {"hostname": "there"}, {"command": "pytest"}, {"memory_bytes": 1}, {"git": None}),
            *({"gpu_subset": [{"uuid": "GPU-2"}]}, {"numa_nodes": []}, {"variables": {"OMP_PLACES": "3"}}),
        ],
        ids=str,
    )
    def test_what_is_recorded_for_people_may_differ(self, changes):
        require_same(ENVIRONMENT, {**copy.deepcopy(ENVIRONMENT), **changes}, FOLDER)

    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("cpu", {"model": "A fast one", "usable_cores": 4}, r"cpu\.usable_cores was 8 and is 4"),
            ("cpu_governors", ["powersave"], r"cpu_governors was \['performance'\] and is \['powersave'\]"),
            ("gpus", [], r"gpus was \[.*\] and is \[\]"),
            ("versions", ENVIRONMENT["versions"] | {"torch": "2"}, r"versions\.torch was '2.6.0' and is '2'"),
            ("settings", {}, r"settings\.NCCL_ALGO was 'Ring' and is None"),
            ("settings", {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}, r"\.NCCL_PROTO was None and is 'LL'"),
        ],
    )
    def test_difference_is_an_error_that_names_field_and_both_values(self, field, value, named):
        said = f"by-hand was measured in another environment: .*{named}; .*another --out"
        with pytest.raises(StoreError, match=said):
            require_same(ENVIRONMENT, {**ENVIRONMENT, field: value}, FOLDER)

    def test_field_that_is_missing_on_one_side_is_a_difference(self):
        old = {key: value for key, value in ENVIRONMENT.items() if key != "versions"}
        with pytest.raises(StoreError, match="versions was None"):
            require_same(old, ENVIRONMENT, FOLDER)

    def test_what_one_side_does_not_know_and_a_folder_of_an_older_version_are_no_difference(self):
        older = {key: value for key, value in ENVIRONMENT.items() if key != "cpu_governors"}
        for without in (older, {**ENVIRONMENT, "cpu_governors": None}):
            require_same(without, ENVIRONMENT, FOLDER)
            require_same(ENVIRONMENT, without, FOLDER)
        new = ("cpu_governors", "numa_nodes", "variables", "gpu_subset")
        collected = collect({})
        require_same({key: value for key, value in collected.items() if key not in new}, collected, FOLDER)


def test_gpus_are_named_by_uuid_and_place_in_the_order_of_cuda_and_what_nobody_tells_is_none():
    gpus = [Gpu(n, "Big", f"GPU-{n}", f"0000:{n}8:00.0", PcieLink(5, 16, 1, 8)) for n in range(3)]
    link = {"pcie_generation": 5, "pcie_width": 16, "pcie_current_width": 8}
    assert gpu_subset(gpus, {"CUDA_VISIBLE_DEVICES": "2,GPU-0"}) == [
        {"name": "Big", "uuid": f"GPU-{n}", "pci_bus_id": f"0000:{n}8:00.0", **link} for n in (2, 0)
    ]
    (one,) = gpu_subset([Gpu(0, "Big", "", "0000:18:00.0")], {})
    assert (one["uuid"], one["pcie_generation"], one["pcie_current_width"]) == (None, None, None)
    both = [Gpu(0, "Big", "GPU-0", "0000:18:00.0"), Gpu(1, "Small", "GPU-1", "0000:28:00.0")]
    assert gpu_subset(both, {}) is None


class TestCollect:
    def test_governors_and_numa_nodes_are_those_of_the_kernel_if_it_tells_them(self, tmp_path):
        nothing = collect({}, tmp_path)
        assert (nothing["cpu_governors"], nothing["numa_nodes"]) == (None, [])
        governors, cpus = ("performance", "powersave", "performance"), ("0-1", "2")
        files = {f"cpu/cpu{at}/cpufreq/scaling_governor": text for at, text in enumerate(governors)}
        files |= {f"node/node{at}/cpulist": text for at, text in enumerate(cpus)}
        for name, text in files.items():
            path = tmp_path / "devices/system" / name
            path.parent.mkdir(parents=True)
            path.write_text(f"{text}\n")
        collected = collect({}, tmp_path)
        assert collected["cpu_governors"] == ["performance", "powersave"]
        assert collected["numa_nodes"] == [{"number": 0, "cpus": "0-1"}, {"number": 1, "cpus": "2"}]

    def test_folder_outside_a_checkout_has_no_commit(self, tmp_path, monkeypatch):
        monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
        assert environment.git_state(tmp_path) is None

    def test_environment_is_equal_to_itself_through_json(self):
        collected = collect({"NCCL_ALGO": "Ring", "HOME": "/"})
        assert set(IDENTITY) <= set(collected)
        assert collected["settings"] == {"NCCL_ALGO": "Ring"}
        require_same(json.loads(json.dumps(collected)), collected, FOLDER)


def written(path, text):
    file = path / "schedstat"
    file.write_text(text)
    return file


def test_waiting_for_a_core_is_in_seconds_of_the_window_where_the_kernel_counts(tmp_path):
    before = host.reading(written(tmp_path, "5000000000 250000000 10\n"))
    after = host.reading(written(tmp_path, "6000000000 750000000 20\n"))
    found = host.summary(before, after)
    assert found["queued_s"] == 0.5
    assert found["window_s"] == after.at_s - before.at_s
    assert found["cores"] == sorted(os.sched_getaffinity(0))
    for file in (tmp_path / "missing", written(tmp_path, "0 0 1\n"), written(tmp_path, "no numbers")):
        reading = host.reading(file)
        assert reading.queued_s is None
        assert host.summary(reading, reading)["queued_s"] is None
