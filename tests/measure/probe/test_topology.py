"""Samples made of known figures give a machine file with these figures; the others stay nominal."""

from dataclasses import replace
from datetime import date

import pytest

from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.measure.probe.cases import ProbeSample, cases, product_size
from scaling.measure.probe.machine_file import gpu_ids
from scaling.measure.probe.run import ProbeMeasurement, machine_of
from topologies.describe import describe
from topologies.facts import Facts, Gpu, Host, NumaNode, PcieLink, PciePlace
from topologies.file_text import validated

STAMP = "measured by scaling topology probe on 2025-03-01, 4 GPUs, torch 2.11.0, NCCL 2.28.9"
ALONE = {"h2d": 55e9, "d2h": 50e9, "h2d_d2h": 45e9}
RATES = {"float32": 50e12, "tf32": 400e12, "bf16": 700e12, "fp16": 650e12}
AT_ONCE = {"h2d": 41e9, "d2h": 34e9, "h2d_d2h": 24e9}


def seconds_of(case, num_bytes, launch):
    """The machine that the samples are made of: four GPUs, NVLink, one socket."""
    many = len(case.ranks) > 2
    if case.operation in ALONE:
        pageable = case.memory == "pageable"
        return 6e-6 + num_bytes / (20e9 if pageable else (AT_ONCE if many else ALONE)[case.operation])
    rates = {
        **{"peer_copy": (3e-6, 370e9), "peer_shift": (3e-6, 360e9), "host_copy": (0.0, 25e9)},
        **{"host_sum": (0.0, 7e9 if case.num_threads else 18e9)},
        **{"device_copy": (0.0, 2e12), "device_sum": (0.0, 1.3e12)},
    }
    through_host = launch == "host_only"
    if (size := product_size(case.operation, num_bytes)) is not None:
        flops = RATES[case.operation.removeprefix("product_")]
        return 2 * size**3 / (flops if size == 4096 else 0.9 * flops)
    latency_s, rate = rates.get(case.operation, (12e-6, 22e9) if through_host else (8e-6, 350e9))
    return latency_s + num_bytes / rate


def samples_of(change=lambda case, seconds: seconds, world_size=4):
    found = []
    todo = [("default", one) for one in cases(world_size, on_gpus=True, peer_copies=True, with_products=True)]
    todo += [("host_only", case) for case in cases(world_size, on_gpus=True, only_messages=True)]
    for launch, case in todo:
        for size in case.sizes_bytes:
            seconds = change(case, seconds_of(case, size, launch))
            way = (case.operation, case.ranks, case.memory, case.captured, case.num_threads)
            found += [ProbeSample(launch, *way, size, 1, seconds)] * 5
    return found


def facts_of_workers(uuids=("a0", "a1", "a2", "a3")):
    everyone = range(len(uuids))
    ranks = [
        {"name": "NVIDIA H200", "uuid": uuid, "peers": [peer for peer in everyone if peer != rank]}
        for rank, uuid in enumerate(uuids)
    ]
    return {"torch": "2.11.0", "nccl": "2.28.9", "device": "cuda", "ranks": ranks}


def found_machine(number=4):
    places = [(i, "NVIDIA H200", f"GPU-a{i}", f"0000:{i}8:00.0", PcieLink(5, 16)) for i in range(number)]
    gpus = tuple(Gpu(*place, switch_links=18) for place in places)
    return Facts("box", Host("A CPU", (NumaNode(0, 0, 64, 2**40),)), gpus)


def probed(samples=None, found=None, workers=None):
    measured = ProbeMeasurement(facts=workers or facts_of_workers(), samples=samples or samples_of())
    result = machine_of(measured, found or found_machine(), date(2025, 3, 1))
    return validated(result.machine, "box.yaml"), result


def link(topology, id_):
    return next(one for one in topology.machine.links if one.id == id_)


def bandwidths(topology, id_):
    one = link(topology, id_)
    return one.bandwidth_bytes_per_s, one.back_bytes_per_s


def close(wanted, rel=0.01):
    return pytest.approx(wanted, rel=rel)


@pytest.fixture(scope="module")
def box():
    return probed()


