"""Machine files: what they say, and what is said of a wrong one."""

import os
import re
from pathlib import Path

import pytest
import yaml

from topologies.errors import TopologyError
from topologies.model import Device, Link, Network
from topologies.schema import cluster, load, shipped

SMALL = """
name: small
device_types:
  gpu: {kind: gpu, reduce_bytes_per_s: 80e9, source: a datasheet}
  switch: {kind: pcie_switch, source: a manual}
  cpu: {kind: cpu, cores: 8, source: a datasheet}
  memory: {kind: host_memory, bandwidth_bytes_per_s: 60e9, source: a datasheet}
link_types:
  bus: {kind: memory, bandwidth_bytes_per_s: 60e9, latency_s: 0, duplex: false, source: a datasheet}
  pcie:
    kind: pcie
    bandwidth_bytes_per_s: 8e9
    latency_s: 1e-6
    source: {bandwidth_bytes_per_s: a paper, latency_s: "assumption: as ever"}
devices:
  - {id: host0, type: memory}
  - {id: cpu0, type: cpu}
  - {id: switch0, type: switch}
  - {id: gpu0, type: gpu, board: left}
  - {id: gpu1, type: gpu}
links:
  - {type: bus, between: [cpu0, host0]}
  - {type: pcie, between: [cpu0, switch0]}
  - {type: pcie, between: [switch0, gpu0]}
  - {type: pcie, between: [switch0, gpu1], count: 2, id: wide}
peer_access: all
message_latency_s: {peer: 4e-6, source: a tuner}
"""

CLUSTER = """
name: two
machine: small.yaml
nodes: 2
network: {kind: 10 GbE, bandwidth_bytes_per_s: 1.25e9, latency_s: 25e-6, source: a standard}
device_types:
  nic: {kind: nic, source: a manual}
devices:
  - {id: nic0, type: nic}
links:
  - {type: pcie, between: [cpu0, nic0]}
message_latency_s: {network: 9e-6, source: a tuner}
"""


@pytest.fixture
def write(tmp_path):
    """Writes texts to files of these names; returns the folder."""

    def files(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        return tmp_path

    return files


def changed(text, path, value):
    """The file with one value replaced, or taken away (None); the path names keys and indices."""
    raw = yaml.safe_load(text)
    at = raw
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    elif isinstance(at, list) and path[-1] == len(at):
        at.append(value)
    else:
        at[path[-1]] = value
    return yaml.safe_dump(raw)


class TestWhatAFileSays:
    def test_devices_have_the_figures_of_their_type_with_their_sources(self, write):
        topology = load(write(small=SMALL) / "small.yaml")
        node, sources = topology.machine, topology.sources
        assert node.by_id["gpu0"] == Device("gpu0", "gpu", board="left", reduce_bytes_per_s=80e9, type="gpu")
        assert node.by_id["cpu0"].cores == 8
        assert sources["pcie.bandwidth_bytes_per_s"] == "a paper"
        assert (sources["pcie.latency_s"], sources["cpu.cores"]) == ("assumption: as ever", "a datasheet")
        assert (sources["switch"], sources["message_latency_s.peer"]) == ("a manual", "a tuner")

    def test_links_are_named_after_their_ends_unless_they_have_an_id_and_several_cables_add(self, write):
        links = load(write(small=SMALL) / "small.yaml").machine.links
        assert [link.id for link in links] == ["cpu0-host0", "cpu0-switch0", "switch0-gpu0", "wide"]
        assert links[0].duplex is False
        assert (links[-1].count, links[-1].bandwidth_bytes_per_s, links[-1].latency_s) == (2, 16e9, 1e-6)

    @pytest.mark.parametrize(
        ("access", "peers"),
        [
            *(("all", (True, False)), ("none", (False, False)), ([], (False, False))),
            *(([["gpu0", "gpu1"]], (True, False)), ("unknown", (False, True))),
            ([["gpu0", "gpu1"], "unknown"], (True, True)),
        ],
    )
    def test_peer_access_is_all_none_or_groups_or_of_others_unknown(self, write, access, peers):
        machine = load(write(small=changed(SMALL, ["peer_access"], access)) / "small.yaml").machine
        assert (machine.peer_access("gpu0", "gpu1"), machine.other_peers_unknown) == peers


class TestTheDocument:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "machine-files.md").read_text()

    def test_its_files_are_valid(self, tmp_path):
        box, grown = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        (tmp_path / "my-box.yaml").write_text(box)
        (tmp_path / "my-cluster.yaml").write_text(grown)
        assert load(tmp_path / "my-box.yaml").path((0, "gpu0"), (0, "gpu1")).kind == "peer"
        assert load(tmp_path / "my-cluster.yaml").num_gpus == 8

    def test_its_program_runs(self, capsys):
        (program,) = re.findall(r"```python\n(.*?)```", self.text, re.DOTALL)
        exec(program, {})
        assert capsys.readouterr().out.startswith("network 50000000000.0 ")


