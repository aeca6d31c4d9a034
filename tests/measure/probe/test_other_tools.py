"""Figures of nccl-tests, nvbandwidth and OSU as their sources write them, and machine files with these."""

import json

import pytest

from scaling.measure.probe import other_tools
from scaling.measure.probe.machine_file import with_measured
from topologies.errors import TopologyError
from topologies.file_text import validated
from topologies.schema import shipped, text_of


def samples_of(*arguments):
    return other_tools.samples_of(*arguments)[0]


def notes_of(text):
    return other_tools.samples_of(text, "a file")[1]


def nccl_tests(program="all_reduce_perf", env=(), **config):
    row = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "-1"}
    times = {"time": 21.5, "alg_bw": 48.8, "bus_bw": 73.2, "nwrong": 0.0}
    devices = [{"rank": rank} for rank in range(4)]
    head = {"version": 2, "args": [f"./build/{program}", "-b", "1M"], "env": list(env)}
    head["config"] = {"nthreads": 1, "ngpus": 1, "graph": 0, "devices": devices, **config}
    results = [{**row, "out_of_place": times, "in_place": {**times, "time": 20.0}}]
    return json.dumps({**head, "results": results})


def nvbandwidth(**matrices):
    cases = [{"name": name, "bandwidth_matrix": matrix} for name, matrix in matrices.items()]
    return json.dumps({"nvbandwidth": {"testcases": cases}})


def rates_of(figures, digits=2):
    return {(one.operation, one.ranks): round(one.num_bytes / one.seconds / 1e9, digits) for one in figures}


def told(sample):
    """All of it but the time, which is in microseconds."""
    us = pytest.approx(sample.seconds * 1e6)
    return sample.operation, sample.ranks, sample.num_bytes, us, sample.launch, sample.captured


OLD_TABLE = """
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#   Rank  0 Pid 110419 on test-a device  0 [0x3b] Tesla T4
#   Rank  1 Pid 110419 on test-a device  1 [0x86] Tesla T4
#                                                     out-of-place                       in-place
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
           8             2   float     sum    20.36    0.00    0.00  0e+00    20.07    0.00    0.00  0e+00
   134217728      33554432   float     sum    27000    4.97    4.97  0e+00    27010    4.97    4.97  0e+00
# Out of bounds values : 0 OK
"""
NEW_TABLE = """
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: sendrecv_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 graph: 1
#  Rank  0 Group  0 Pid   6899 on a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6900 on a device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#       size    count   type  redop  root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576   262144  float    sum    -1    20.50   51.15   51.15       0    20.00   52.43   52.43       0
"""


def without_program(*columns, num_ranks=2):
    """A table of a version that does not name its program."""
    ranks = [f"#   Rank {at:2} Pid 1 on a device {at:2} [0x3b] Tesla T4" for at in range(num_ranks)]
    head = "#  size count type redop time algbw busbw error time algbw busbw error"
    return "\n".join([*ranks, head, " ".join(columns)])


def test_json_and_tables_of_old_new_and_unnamed_nccl_tests_give_ranks_size_time_and_way():
    (sample,) = samples_of(nccl_tests(), "a file")
    assert told(sample) == ("all_reduce", (0, 1, 2, 3), 1048576, 20, "default", False)
    text = nccl_tests(env=["NCCL_P2P_DISABLE=1"], ngpus=8, devices=[{"rank": 0}], graph=1)
    (sample,) = samples_of(text, "a file")
    assert told(sample) == ("all_reduce", tuple(range(8)), 1048576, 20, "host_only", True)
    small, large = samples_of(OLD_TABLE, "a file")
    assert told(small) == ("all_reduce", (0, 1), 8, 20.07, "default", False)
    assert told(large) == ("all_reduce", (0, 1), 134217728, 27010, "default", False)
    (one,) = samples_of(NEW_TABLE, "a file")
    assert told(one) == ("shift", (0, 1), 1048576, 20, "default", True)
    (one,) = samples_of(without_program("8 2 float none", *["9 52.43 52.43 0"] * 2), "a file")
    assert one.operation == "shift"


# skypilot's and Kubeflow's logs put labels before each line; newer programs are called all_reduce_perf_mpi.
@pytest.mark.parametrize("label", ["[1,0]<stdout>:", "(head, rank=0, pid=3808) [1,0]<stdout>:", "0: "])
def test_lines_may_have_labels_and_programs_may_be_built_for_mpi(label):
    text = NEW_TABLE.replace("sendrecv_perf", "all_reduce_perf_mpi")
    (one,) = samples_of("\n".join(label + line for line in text.strip().splitlines()), "a file")
    assert told(one) == ("all_reduce", (0, 1), 1048576, 20, "default", True)


