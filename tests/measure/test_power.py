"""What is read of a rank's GPU, and what two readings say together; NVML's module is a made-up one."""

import json
import os
import sys
from types import SimpleNamespace

import pytest
import torch

from scaling.measure.power import GpuReader, Reading, open_device, summary

QUERIES = {
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
    "nvmlDeviceGetPowerUsage": lambda gpu: 350_500,
    "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
    "nvmlDeviceGetClockInfo": lambda gpu, clock: {1: 1800, 2: 3201}[clock],
    "nvmlDeviceGetMaxClockInfo": lambda gpu, clock: {1: 1980}[clock],
    "nvmlDeviceGetTemperature": lambda gpu, sensor: {0: 41}[sensor],
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.reasons,
    "nvmlDeviceGetViolationStatus": lambda gpu, policy: SimpleNamespace(violationTime=gpu.violations[policy]),
    "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(total=2**37, used=2**30),
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [
        SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes.items()
    ],
}
FIELD_OF = {
    "nvmlDeviceGetTotalEnergyConsumption": "energy_j",
    "nvmlDeviceGetPowerUsage": "power_w",
    "nvmlDeviceGetEnforcedPowerLimit": "power_limit_w",
    "nvmlDeviceGetMaxClockInfo": "sm_clock_max_hz",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetCurrentClocksEventReasons": "throttle_reasons",
    "nvmlDeviceGetViolationStatus": "throttled_s",
    "nvmlDeviceGetMemoryInfo": "memory_used_bytes",
    "nvmlDeviceGetComputeRunningProcesses": "other_processes",
}


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
        **QUERIES,
        **queries,
    }
    known = {name: function for name, function in functions.items() if function is not None}
    return SimpleNamespace(NVMLError=NvmlError, **known)


def read(gpu=None, own_pids=(), **queries):
    gpu = gpu or fake_gpu()
    return GpuReader(fake_nvml(gpu, **queries), gpu, own_pids or {os.getpid()}).reading()


class TestReading:
    def test_everything_is_in_si_units(self):
        reading = read()
        assert (reading.energy_j, reading.power_w) == pytest.approx((5000, 350.5))
        assert (reading.sm_clock_hz, reading.sm_clock_max_hz) == (1800e6, 1980e6)
        assert (reading.memory_clock_hz, reading.temperature_c) == (3201e6, 41)
        assert reading.memory_used_bytes == 2**30

    def test_times_of_two_readings_are_in_order(self):
        assert read().at_s < read().at_s

    @pytest.mark.parametrize("query", FIELD_OF)
    @pytest.mark.parametrize("answer", [refuse, None], ids=["refused", "not in this version"])
    def test_query_that_fails_leaves_only_its_own_field_unknown(self, query, answer):
        reading = read(**{query: answer})
        unknown = {name for name, value in vars(reading).items() if value is None}
        processes = {"other_processes", "other_processes_memory_bytes"}
        assert unknown == (processes if FIELD_OF[query] in processes else {FIELD_OF[query]})

    def test_gpu_that_answers_nothing_has_a_reading_all_the_same(self):
        reading = read(**dict.fromkeys(QUERIES, refuse))
        assert reading == Reading(at_s=reading.at_s)


THERMAL = ("thermal, by the driver", "thermal, by the hardware")
SLOW_DOWN = ("hardware slowdown", "sync boost", *THERMAL, "power brake")


class TestThrottling:
    @pytest.mark.parametrize(
        ("bits", "names"),
        [
            (0, ()),
            (0x01, ()),  # idle
            (0x02 | 0x100, ()),  # clocks that somebody set
            (0x04, ("power cap",)),
            (0xF8, SLOW_DOWN),
            (0x05, ("power cap",)),
        ],
    )
    def test_only_reasons_that_slow_down_are_named(self, bits, names):
        assert read(fake_gpu(reasons=bits)).throttle_reasons == names

    def test_older_drivers_name_the_query_otherwise(self):
        query = "nvmlDeviceGetCurrentClocks{}Reasons"
        older = {query.format("Event"): None, query.format("Throttle"): lambda gpu: 0x40}
        assert read(**older).throttle_reasons == ("thermal, by the hardware",)

    def test_times_are_in_seconds_and_only_of_what_is_counted(self):
        def status(_, policy):
            return SimpleNamespace(violationTime=2_500_000_000) if policy == 1 else refuse()

        assert read(nvmlDeviceGetViolationStatus=status).throttled_s == {"thermal": 2.5}


