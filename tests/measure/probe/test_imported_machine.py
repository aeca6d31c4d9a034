"""Machine files with nvbandwidth's figures: a file as its json_output.cpp (v0.8) writes it."""

import json

import pytest

from scaling.measure.probe.machine_file import with_measured
from scaling.measure.probe.other_tools import nvbandwidth_version, samples_of
from topologies.errors import TopologyError
from topologies.file_text import validated
from topologies.schema import shipped, text_of

DOWN, UP, WRITE = "host_to_device_memcpy_ce", "device_to_host_memcpy_ce", "device_to_device_memcpy_write_ce"
BOTH = ("host_to_device_bidirectional_memcpy_ce", "device_to_host_bidirectional_memcpy_ce")
AT_ONCE = ("host_to_all_memcpy_ce", "all_to_host_memcpy_ce")
BOTH_AT_ONCE = ("host_to_all_bidirectional_memcpy_ce", "all_to_host_bidirectional_memcpy_ce")


def case(name, *rows):
    """A test case; None was not measured."""
    matrix = [["N/A" if value is None else f"{value:g}" for value in row] for row in rows]
    total = sum(value or 0.0 for row in rows for value in row)
    said = {"bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", "status": "Passed"}
    return {**said, "bandwidth_matrix": matrix, "name": name, "sum": total}


def nvbandwidth(*cases):
    waived = {"name": "device_local_copy", "status": "Waived"}
    head = {"CUDA Runtime Version": 12080, "Driver Version": "570.124.06", "git_version": "v0.8"}
    return json.dumps({"nvbandwidth": {**head, "testcases": [*cases, waived], "version": "v0.8"}}, indent=3)


def between(gbps, num_gpus=4):
    return [[None if a == b else gbps for b in range(num_gpus)] for a in range(num_gpus)]


def imported(text, machine="hgx-h200-4"):
    figures = samples_of(text, "a file")[0]
    found, file = with_measured(text_of(machine), machine, figures, "nvbandwidth v0.8 (x)")
    return validated(found, "the result"), file


def bandwidths(topology, kind):
    return {
        link.id: (round(link.bandwidth_bytes_per_s / 1e9, 1), round((link.back_bytes_per_s or 0) / 1e9, 1))
        for link in topology.machine.links
        if link.kind == kind
    }


PCIE = (case(DOWN, [50.0] * 4), case(UP, [52.0] * 4))


def test_links_have_the_measured_bandwidths_and_say_so():
    topology, file = imported(nvbandwidth(*PCIE, case(WRITE, *between(270.0))))
    assert set(bandwidths(topology, "pcie").values()) == {(50.0, 52.0)}
    for a, b in ((0, 1), (3, 2)):
        path = topology.path((0, f"gpu{a}"), (0, f"gpu{b}"))
        assert topology.bandwidth_bytes_per_s(path) == pytest.approx(270e9, rel=1e-3)
    assert "nvbandwidth v0.8 (x)" in topology.sources["pcie5-x16.bandwidth_bytes_per_s"]
    assert "nvbandwidth" in topology.description
    assert "measured on 4 x H200" in topology.sources["h200.bandwidth_bytes_per_s"]  # as it was
    assert file["name"] == "hgx-h200-4"


def test_what_was_not_measured_stays():
    before = validated(text_of("hgx-h200-4"), "before")
    topology, _ = imported(nvbandwidth(*PCIE))
    assert bandwidths(topology, "nvlink") == bandwidths(before, "nvlink")
    assert topology.machine.message_latency_s == before.machine.message_latency_s
    latencies = [[link.latency_s for link in each.machine.links] for each in (topology, before)]
    assert latencies[0] == latencies[1]


def test_a_link_that_is_off_gets_a_type_of_its_own_and_a_shared_one_what_the_faster_gets():
    topology, _ = imported(nvbandwidth(case(DOWN, [50.0, 50.0, 50.0, 20.0]), case(UP, [52.0] * 4)))
    found = bandwidths(topology, "pcie")
    assert (found["cpu0-gpu3"], found["cpu0-gpu0"]) == ((20.0, 52.0), (50.0, 52.0))
    text = nvbandwidth(case(DOWN, [20.0, 10.0, 20.0, 20.0]), case(UP, [20.0] * 4))
    topology, _ = imported(text, "dual-k80")
    assert bandwidths(topology, "pcie")["cpu0-switch0"][0] == 20.0


def test_copies_of_all_gpus_at_once_bound_the_host_memory():
    alone = [case(name, [40.0] * 4) for name in BOTH]
    at_once = [case(name, [20.0] * 4) for name in BOTH_AT_ONCE]
    busy = (case(AT_ONCE[0], [41.0] * 4), case(AT_ONCE[1], [34.0] * 4))
    topology, _ = imported(nvbandwidth(*PCIE, *alone, *at_once, *busy))
    assert topology.machine.by_id["host0"].bandwidth_bytes_per_s == pytest.approx(2 * 4 * 20e9)
    assert bandwidths(topology, "memory")["cpu0-host0"] == (136.0, 164.0)


def test_fewer_gpus_than_the_machine_has_tell_of_all_links_of_their_type():
    assert nvbandwidth_version(nvbandwidth()) == "nvbandwidth v0.8"
    assert nvbandwidth_version('{"results": []}') is None
    topology, _ = imported(nvbandwidth(case(DOWN, [50.0] * 2), case(UP, [52.0] * 2)))
    assert set(bandwidths(topology, "pcie").values()) == {(50.0, 52.0)}


@pytest.mark.parametrize(("text", "machine", "message"), [
    (nvbandwidth(case(DOWN, [50.0] * 8), case(UP, [52.0] * 8)), "hgx-h200-4", "8 GPUs, hgx-h200-4 has 4"),
    (nvbandwidth(*PCIE), "cpu-2", "cpu-2 has 0"),
    (nvbandwidth(*PCIE), "hgx-h200-x16-infiniband", "made from 'hgx-h200'"),
    (nvbandwidth(case(DOWN, [50.0] * 4)), "hgx-h200-4", "device_to_host_memcpy_ce"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(text, machine, message):
    with pytest.raises(TopologyError, match=message):
        imported(text, machine)


WHOLE = [name for name, text in shipped().items() if "\nmachine:" not in text and "kind: gpu" in text]


@pytest.mark.parametrize("machine", WHOLE)
def test_every_shipped_machine_takes_the_figures_of_its_gpus(machine):
    num_gpus = len(validated(text_of(machine), machine).machine.of_kind("gpu"))
    topology, _ = imported(nvbandwidth(case(DOWN, [9.0] * num_gpus), case(UP, [8.0] * num_gpus)), machine)
    assert set(bandwidths(topology, "pcie").values()) >= {(9.0, 8.0)}