class TestClusters:
    def test_cluster_file_adds_network_and_nics_to_its_machine(self, write):
        two = load(write(small=SMALL, two=CLUSTER) / "two.yaml")
        assert (two.name, two.machine.name, two.num_nodes, two.num_gpus) == ("two", "small", 2, 4)
        assert two.network == Network("10 GbE", 1.25e9, 25e-6)
        assert two.machine.message_latency_s == {"peer": 4e-6, "network": 9e-6}
        assert two.sources["network.latency_s"] == "a standard"
        assert two.sources["pcie.bandwidth_bytes_per_s"] == "a paper"
        assert two.path((0, "gpu0"), (1, "gpu1")).kind == "network"

    def test_file_may_change_peer_access_alone(self, write):
        text = "name: apart\nmachine: small.yaml\npeer_access: none\n"
        apart = load(write(small=SMALL, apart=text) / "apart.yaml")
        assert (apart.name, apart.machine.name, apart.num_nodes) == ("apart", "apart", 1)
        assert apart.path((0, "gpu0"), (0, "gpu1")).kind == "staged"

    def test_python_makes_a_cluster_of_any_size_and_adds_nics_to_a_machine(self):
        large = cluster(load("hgx-h200-x2-infiniband"), 512)
        assert (large.name, large.num_gpus) == ("hgx-h200-x512", 4096)
        assert large.ranks(4096)[-1] == (511, "gpu7")
        network = Network("100 GbE", 12.5e9, 25e-6)
        nic, link = Device("nic0", "nic"), Link("nic", "cpu0", "nic0", "pcie", 24e9, 0.0)
        pair = cluster(load("dual-k80"), 2, network, devices=[nic], links=[link], name="pair")
        assert pair.path((0, "gpu3"), (1, "gpu0")).resources["node1/nic0/network<"] == 1

    @pytest.mark.parametrize(("arguments", "message"), [
        ({"num_nodes": 2}, "need key 'network'"), ({"num_nodes": 0}, "num_nodes is 0"),
        ({"num_nodes": 2, "network": Network("n", 1e9, 0.0)}, "no device of kind 'nic'"),
        ({"num_nodes": 1, "devices": [Device("gpu0", "gpu")]}, "device 'gpu0' is there already"),
        ({"num_nodes": 1, "links": [Link("x", "cpu0", "gpu9", "pcie", 1e9, 0.0)]},
         "unknown device 'gpu9'; did you mean 'gpu"),
    ])  # fmt: skip
    def test_impossible_cluster_is_refused(self, arguments, message):
        with pytest.raises(TopologyError, match=message):
            cluster(load("dual-k80"), **arguments)


WRONG = [
    (["name"], None, "key 'name' is missing"),
    (["name"], "a/b", "name is 'a/b': "),
    (["lniks"], [], "unknown key 'lniks'; did you mean 'links'? (allowed: name, "),
    (["nodes"], 2, "key 'nodes' belongs to a file that names a 'machine'"),
    (["device_types", "gpu", "kind"], "gpus", "device_types.gpu.kind is 'gpus': input should be 'gpu'"),
    (["device_types", "gpu", "core"], 1, "unknown key 'core'; did you mean 'cores'?"),
    (["device_types", "gpu", "cores"], 1, "cores belongs to kind cpu, not to gpu"),
    (["device_types", "gpu", "source"], None, "key 'device_types.gpu.source' is missing; say where"),
    (["device_types", "gpu", "source"], " ", "say where the figure comes from"),
    (["device_types", "gpu", "source"], {"cores": "x"}, "source of reduce_bytes_per_s is missing"),
    (["device_types", "gpu", "source"], {"speed": "x"}, "'speed' is no figure; allowed: cores"),
    (["device_types", "gpu", "reduce_bytes_per_s"], 0, "reduce_bytes_per_s is 0: input should be greater"),
    (["link_types", "pcie", "bandwidth_bytes_per_s"], -1, "bandwidth_bytes_per_s is -1"),
    (["link_types", "pcie", "bandwidth_bytes_per_s"], True, "a number is wanted, not true or false"),
    (["link_types", "pcie", "bandwidth_bytes_per_s"], float("inf"), "finite number"),
    (["link_types", "pcie", "latency_s"], -1e-9, "latency_s is -1e-09: input should be greater"),
    (["link_types", "bus", "back_bytes_per_s"], 1e9, "back_bytes_per_s belongs to duplex links"),
    (["devices"], [], "devices: list should have at least 1 item"),
    (["devices", 5], {"id": "gpu1", "type": "gpu"}, "devices.5.id is 'gpu1', which is taken"),
    (["devices", 0, "type"], "memry", "devices.0.type: unknown device type 'memry'; did you mean 'memory'?"),
    (["devices", 0, "id"], "node/host", "devices.0.id is 'node/host'"),
    (["links", 0, "type"], "buss", "links.0.type: unknown link type 'buss'; did you mean 'bus'?"),
    (["links", 0, "between"], ["cpu0", "host1"], "links.0.between: unknown device 'host1'; did you mean"),
    (["links", 0, "between"], ["cpu0"], "links.0.between: list should have at least 2 items"),
    (["links", 0, "between"], ["cpu0", "cpu0"], "a link needs two different devices"),
    (["links", 4], {"type": "pcie", "between": ["cpu0", "host0"]}, "links.4.id is 'cpu0-host0', which is"),
    (["links", 0, "count"], 0, "links.0.count is 0"),
    (["links", 2], {"type": "pcie", "between": ["gpu1", "gpu0"]}, "no route from gpu 'gpu0' to host_memory"),
    (["links", 0], {"type": "pcie", "between": ["cpu0", "gpu0"]}, "no route from gpu 'gpu0' to host_memory"),
    (["device_types", "memory", "kind"], "gpu", "no device of kind 'host_memory'"),
    (["peer_access"], "some", "peer_access is 'some'; allowed: all, none, unknown, or lists of GPUs"),
    (["peer_access"], [["gpu0", "cpu0"]], "peer_access.0: unknown GPU 'cpu0'; did you mean 'gpu0'?"),
    (["peer_access"], [["gpu0"]], "a group needs two different GPUs"),
    (["message_latency_s", "staged"], -1, "message_latency_s.staged is -1"),
    (["message_latency_s", "stagd"], 1, "unknown key 'stagd'; did you mean 'staged'?"),
]  # fmt: skip

