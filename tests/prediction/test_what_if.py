import pytest

from scaling.prediction.what_if import what_if
from tests.prediction.conftest import machine
from topologies.errors import TopologyError


def link(topology, name):
    return next(link for link in topology.machine.links if link.id == name)


def test_a_factor_and_a_number_change_links_by_type_kind_or_id():
    doubled = what_if(machine(), ["nvlink-type.bandwidth=2x"])
    assert link(doubled, "gpu1-switch").bandwidth_bytes_per_s == 400e9
    assert link(what_if(machine(), ["nvlink.bandwidth=5e9"]), "gpu0-switch").bandwidth_bytes_per_s == 5e9
    changed = what_if(machine(), ["gpu0-switch.latency=1e-3"])
    assert (link(changed, "gpu0-switch").latency_s, link(changed, "gpu1-switch").latency_s) == (1e-3, 3e-7)


def test_peer_access_off_sends_messages_through_the_host_and_the_name_says_so():
    changed = what_if(machine(), ["peer_access=off"])
    assert (changed.name, changed.path((0, "gpu0"), (0, "gpu1")).kind) == (
        "example, peer_access=off",
        "staged",
    )


@pytest.mark.parametrize("number", ["2x", "8"])
def test_more_gpus_are_linked_and_reached_like_those_there_are_and_fewer_go(number):
    assert what_if(machine(), ["gpus=2"]).num_gpus == 2
    changed = what_if(machine(), [f"gpus={number}"])
    assert (changed.num_gpus, changed.path((0, "gpu0"), (0, "gpu3-2")).kind) == (8, "peer")


def test_nodes_need_a_network():
    assert what_if(machine(nodes=2), ["nodes=4x"]).num_nodes == 8
    with pytest.raises(TopologyError, match="no network"):
        what_if(machine(), ["nodes=2"])


@pytest.mark.parametrize(("change", "message"), [
    ("nvlink.bandwidth", "no value"), ("nvlink.bandwidth=fast", "number"), ("nvlink.bandwidth=-1", "above 0"),
    ("infiniband.bandwidth=2x", "no such link"), ("network.bandwidth=2x", "without a network"),
    ("colour=blue", "not known"), ("peer_access=maybe", "on and off"), ("gpus=1e9x", "at most 64"),
    ("nodes=1e9", "at most 1024"),
])  # fmt: skip
def test_what_cannot_be_is_named(change, message):
    with pytest.raises(TopologyError, match=message):
        what_if(machine(), [change])