class TestFourGpus:
    @pytest.mark.parametrize(("id_", "there", "back"), [
        ("cpu0-gpu2", 55e9, 50e9),  # PCIe: the copies of one GPU
        ("cpu0-host0", 4 * 34e9, 4 * 41e9),  # the bus of memory: copies that hold one another up
        ("gpu1-nvswitch0", 370e9, 370e9),  # over the 18 links of a GPU
    ])  # fmt: skip
    def test_links_are_as_fast_as_copies_over_them(self, box, id_, there, back):
        assert (bandwidths(box[0], id_), link(box[0], "gpu1-nvswitch0").count) == (close((there, back)), 18)

    def test_memory_sums_latencies_and_products_are_those_of_gpus_host_and_software(self, box):
        found = box[0].machine.by_id
        gpu, host = found["gpu3"], found["host0"].bandwidth_bytes_per_s
        assert (gpu.bandwidth_bytes_per_s, gpu.reduce_bytes_per_s) == close((2 * 2e12, 1.3e12))
        assert (host, found["cpu0"].reduce_bytes_per_s) == close((2 * 4 * 24e9, 7e9))
        latency, expected = box[0].machine.message_latency_s, (8e-6 - 0.6e-6, 12e-6 - 0.7e-6, 6e-6 - 0.35e-6)
        assert (latency["peer"], latency["staged"], latency["host"]) == close(expected)
        gpu = box[0].machine.by_id["gpu3"]
        assert {name: getattr(gpu, f"{name}_flops_per_s") for name in RATES} == RATES
        source = box[0].sources[f"{gpu.type}.bf16_flops_per_s"]
        said = "products of 4096 x 4096 matrices of random numbers, the best size, 700 TFLOP/s to 700 TFLOP/s"
        assert source == f"{STAMP}, median of 5: {said}"
        (line,) = [line for line in box[1].table if line.startswith("product_bf16 ranks 2 ")]
        assert line.split()[3:] == ["4096", "x", "4096", "0.1963", "ms", "700", "TFLOP/s"]
        assert "bf16 700 TFLOP/s" in describe(box[0]).replace("\n", " ")

    @pytest.mark.parametrize(("figure", "said"), [
        ("pcie5-x16.bandwidth_bytes_per_s",
         f"{STAMP}, 256 MiB, median of 5: pinned memory to one GPU at a time, 55.0 GB/s to"),
        ("memory.bandwidth_bytes_per_s",
         f"{STAMP}, 256 MiB, median of 5: copies of all GPUs at once, where they"),
        ("message_latency_s.peer", f"{STAMP}, median of 5: messages between"),
        ("pcie5-x16.latency_s", "assumption"),
    ])  # fmt: skip
    def test_sources_say_when_where_and_how_often(self, box, figure, said):
        assert box[0].sources[figure].startswith(said)
        assert "captured in a CUDA graph" in box[0].sources["message_latency_s.peer"]

    def test_misfits_of_the_model_are_told_the_simulator_accepts_it_and_the_table_has_a_line_each(self, box):
        (note,) = box[1].notes
        begin = "not in the model: messages, host-only: ranks 0 and 1 reach 22.0 GB/s at 128 MiB"
        assert note.startswith(begin)
        assert "0.44 of the 50.0 GB/s that the model gives them (6 of 6 pairs" in note
        assert f"# {note[:60]}" in box[1].machine
        for peer_access in (True, False):
            assert 0 < simulate(ring(4), box[0], 64 << 20, peer_access=peer_access).seconds < 1
        assert len(box[1].table) == 1 + len({sample.series for sample in samples_of()})
        assert any("all_reduce captured ranks 0,1,2,3 host-only" in line for line in box[1].table)