WRONG_CLUSTERS = [
    (["network"], None, "nodes is 2: several nodes need key 'network'"),
    (["devices"], None, "links.0.between: unknown device 'nic0'"),
    (["network", "latency"], 1, "unknown key 'latency'; did you mean 'latency_s'?"),
    (["nodes"], 0, "nodes is 0"),
    (["machine"], "smal.yaml", "cannot be read: No such file"),
    (["machine"], "dual-k8", "unknown machine 'dual-k8'; did you mean 'dual-k80'?"),
    (["machine"], "two.yaml", "key 'machine' leads back to "),
    (["machine"], "hgx-h200-x2-infiniband", "which is a cluster; name one node of it"),
    (["device_types", "gpu"], {"kind": "gpu", "source": "x"},
     "device_types.gpu: machine 'small' has this type"),
    (["devices", 0, "id"], "gpu1", "devices.0.id is 'gpu1', which is taken"),
    (["links", 0, "between"], ["gpu0", "nic0"], "no route from nic 'nic0' to host_memory 'host0'"),
]  # fmt: skip


class TestWhatIsSaidOfAWrongOne:
    @pytest.mark.parametrize(
        ("name", "path", "value", "message"),
        [*(("small", *one) for one in WRONG), *(("two", *one) for one in WRONG_CLUSTERS)],
        ids=lambda value: str(value)[:50],
    )
    def test_error_names_file_key_and_what_is_allowed(self, write, name, path, value, message):
        texts = {"small": SMALL, "two": CLUSTER}
        file = write(**{**texts, name: changed(texts[name], path, value)}) / f"{name}.yaml"
        with pytest.raises(TopologyError) as error:
            load(file)
        assert message in str(error.value)
        assert name == "two" or all(line.startswith(str(file)) for line in str(error.value).splitlines())

    def test_error_in_the_machine_of_a_cluster_names_the_machine(self, write):
        folder = write(small=changed(SMALL, ["links", 3, "type"], "cable"), two=CLUSTER)
        with pytest.raises(TopologyError, match=r"small\.yaml: links\.3\.type: unknown link type 'cable'"):
            load(folder / "two.yaml")

    def test_network_without_a_nic_is_refused(self, write):
        text = changed(changed(CLUSTER, ["devices"], None), ["links"], None)
        with pytest.raises(TopologyError, match="no device of kind 'nic', which 'network' needs"):
            load(write(small=SMALL, two=text) / "two.yaml")

    @pytest.mark.parametrize(("text", "message"), [
        ("- a list", "a machine file is a mapping of keys"),
        ("", "a machine file is a mapping of keys"), ("name: [", "no valid YAML"),
        ("name: a\nname: b", "key 'name' stands twice"),
    ])  # fmt: skip
    def test_file_that_is_no_mapping_is_refused(self, write, text, message):
        with pytest.raises(TopologyError, match=message):
            load(write(bad=text) / "bad.yaml")

    def test_all_that_is_wrong_is_told_at_once(self, write):
        text = changed(changed(SMALL, ["colour"], "red"), ["links", 0, "count"], "two")
        with pytest.raises(TopologyError) as error:
            load(write(small=text) / "small.yaml")
        assert len(str(error.value).splitlines()) == 2

    def test_unknown_name_lists_the_shipped_machines_and_a_file_that_is_not_there_is_named(self, tmp_path):
        with pytest.raises(TopologyError, match="did you mean 'dual-k80'") as error:
            load("dual-k8")
        assert all(name in str(error.value) for name in shipped())
        with pytest.raises(TopologyError, match=r"machine file .*none\.yaml: cannot be read"):
            load(tmp_path / "none.yaml")

    def test_shipped_cluster_takes_the_shipped_machine_whatever_lies_beside(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "hgx-h200").write_text("name: another")
        assert load("hgx-h200-x2-infiniband").num_gpus == 16
        assert os.path.isfile("hgx-h200")
