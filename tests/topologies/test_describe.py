"""The print-out of a topology, and the same as plain data."""

import json

import pytest

from scaling.files.texts import NO_BREAK, compact, folded, gigabytes_per_s, microseconds
from tests.topologies.conftest import load
from topologies.describe import as_dict, describe, host_only_path_lines, path_lines, peer_matrix
from topologies.schema import shipped


class TestText:
    @pytest.mark.parametrize(("name", "lines"), [
        ("dual-k80", {"gpu0 -> gpu1: peer, 8.0 GB/s, 5.2 us", "host0 -> gpu0, gpu1: host, 8.0 GB/s, 6.3 us"}),
        ("dual-k80", {"gpu0, gpu1 -> gpu2, gpu3: staged, 8.0 GB/s, 6.0 us"}),
        ("hgx-h200-x16-infiniband", {"gpu0 -> node1/gpu0..gpu7: network, 50.0 GB/s, 15.0 us"}),
        ("cpu-2", {"host0 -> host0: host, 8.0 GB/s, 81.0 us"}),
    ])  # fmt: skip
    def test_paths_tell_kind_bandwidth_and_latency(self, name, lines):
        assert lines <= set(path_lines(load(name)))

    def test_paths_without_peer_access_are_told_where_it_makes_a_difference(self):
        assert "gpu0 -> gpu1: staged, 8.0 GB/s, 5.9 us" in host_only_path_lines(load("dual-k80"))
        assert host_only_path_lines(load("pcie-8-no-peer-access")) == []

    def test_peer_access_is_a_matrix(self):
        rows = ["gpu0 . yes - -", "gpu1 yes . - -", "gpu2 - - . yes", "gpu3 - - yes ."]
        shown = [" ".join(line.split()) for line in peer_matrix(load("dual-k80"))]
        assert shown == ["gpu0 gpu1 gpu2 gpu3", *rows]
        assert "Peer access" not in describe(load("cpu-2"))

    @pytest.mark.parametrize(("name", "texts"), [
        ("hgx-h200-x2-10gbe", ["gpu0..gpu7 gpu NVIDIA H200 memory 4170 GB/s, sums 1390 GB/s",
                               "cpu0 - host0 memory 135 GB/s there, 164 GB/s back 0.10 us",
                               "gpu0 - nvswitch0 18 x nvlink 371 GB/s each direction 0.30 us",
                               "10 GbE, 1.25 GB/s each direction of a NIC, 25.0 us"]),
        ("dual-k80", [f"{gpus} gpu NVIDIA GK210, half a Tesla K80 board k80-{board}, memory 240 GB/s"
                      for board, gpus in enumerate(("gpu0, gpu1", "gpu2, gpu3"))]),
    ])  # fmt: skip
    def test_devices_and_links_have_their_figures_and_those_that_differ_a_line_each(self, name, texts):
        text = " ".join(describe(load(name)).split())
        assert [one for one in texts if one not in text] == []

    @pytest.mark.parametrize("name", shipped())
    def test_name_and_every_source_are_printed(self, name):
        topology = load(name)
        text = " ".join(describe(topology).split())
        assert name in text
        assert all(f"{figure}: {source}" in text for figure, source in topology.sources.items())
        assert max(map(len, describe(topology).splitlines())) <= 80


def test_data_is_json_has_what_the_text_has_and_paths_name_their_resources():
    data = json.loads(json.dumps(as_dict(load("hgx-h200-x2-infiniband"))))
    assert (data["machine"], data["num_nodes"], data["num_gpus"]) == ("hgx-h200", 2, 16)
    assert (data["network"]["bandwidth_bytes_per_s"], len(data["peer_access"])) == (50e9, 28)
    assert data["devices"][0]["id"] == "host0"
    assert "network.latency_s" in data["sources"]
    ends = {(path["source"], path["target"]): path for path in as_dict(load("dual-k80"))["paths"]}
    staged = ends["gpu0", "gpu2"]
    assert (staged["kind"], staged["resources"]["node0/host0"]) == ("staged", 2)


class TestWords:
    def test_long_texts_go_on_where_they_began_and_names_are_not_cut(self):
        words = " ".join(["word"] * 30)
        first, *others = folded("name  ", words).splitlines()
        assert first.startswith("name  word")
        assert all(line.startswith("      word") and len(line) <= 80 for line in others)
        assert folded("", words, indent=2, width=20).splitlines()[1] == "  word word word"
        assert " ".join(folded("name  ", words).split()) == f"name {words}"
        assert folded("", "a" * 90) == "a" * 90
        assert folded("", f"{'a' * 76} 12{NO_BREAK}GB/s").splitlines()[1] == "12 GB/s"
        assert folded("name  ", "") == "name"

    @pytest.mark.parametrize(("shown", "value", "text"), [
        (gigabytes_per_s, 8e9, "8.0 GB/s"), (gigabytes_per_s, 1.25e9, "1.25 GB/s"),
        (gigabytes_per_s, 55.4e9, "55.4 GB/s"), (gigabytes_per_s, 370.8e9, "371 GB/s"),
        (gigabytes_per_s, 4.17e12, "4170 GB/s"), (gigabytes_per_s, 6e8, "0.6 GB/s"),
        (microseconds, 2.5e-7, "0.25 us"), (microseconds, 6e-6, "6.0 us"), (microseconds, 1.31e-4, "131 us"),
        (microseconds, 0, "0.00 us"),
    ])  # fmt: skip
    def test_rates_and_latencies_have_three_digits(self, shown, value, text):
        assert shown(value) == text

    @pytest.mark.parametrize(("names", "text"), [
        (["gpu0", "gpu1"], "gpu0, gpu1"),
        (["gpu0", "gpu1", "gpu2", "gpu4"], "gpu0..gpu2, gpu4"),
        (["gpu9", "gpu10", "gpu11"], "gpu9..gpu11"),
        (["node1/gpu0", "node1/gpu1", "node1/gpu2"], "node1/gpu0..gpu2"),
        (["a1", "b2", "c3"], "a1, b2, c3"), (["host", "gpu"], "host, gpu"), ([], ""),
    ])  # fmt: skip
    def test_names_that_follow_one_another_are_told_by_the_first_and_the_last(self, names, text):
        assert compact(names) == text
