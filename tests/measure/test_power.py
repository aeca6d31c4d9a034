"""What is read of a rank's GPU, and what two readings say together; NVML's module is a made-up one."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from scaling.measure.power import GpuReader, Reading, open_device, summary

QUERIES = {
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j", lambda gpu: gpu.energy_mj),
    "nvmlDeviceGetPowerUsage": ("power_w", lambda gpu: 350_500),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w", lambda gpu: 700_000),
    "nvmlDeviceGetClockInfo": ("", lambda gpu, clock: {1: 1800, 2: 3201}[clock]),  # of two fields
    "nvmlDeviceGetMaxClockInfo": ("sm_clock_max_hz", lambda gpu, clock: {1: 1980}[clock]),
    "nvmlDeviceGetTemperature": ("temperature_c", lambda gpu, sensor: {0: 41}[sensor]),
    "nvmlDeviceGetCurrentClocksEventReasons": ("throttle_reasons", lambda gpu: gpu.reasons),
    "nvmlDeviceGetViolationStatus": (
        "throttled_s",
        lambda gpu, policy: SimpleNamespace(violationTime=gpu.violations[policy]),
    ),
    "nvmlDeviceGetMemoryInfo": ("memory_used_bytes", lambda gpu: SimpleNamespace(total=2**37, used=2**30)),
    "nvmlDeviceGetComputeRunningProcesses": (
        "other_processes other_processes_memory_bytes",
        lambda gpu: [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()],
    ),
}
"""NVML's function -> the fields of a reading that it is for, and its answer."""


class NvmlError(Exception):
    """As NVML's own."""


def refuse(*_):
    raise NvmlError("Not Supported")


def fake_gpu(uuid="GPU-aa", bus_id="00000000:18:00.0", **changes):
    state = {"energy_mj": 5_000_000, "reasons": 0, "processes": {os.getpid(): 2**29}}
    state["violations"] = dict.fromkeys((0, 1, 2, 3, 5), 0)
    return SimpleNamespace(uuid=uuid, bus_id=bus_id, **{**state, **changes})


def fake_nvml(*gpus, **queries):
    """NVML of these GPUs; a handle is the GPU itself. `queries` replace answers; None: too old to have it."""

    def find(name, wanted):
        return next((gpu for gpu in gpus if getattr(gpu, name) == wanted), None) or refuse()

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: find("uuid", uuid),
        "nvmlDeviceGetHandleByPciBusId": lambda bus_id: find("bus_id", bus_id),
        **{name: answer for name, (_, answer) in QUERIES.items()},
        **queries,
    }
    known = {name: function for name, function in functions.items() if function is not None}
    return SimpleNamespace(NVMLError=NvmlError, **known)


def read(gpu=None, own_pids=(), **queries):
    gpu = gpu or fake_gpu()
    return GpuReader(fake_nvml(gpu, **queries), gpu, own_pids or {os.getpid()}).reading()


class TestReading:
    def test_everything_is_in_si_units_at_times_that_are_in_order_and_unknown_if_nothing_answers(self):
        expected = {"energy_j": 5000, "power_w": 350.5, "power_limit_w": 700, "temperature_c": 41}
        expected |= {"sm_clock_hz": 1800e6, "sm_clock_max_hz": 1980e6, "memory_clock_hz": 3201e6}
        expected |= {"memory_used_bytes": 2**30}
        reading = vars(read())
        assert {name: reading[name] for name in expected} == pytest.approx(expected)
        assert read().at_s < read().at_s
        reading = read(**dict.fromkeys(QUERIES, refuse))
        assert reading == Reading(at_s=reading.at_s)

    @pytest.mark.parametrize("query", [name for name, (fields, _) in QUERIES.items() if fields])
    @pytest.mark.parametrize("answer", [refuse, None], ids=["refused", "not in this version"])
    def test_query_that_fails_leaves_only_its_own_fields_unknown(self, query, answer):
        unknown = {name for name, value in vars(read(**{query: answer})).items() if value is None}
        assert unknown == set(QUERIES[query][0].split())


THERMAL = ("thermal, by the driver", "thermal, by the hardware")


class TestThrottling:
    @pytest.mark.parametrize(
        ("bits", "names"),
        [
            (0, ()),
            (0x01, ()),  # idle
            (0x02 | 0x100, ()),  # clocks that somebody set
            (0x04, ("power cap",)),
            (0xF8, ("hardware slowdown", "sync boost", *THERMAL, "power brake")),
            (0x05, ("power cap",)),
        ],
    )
    def test_only_reasons_that_slow_down_are_named(self, bits, names):
        assert read(fake_gpu(reasons=bits)).throttle_reasons == names

    def test_older_drivers_name_the_query_otherwise_and_times_are_of_what_is_counted(self):
        query = "nvmlDeviceGetCurrentClocks{}Reasons"
        older = {query.format("Event"): None, query.format("Throttle"): lambda gpu: 0x40}
        assert read(**older).throttle_reasons == ("thermal, by the hardware",)

        def status(_, policy):
            return SimpleNamespace(violationTime=2_500_000_000) if policy == 1 else refuse()

        assert read(nvmlDeviceGetViolationStatus=status).throttled_s == {"thermal": 2.5}