def test_nvbandwidth_gives_copies_both_ways_at_once_and_between_gpus():
    text = nvbandwidth(
        host_to_device_memcpy_ce=[["55.1", "54.9"]],
        device_to_device_memcpy_write_ce=[["N/A", "390"], ["391", "N/A"]],
        device_to_device_memcpy_read_ce=[["N/A", "300"], ["301", "N/A"]],
        host_device_latency_sm=[["900"]],
    )
    alone, pairs = [("h2d", (0,)), ("h2d", (1,))], [(0, 1), (1, 0), (1, 0), (0, 1)]
    found = samples_of(text, "a file")
    assert [(one.operation, one.ranks) for one in found] == [*alone, *(("peer_copy", pair) for pair in pairs)]
    assert rates_of(found)[alone[0]] == 55.1
    text = nvbandwidth(
        host_to_all_memcpy_ce=[["41", "43"]], all_to_host_memcpy_ce=[["34", "N/A"]],
        host_to_device_bidirectional_memcpy_ce=[["40", "N/A"]],
        device_to_host_bidirectional_memcpy_ce=[["30", "30"]],
        host_to_all_bidirectional_memcpy_ce=[["20", "22"]],
        all_to_host_bidirectional_memcpy_ce=[["24", "26"]],
    )  # fmt: skip
    found = samples_of(text, "a file")
    assert {one.memory for one in found} == {"pinned"}
    assert rates_of(found, 3) == {("h2d", (0, 1)): 42.0, ("h2d_d2h", (0,)): 35.0, ("h2d_d2h", (0, 1)): 23.0}


def test_ranks_on_several_hosts_and_shared_gpus_are_said():
    hosts = NEW_TABLE.replace("6900 on a device  1 [0000:05:00]", "6900 on b device  0 [0000:04:00]")
    said = "2 ranks on 2 hosts: they calibrate a machine of 2 hosts alone, with 1 GPUs each"
    assert (notes_of(hosts), notes_of(NEW_TABLE)) == ([said], [])
    shared = NEW_TABLE.replace("device  1 [0000:05:00]", "device  0 [0000:04:00]")
    assert "2 ranks on 1 GPUs" in notes_of(shared)[0]
    devices = [{"rank": 8 * at, "hostname": f"n{at}"} for at in range(2)]
    assert "16 ranks on 2 hosts" in notes_of(nccl_tests(ngpus=8, devices=devices))[0]


# NVIDIA/nvbandwidth issues 15 and 34: a log of a run, with a test that fails.
NVBANDWIDTH = """nvbandwidth Version: v0.7
Driver Version: 550.127.08

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     25.50     24.26

SUM host_to_device_memcpy_ce 49.76

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     26.34
 1     21.82       N/A

Running device_to_host_memcpy_ce.
 Invalid value when checking the pattern at 0x70a640000000
Running device_local_copy.
memcpy local GPU(column) bandwidth (GB/s)
           0         1
 0   1100.00   1101.00
"""


def test_text_of_nvbandwidth_is_read_as_its_json_and_what_is_not_used_is_named():
    figures, notes = other_tools.samples_of(NVBANDWIDTH, "a file")
    expected = {("h2d", (0,)): 25.5, ("h2d", (1,)): 24.26}
    assert rates_of(figures) == {**expected, ("peer_copy", (0, 1)): 26.34, ("peer_copy", (1, 0)): 21.82}
    failed, unused = "device_to_host_memcpy_ce: no figures (failed or waived)", "not used: device_local_copy"
    assert notes == [failed, unused, "size of the copies: not told, 512 MiB taken"]
    assert other_tools.nvbandwidth_version(NVBANDWIDTH) == "nvbandwidth v0.7"


# open-mpi/ompi pull request 12318, EESSI/software-layer pull request 716: columns and headers of OSU.
OSU_ALL_REDUCE = """
# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
1                      53.34             24.80            158.96        1000
1048576              8630.58           8619.50           8642.46          10
"""
OSU_BW = """# OSU MPI-CUDA Bandwidth Test v7.2
# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)
# Size      Bandwidth (MB/s)
4                       2.36
33554432            93130.52
"""


