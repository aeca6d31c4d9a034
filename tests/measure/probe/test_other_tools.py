"""JSON of nccl-tests and nvbandwidth, as their sources write it."""

import json

import pytest

from scaling.measure.probe.other_tools import samples_of
from topologies.errors import TopologyError


def nccl_tests(program="all_reduce_perf", env=(), **config):
    row = {"size": 1048576, "count": 262144, "type": "float", "redop": "sum", "root": "-1"}
    times = {"time": 21.5, "alg_bw": 48.8, "bus_bw": 73.2, "nwrong": 0.0}
    return json.dumps(
        {
            "version": 2,
            "args": [f"./build/{program}", "-b", "1M"],
            "env": list(env),
            "config": {
                "nthreads": 1,
                "ngpus": 1,
                "graph": 0,
                "devices": [{"rank": r} for r in range(4)],
                **config,
            },
            "results": [{**row, "out_of_place": times, "in_place": {**times, "time": 20.0}}],
        }
    )


def test_nccl_tests_gives_ranks_size_and_time():
    (sample,) = samples_of(nccl_tests(), "a file")
    assert (sample.operation, sample.ranks, sample.num_bytes) == ("all_reduce", (0, 1, 2, 3), 1048576)
    assert sample.seconds == pytest.approx(20e-6)
    assert sample.launch == "default"


def test_gpus_of_one_process_count_and_settings_tell_the_way():
    (sample,) = samples_of(
        nccl_tests(env=["NCCL_P2P_DISABLE=1"], ngpus=8, devices=[{"rank": 0}], graph=1), "a file"
    )
    assert len(sample.ranks) == 8
    assert sample.launch == "host_only"
    assert sample.captured


def test_nvbandwidth_gives_copies_both_ways_and_between_gpus():
    content = {
        "nvbandwidth": {
            "testcases": [
                {"name": "host_to_device_memcpy_ce", "bandwidth_matrix": [["55.1", "54.9"]]},
                {
                    "name": "device_to_device_memcpy_write_ce",
                    "bandwidth_matrix": [["N/A", "390"], ["391", "N/A"]],
                },
                {
                    "name": "device_to_device_memcpy_read_ce",
                    "bandwidth_matrix": [["N/A", "300"], ["301", "N/A"]],
                },
                {"name": "host_device_latency_sm", "bandwidth_matrix": [["900"]]},
            ]
        }
    }
    found = samples_of(json.dumps(content), "a file")
    assert [(one.operation, one.ranks) for one in found] == [
        ("h2d", (0,)),
        ("h2d", (1,)),
        ("peer_copy", (0, 1)),
        ("peer_copy", (1, 0)),
        ("peer_copy", (1, 0)),
        ("peer_copy", (0, 1)),
    ]
    assert found[0].num_bytes / found[0].seconds == pytest.approx(55.1e9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("{}", "neither"),
        (nccl_tests("all_gather_perf"), "no operation"),
        ('{"results": [1]}', "not as the tool"),
    ],
)
def test_other_files_are_refused(text, message):
    with pytest.raises(TopologyError, match=message):
        samples_of(text, "a file")


def test_nvbandwidth_gives_copies_at_once_and_both_ways():
    names = {
        "host_to_all_memcpy_ce": [["41", "43"]],
        "host_to_device_bidirectional_memcpy_ce": [["40", "N/A"]],
        "device_to_host_bidirectional_memcpy_ce": [["30", "30"]],
        "host_to_all_bidirectional_memcpy_ce": [["20", "22"]],
        "all_to_host_bidirectional_memcpy_ce": [["24", "26"]],
        "all_to_host_memcpy_ce": [["34", "N/A"]],
    }
    cases = [{"name": name, "bandwidth_matrix": matrix} for name, matrix in names.items()]
    found = samples_of(json.dumps({"nvbandwidth": {"testcases": cases}}), "a file")
    rates = {
        (one.operation, one.ranks, one.memory): round(one.num_bytes / one.seconds / 1e9, 3) for one in found
    }
    assert rates == {
        ("h2d", (0, 1), "pinned"): 42.0,
        ("h2d_d2h", (0,), "pinned"): 35.0,
        ("h2d_d2h", (0, 1), "pinned"): 23.0,
    }