@pytest.mark.parametrize(
    ("processes", "own_pids", "count", "memory"),
    [
        ({7: 100}, {7}, 0, 0),
        ({7: 100, 8: 10}, {7, 8, 9}, 0, 0),  # another rank's context on this GPU
        ({7: 100, 8: 10, 9: 1}, {7}, 2, 11),
        ({7: 100, 8: None}, {7}, 1, None),  # no memory told
        ({1007: 100}, {7}, 0, 0),  # our own by a number of the host
        ({1007: 100, 1008: 10}, {7}, 1, None),  # one of both is ours
        ({1007: 100, 1008: 10}, {7, 8, 9}, 0, 0),
        ({}, {7}, None, None),  # hidden: we are on it ourselves
    ],
)
def test_only_what_cannot_be_ours_is_counted(processes, own_pids, count, memory):
    reading = read(fake_gpu(processes=processes), own_pids)
    assert (reading.other_processes, reading.other_processes_memory_bytes) == (count, memory)


class TestOpenDevice:
    @pytest.fixture
    def start(self, monkeypatch):
        """Puts NVML of these GPUs in place, and torch's properties of the one that it calls cuda:0."""

        def put(nvml, **properties):
            monkeypatch.setitem(sys.modules, "pynvml", nvml)
            told = SimpleNamespace(**properties)
            monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: told)
            return open_device(torch.device("cuda", 0))

        return put

    def test_renumbered_gpu_is_found_with_its_own_process_and_where_there_is_none_nothing(self, start):
        second = fake_gpu("GPU-bb", "00000001:AF:00.0", energy_mj=2000)
        for told in ({"uuid": "bb"}, {"pci_domain_id": 1, "pci_bus_id": 0xAF, "pci_device_id": 0}):
            assert start(fake_nvml(fake_gpu(), second), **told).reading().energy_j == 2
        gpu = fake_gpu(processes={os.getpid(): 1, os.getpid() + 1: 2})
        assert start(fake_nvml(gpu), uuid="aa").reading().other_processes == 1
        for properties in ({"uuid": "cc"}, {}, {"pci_bus_id": 0x18}):
            assert start(fake_nvml(fake_gpu()), **properties) is None, properties
        assert start(None, uuid="aa") is None
        assert start(fake_nvml(fake_gpu(), nvmlInit=refuse), uuid="aa") is None
        assert start(fake_nvml(fake_gpu()), uuid="aa") is not None
        assert open_device(torch.device("cpu")) is None


class TestSummary:
    @pytest.mark.parametrize(
        ("start_s", "stop_s", "energy_j", "num_samples", "expected"),
        [
            (10.0, 14.0, 900.0, 1600, (4, 800, 0.5, 200)),  # the difference; a sample, and a second
            (0.0, 1.0, 300.0, 0, (1, 200, None, 200)),
            (0.0, 0.49, 900.0, 10, (0.49, None, None, None)),  # window of a few steps of the counter
            (0.0, 4.0, None, 10, (4, None, None, None)),  # refused
            (0.0, 4.0, 50.0, 10, (4, None, None, None)),  # counter began anew
        ],
    )
    def test_energy_is_that_of_the_window(self, start_s, stop_s, energy_j, num_samples, expected):
        told = summary(Reading(start_s, energy_j=100.0), Reading(stop_s, energy_j=energy_j), num_samples)
        keys = ("window_s", "energy_j", "energy_per_sample_j", "mean_power_w")
        assert tuple(told[key] for key in keys) == expected

    @pytest.mark.parametrize(
        ("name", "before", "after", "expected"),
        [
            *(("throttle_reasons", (), (), []), ("throttle_reasons", ("power cap",), None, ["power cap"])),
            # Reasons are those of both.
            ("throttle_reasons", ("power cap",), ("sync boost", "power cap"), ["power cap", "sync boost"]),
            # Throttled time is that of the window.
            (
                "throttled_s",
                {"cap": 8.0, "heat": 1.0},
                {"cap": 8.25, "heat": 1.0},
                {"cap": 0.25, "heat": 0.0},
            ),
            ("throttled_s", {"power cap": 8.0}, None, None),
            # Others are the most that were seen.
            *(("other_processes", 2, 0, 2), ("other_processes", 2, None, 2)),
            *(("other_processes", None, None, None), ("other_processes_memory_bytes", 100, 0, 100)),
        ],
    )
    def test_of_two_readings(self, name, before, after, expected):
        told = summary(Reading(0, **{name: before}), Reading(1, **{name: after}), 1)
        known = {} if expected is None else {name: expected}
        assert {key: value for key, value in told.items() if value is not None} == {"window_s": 1, **known}

    def test_temperature_and_clock_are_those_before_and_after_and_all_goes_through_json(self):
        told = summary(Reading(0, temperature_c=30, sm_clock_hz=345e6), Reading(1, temperature_c=60), 1)
        expected = {"temperature_before_c": 30, "temperature_after_c": 60, "sm_clock_before_hz": 345e6}
        assert {key: value for key, value in told.items() if value is not None} == {"window_s": 1, **expected}
        empty, full = summary(Reading(0), Reading(1), 1), summary(read(), read(), 1)
        assert set(empty) == set(full)
        assert json.loads(json.dumps(full)) == full