def test_texts_of_osu_are_read():
    small, large = samples_of(OSU_ALL_REDUCE, "a file", 4)
    assert told(small) == ("mpi_all_reduce", (0, 1, 2, 3), 1, 53.34, "default", False)
    assert told(large)[2:4] == (1048576, 8630.58)
    copies, notes = other_tools.samples_of(OSU_BW, "a file")
    assert rates_of(copies) == {("peer_copy", (0, 1)): 93.13}
    assert notes == ["1 rows below 1 MiB: their messages overlap"]
    (first, _) = samples_of(OSU_ALL_REDUCE.replace("OSU MPI ", "OSU NCCL "), "a file", 2)
    assert first.operation == "all_reduce"


UNTOLD = "cannot be told .*redop {}, {} ranks"
NOTHING = "nothing that a probe measures"


@pytest.mark.parametrize(("text", "message"), [
    ("{", "no JSON"), ("{}", "neither"), (nccl_tests("all_gather_perf"), "no operation"),
    (nccl_tests(devices=[{"rank": 0}]), "one rank alone exchanges nothing"),
    ('{"results": [1]}', "not as the tool"),
    (nccl_tests().replace('"nwrong": 0.0', '"nwrong": 7.0'), "7 wrong values at size 1048576"),
    (nccl_tests().replace('"time"', '"cpu_time"'), "-C, which gives the CPU's time"),
    (nccl_tests()[:-1] + ', "out_of_bounds": {"count": 1, "okay": false}}', "out_of_bounds"),
    (OLD_TABLE.replace("#   Rank", "#"), "no line '#  Rank 0"),
    (OLD_TABLE.replace("4.97  0e+00\n# Out", "4.97\n# Out"), "has not two times"),
    (OLD_TABLE.replace("values : 0 OK", "values : 3 FAILED"), "out_of_bounds"),
    (OLD_TABLE.replace("4.97    4.97", "4.97    2.49"), "cannot be told"),
    (NEW_TABLE.replace("       0\n", "      12\n"), "12 wrong values"),
    (NEW_TABLE.replace("    time", " cputime"), "-C, which gives the CPU's time"),
    # Each process its own run, and NCCL_TESTS_SPLIT: the ranks of one exchange are fewer.
    (OLD_TABLE.replace("Rank  1 Pid", "Rank  0 Pid"), "several runs in one text, as rank 0 is there"),
    (NEW_TABLE.replace("Rank  1 Group  0", "Rank  1 Group  1"), "ranks in 2 groups"),
    (OLD_TABLE.replace("4.97    4.97  0e+00\n", "4.97    4.97  2e+00\n"), "2 wrong values"),
    (OSU_ALL_REDUCE, "does not say how many ranks it had: --world-size N"),
    (OSU_ALL_REDUCE.replace("MPI A", "MPI-CUDA A"), f"{NOTHING}; read are osu_all"),
    (OSU_BW.replace("-CUDA", "").replace("DEVICE (D)", "HOST (H)"), NOTHING),
    (OSU_BW.replace("Bandwidth Test", "Bi-Directional Bandwidth Test"), NOTHING),
    (OSU_ALL_REDUCE + OSU_BW, "2 tests of OSU in one text"),
    (OSU_ALL_REDUCE.replace("          10\n", "  10    Fail\n"), "validation failed at size 1048576"),
    # Of two ranks a reduction and a broadcast have the all-reduce's factor, of 64 an all-gather nearly 1.
    (without_program("8 2 float sum 0", *["20 52.43 52.43 0e+00"] * 2), UNTOLD.format("sum", 2)),
    (without_program("8 2 float 0", *["20 52.43 52.43 0e+00"] * 2), UNTOLD.format("0", 2)),
    (without_program("8 2 float none", *["9 52.43 51.61 0"] * 2, num_ranks=64), UNTOLD.format("none", 64)),
    (without_program("8 2 float none", *["9 0.52 0.52 0"] * 2, num_ranks=64), UNTOLD.format("none", 64)),
])  # fmt: skip
def test_texts_of_something_else_of_wrong_results_or_cut_off_are_refused(text, message):
    with pytest.raises(TopologyError, match=message):
        samples_of(text, "a file")


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


def of_cases(*cases):
    """As its json_output.cpp (v0.8) writes them."""
    waived = {"name": "device_local_copy", "status": "Waived"}
    head = {"CUDA Runtime Version": 12080, "Driver Version": "570.124.06", "git_version": "v0.8"}
    return json.dumps({"nvbandwidth": {**head, "testcases": [*cases, waived], "version": "v0.8"}}, indent=3)


def between(gbps, num_gpus=4):
    return [[None if a == b else gbps for b in range(num_gpus)] for a in range(num_gpus)]


def imported(text, machine="hgx-h200-4"):
    figures = samples_of(text, "a file")
    found, file = with_measured(text_of(machine), machine, figures, "nvbandwidth v0.8 (x)")
    return validated(found, "the result"), file