class TestOtherProcesses:
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
    def test_only_what_cannot_be_ours_is_counted(self, processes, own_pids, count, memory):
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

    def test_renumbered_gpu_is_found_by_its_uuid(self, start):
        nvml = fake_nvml(fake_gpu("GPU-aa", energy_mj=1000), fake_gpu("GPU-bb", energy_mj=2000))
        assert start(nvml, uuid="bb").reading().energy_j == 2

    def test_without_uuid_it_is_found_by_its_place_on_the_bus(self, start):
        nvml = fake_nvml(fake_gpu(), fake_gpu(bus_id="00000001:AF:00.0", energy_mj=2000))
        assert start(nvml, pci_domain_id=1, pci_bus_id=0xAF, pci_device_id=0).reading().energy_j == 2

    @pytest.mark.parametrize("properties", [{"uuid": "cc"}, {}, {"pci_bus_id": 0x18}], ids=str)
    def test_gpu_that_nvml_does_not_know_is_not_read(self, start, properties):
        assert start(fake_nvml(fake_gpu()), **properties) is None

    def test_own_process_is_known_without_being_told(self, start):
        gpu = fake_gpu(processes={os.getpid(): 1, os.getpid() + 1: 2})
        assert start(fake_nvml(gpu), uuid="aa").reading().other_processes == 1

    def test_processor_has_none(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(fake_gpu()))
        assert open_device(torch.device("cpu")) is None

    def test_without_the_package_or_a_driver_there_is_none(self, start):
        assert start(None, uuid="aa") is None
        assert start(fake_nvml(fake_gpu(), nvmlInit=refuse), uuid="aa") is None


class TestSummary:
    def test_energy_is_the_difference_a_window_a_sample_and_a_second(self):
        told = summary(Reading(10.0, energy_j=100.0), Reading(14.0, energy_j=900.0), 1600)
        assert (told["window_s"], told["energy_j"]) == (4, 800)
        assert (told["energy_per_sample_j"], told["mean_power_w"]) == (0.5, 200)

    @pytest.mark.parametrize(
        ("stop_s", "energy_j"),
        [(0.49, 900.0), (4.0, None), (4.0, 50.0)],
        ids=["window of a few steps of the counter", "refused", "counter began anew"],
    )
    def test_energy_that_is_not_known_is_none(self, stop_s, energy_j):
        told = summary(Reading(0.0, energy_j=100.0), Reading(stop_s, energy_j=energy_j), 10)
        assert (told["energy_j"], told["energy_per_sample_j"], told["mean_power_w"]) == (None, None, None)

    def test_no_samples_give_no_energy_a_sample(self):
        told = summary(Reading(0.0, energy_j=1.0), Reading(1.0, energy_j=3.0), 0)
        assert (told["energy_j"], told["energy_per_sample_j"]) == (2, None)

    def test_state_is_given_before_and_after(self):
        before, after = Reading(0, temperature_c=30, sm_clock_hz=345e6), Reading(1, temperature_c=60)
        told = summary(before, after, 1)
        assert (told["temperature_before_c"], told["temperature_after_c"]) == (30, 60)
        assert (told["sm_clock_before_hz"], told["sm_clock_after_hz"]) == (345e6, None)

    @pytest.mark.parametrize(
        ("before", "after", "expected"),
        [
            (None, None, None),
            ((), (), []),
            (("power cap",), None, ["power cap"]),
            (("power cap",), ("sync boost", "power cap"), ["power cap", "sync boost"]),
        ],
    )
    def test_throttle_reasons_are_those_of_both(self, before, after, expected):
        told = summary(Reading(0, throttle_reasons=before), Reading(1, throttle_reasons=after), 1)
        assert told["throttle_reasons"] == expected

    def test_throttled_time_is_that_of_the_window(self):
        before = Reading(0, throttled_s={"power cap": 8.0, "thermal": 1.0})
        told = summary(before, Reading(1, throttled_s={"power cap": 8.25, "thermal": 1.0}), 1)
        assert told["throttled_s"] == {"power cap": 0.25, "thermal": 0.0}
        assert summary(before, Reading(1), 1)["throttled_s"] is None

    def test_others_are_the_most_that_were_seen(self):
        before = Reading(0, other_processes=2, other_processes_memory_bytes=100)
        told = summary(before, Reading(1, other_processes=0, other_processes_memory_bytes=0), 1)
        assert (told["other_processes"], told["other_processes_memory_bytes"]) == (2, 100)
        assert summary(before, Reading(1), 1)["other_processes"] == 2

    def test_keys_are_always_there_and_it_goes_through_json(self):
        empty, full = summary(Reading(0), Reading(1), 1), summary(read(), read(), 1)
        assert set(empty) == set(full)
        assert {key for key, value in empty.items() if value is not None} == {"window_s"}
        assert json.loads(json.dumps(full)) == full