def test_slow_gpu_gets_a_type_of_its_own_and_two_sockets_what_their_own_gpus_reach():
    def slow(case, seconds):
        return seconds * 2 if case.operation in ("h2d", "d2h") and case.ranks == (2,) else seconds

    topology, _ = probed(samples_of(slow))
    assert link(topology, "cpu0-gpu2").bandwidth_bytes_per_s == close(55e9 / 2)
    assert link(topology, "cpu0-gpu1").bandwidth_bytes_per_s == close(55e9)
    places = {f"0000:{i}8:00.0": PciePlace(i // 2) for i in range(4)}
    host = Host("A CPU", (NumaNode(0, 0, 32, 2**39), NumaNode(1, 1, 32, 2**39)))
    topology, _ = probed(found=replace(found_machine(), host=host, places=places))
    for number in (0, 1):
        assert link(topology, f"cpu{number}-host{number}").back_bytes_per_s == close(2 * 41e9)


def test_small_copies_and_those_that_broke_off_tell_neither_bandwidths_nor_limits():
    def unhindered(case, seconds):
        many = case.operation in ALONE and len(case.ranks) > 2 and case.memory == "pinned"
        return seconds * AT_ONCE[case.operation] / ALONE[case.operation] if many else seconds

    topology, _ = probed(samples_of(unhindered))
    memory = topology.machine.by_id["host0"].bandwidth_bytes_per_s
    assert memory == close(max(2 * 4 * 45e9, 3 * 4 * 18e9), rel=0.05)
    assert link(topology, "cpu0-host0").bandwidth_bytes_per_s >= memory
    several = {s for s in samples_of() if s.operation in ALONE and len(s.ranks) > 1 and s.num_bytes > 1 << 20}
    topology, _ = probed([s for s in samples_of() if s not in several])
    assert topology.machine.by_id["host0"].bandwidth_bytes_per_s == close(3 * 4 * 18e9)  # of the cores
    pair = ("peer_copy", (0, 1))
    samples = [s for s in samples_of() if (s.operation, s.ranks) != pair or s.num_bytes <= 1 << 20]
    topology, _ = probed(samples)
    assert link(topology, "gpu0-nvswitch0").bandwidth_bytes_per_s == close(370e9)
    assert "of one link, 20.6 GB/s to 20.6 GB/s" in topology.sources["nvlink-to-switch.bandwidth_bytes_per_s"]

    def slow_start(case, seconds):
        return seconds + 1e-3 if case.operation == "peer_copy" else seconds

    samples = [s for s in samples_of(slow_start) if s.operation != "peer_copy" or s.num_bytes <= 1 << 20]
    reached = (1 << 20) / (1e-3 + 3e-6 + (1 << 20) / 370e9)
    assert link(probed(samples)[0], "gpu0-nvswitch0").bandwidth_bytes_per_s == close(reached)


def test_gpus_are_found_by_uuid_or_by_cuda_alone_also_those_that_did_not_take_part():
    topology, _ = probed(workers=facts_of_workers(("a3", "a2", "a1", "a0")))
    assert link(topology, "cpu0-gpu0").bandwidth_bytes_per_s == close(55e9)
    assert gpu_ids(found_machine().gpus, ["A3", "GPU-a1"]) == ["gpu3", "gpu1"]
    assert gpu_ids(found_machine().gpus, ["", ""]) == ["gpu0", "gpu1"]
    workers = facts_of_workers()
    workers["ranks"][3]["peers"] = []
    topology, _ = probed(workers=workers)
    assert topology.machine.peer_access("gpu0", "gpu2")
    assert not topology.machine.peer_access("gpu0", "gpu3")
    topology, _ = probed(samples_of(world_size=2), workers=facts_of_workers(("a0", "a1")))
    assert len(topology.machine.of_kind("gpu")) == 4
    assert topology.machine.by_id["host0"].bandwidth_bytes_per_s == close(3 * 2 * 18e9)
    assert link(topology, "cpu0-gpu3").bandwidth_bytes_per_s == close(55e9)  # as others of its type
    topology, result = probed(found=replace(found_machine(), gpus=()))
    assert [gpu.name for gpu in topology.machine.of_kind("gpu")] == ["NVIDIA H200"] * 4
    assert link(topology, "cpu0-gpu0").bandwidth_bytes_per_s == close(55e9)
    assert any("neither NVML nor nvidia-smi" in note for note in result.notes)


def test_a_launch_that_was_cut_off_or_has_one_gpu_still_gives_a_file():
    samples = [sample for sample in samples_of(world_size=1) if sample.launch == "default"]
    topology, _ = probed(samples, found_machine(1), facts_of_workers(("a0",)))
    assert link(topology, "cpu0-gpu0").back_bytes_per_s == close(50e9)
    assert topology.sources["message_latency_s.peer"].startswith("NCCL")
    samples = samples_of()
    for end in range(0, len(samples), 211):
        validated(probed(samples[: end + 1])[1].machine, "box.yaml")


def test_processes_on_a_cpu_have_memory_sums_and_latency():
    samples = [
        ProbeSample("default", case.operation, case.ranks, "", False, case.num_threads, size, 1,
               (100e-6 if case.operation == "send" else 0) + size / 5e9)
        for case in cases(2, on_gpus=False) for size in case.sizes_bytes for _ in range(5)
    ]  # fmt: skip
    workers = {"torch": "2.11.0", "nccl": None, "device": "cpu", "ranks": [{}, {}]}
    topology, result = probed(samples, found_machine(0), workers)
    assert topology.machine.by_id["host0"].bandwidth_bytes_per_s == close(2 * 3 * 5e9)
    assert topology.machine.message_latency_s["host"] == close(100e-6)
    source = topology.sources["memory.bandwidth_bytes_per_s"]
    assert "2 CPU processes, torch 2.11.0, 64 MiB, median of 5" in source
    assert simulate(ring(2), topology, 1 << 20).seconds > 0
    assert result.table