def bandwidths(topology, kind):
    return {
        link.id: (round(link.bandwidth_bytes_per_s / 1e9, 1), round((link.back_bytes_per_s or 0) / 1e9, 1))
        for link in topology.machine.links
        if link.kind == kind
    }


PCIE = (case(DOWN, [50.0] * 4), case(UP, [52.0] * 4))


def test_links_have_the_measured_bandwidths_and_say_so_and_what_was_not_measured_stays():
    topology, file = imported(of_cases(*PCIE, case(WRITE, *between(270.0))))
    assert set(bandwidths(topology, "pcie").values()) == {(50.0, 52.0)}
    for a, b in ((0, 1), (3, 2)):
        path = topology.path((0, f"gpu{a}"), (0, f"gpu{b}"))
        assert topology.bandwidth_bytes_per_s(path) == pytest.approx(270e9, rel=1e-3)
    assert "nvbandwidth v0.8 (x)" in topology.sources["pcie5-x16.bandwidth_bytes_per_s"]
    assert "nvbandwidth" in topology.description
    assert "measured on 4 x H200" in topology.sources["h200.bandwidth_bytes_per_s"]  # as it was
    assert file["name"] == "hgx-h200-4"
    before = validated(text_of("hgx-h200-4"), "before")
    topology, _ = imported(of_cases(*PCIE))
    assert bandwidths(topology, "nvlink") == bandwidths(before, "nvlink")
    assert topology.machine.message_latency_s == before.machine.message_latency_s
    latencies = [[link.latency_s for link in each.machine.links] for each in (topology, before)]
    assert latencies[0] == latencies[1]


def test_fewer_gpus_tell_of_all_links_one_that_is_off_of_itself_and_all_at_once_of_host_memory():
    assert other_tools.nvbandwidth_version(of_cases()) == "nvbandwidth v0.8"
    assert other_tools.nvbandwidth_version('{"results": []}') is None
    topology, _ = imported(of_cases(case(DOWN, [50.0] * 2), case(UP, [52.0] * 2)))
    assert set(bandwidths(topology, "pcie").values()) == {(50.0, 52.0)}
    alone = [case(name, [40.0] * 4) for name in BOTH]
    at_once = [case(name, [20.0] * 4) for name in BOTH_AT_ONCE]
    busy = (case(AT_ONCE[0], [41.0] * 4), case(AT_ONCE[1], [34.0] * 4))
    topology, _ = imported(of_cases(*PCIE, *alone, *at_once, *busy))
    assert topology.machine.by_id["host0"].bandwidth_bytes_per_s == pytest.approx(2 * 4 * 20e9)
    assert bandwidths(topology, "memory")["cpu0-host0"] == (136.0, 164.0)
    topology, _ = imported(of_cases(case(DOWN, [50.0, 50.0, 50.0, 20.0]), case(UP, [52.0] * 4)))
    found = bandwidths(topology, "pcie")
    assert (found["cpu0-gpu3"], found["cpu0-gpu0"]) == ((20.0, 52.0), (50.0, 52.0))
    text = of_cases(case(DOWN, [20.0, 10.0, 20.0, 20.0]), case(UP, [20.0] * 4))
    topology, _ = imported(text, "dual-k80")
    assert bandwidths(topology, "pcie")["cpu0-switch0"][0] == 20.0


@pytest.mark.parametrize(("text", "machine", "message"), [
    (of_cases(case(DOWN, [50.0] * 8), case(UP, [52.0] * 8)), "hgx-h200-4", "8 GPUs, hgx-h200-4 has 4"),
    (of_cases(*PCIE), "cpu-2", "cpu-2 has 0"),
    (of_cases(*PCIE), "hgx-h200-x16-infiniband", "made from 'hgx-h200'"),
    (of_cases(case(DOWN, [50.0] * 4)), "hgx-h200-4", "device_to_host_memcpy_ce"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(text, machine, message):
    with pytest.raises(TopologyError, match=message):
        imported(text, machine)


WHOLE = [name for name, text in shipped().items() if "\nmachine:" not in text and "kind: gpu" in text]


@pytest.mark.parametrize("machine", WHOLE)
def test_every_shipped_machine_takes_the_figures_of_its_gpus(machine):
    num_gpus = len(validated(text_of(machine), machine).machine.of_kind("gpu"))
    topology, _ = imported(of_cases(case(DOWN, [9.0] * num_gpus), case(UP, [8.0] * num_gpus)), machine)
    assert set(bandwidths(topology, "pcie").values()) >= {(9.0, 8.0)}
