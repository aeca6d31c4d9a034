"""Machines that are asked about: other links and places, their best order, their sends through the host."""

import pytest

from scaling.collectives.plan import simulate_plan
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.simulate import simulate
from scaling.prediction.best_order import search
from scaling.prediction.measured import MeasuredTransfer
from scaling.prediction.transports import HostSends, for_host_sends, in_turns, measured_host_sends, moves
from scaling.prediction.what_if import what_if
from tests.prediction.conftest import cell, machine, strategy
from topologies.errors import TopologyError
from topologies.schema import load


def test_on_equal_links_no_order_is_better_and_many_places_are_searched_by_a_stated_heuristic():
    found = search(strategy(cell(4)), machine(4))
    assert found["gain_ratio"] == pytest.approx(1)
    assert "equally long" in found["text"]
    assert found["simulated"] is True
    many = search(strategy(cell(8)), load("pcie-8"))
    assert many["search"].startswith("heuristic")
    assert many["best_s"] <= many["worst_s"]


def test_a_ring_crosses_between_boards_as_seldom_as_it_can():
    topology = load("dual-k80")
    found, two = (search(strategy(cell(n)), topology) for n in (4, 2))
    assert found["search"] == "exact: all 24 orders"
    boards = [topology.machine.by_id[device].board for _, device in found["best_order"]]
    assert len({topology.machine.by_id[device].board for _, device in two["best_order"]}) == 1
    assert sum(a != b for a, b in zip(boards, [*boards[1:], boards[0]], strict=True)) == 2
    assert found["gain_ratio"] > 1
    assert found["best_s"] <= simulate_plan(strategy(cell(4)).buckets[0], topology, 4).seconds


def test_a_librarys_order_is_its_own_and_there_are_places_for_all_ranks():
    assert search(strategy(cell(4, "all_reduce")), machine(4)) is None
    assert search(strategy(cell(4, "none")), machine(4)) is None
    with pytest.raises(TopologyError, match="4 places"):
        search(strategy(cell(8)), machine(4))


SIZE = 100_000_000


def seconds(topology, operation, ranks):
    return simulate(moves(operation, ranks), topology.without_latency, SIZE, peer_access=False).seconds


def test_rates_that_a_probe_would_measure_are_found_again():
    slower = for_host_sends(machine(2), HostSends(one_way=0.7, both_ways=0.45))
    times = {operation: seconds(slower, operation, 2) for operation in ("send", "swap", "shift")}
    probed = [MeasuredTransfer(operation, 2, SIZE, True, own, 0.01) for operation, own in times.items()]
    found = measured_host_sends(machine(2), probed)
    assert found is not None
    assert (found.one_way, found.both_ways) == (pytest.approx(0.7), pytest.approx(0.45))


def test_one_way_and_both_ways_have_their_own_rates():
    slower = for_host_sends(machine(4), HostSends(one_way=0.7, both_ways=0.45))
    assert seconds(slower, "send", 4) == pytest.approx(SIZE / (0.7 * 25e9))
    assert seconds(slower, "shift", 4) == pytest.approx(SIZE / (0.45 * 25e9))
    assert measured_host_sends(machine(2), []) is None
    assert for_host_sends(machine(2), None) == machine(2), "without a probe it stays as it is"


def test_partners_of_a_rank_take_turns_and_share_the_link_of_one_that_all_turn_to():
    step = tuple(Transfer(rank, o, o, o + 1, "add") for o in (0, 1) for rank in range(4) if rank != o)
    owners = Schedule("owners", 4, 2, (step,))
    turns = in_turns(owners)
    assert [sorted({t.source for t in step}) for step in turns.steps] == [[0, 1], [2], [3]]
    bare = machine(4).without_latency
    together, following = (simulate(each, bare, SIZE).seconds for each in (owners, turns))
    assert following > 1.3 * together
    assert in_turns(ring(4)).steps == ring(4).steps, "one partner a step has no turns"


def link(topology, name):
    return next(link for link in topology.machine.links if link.id == name)


def test_a_factor_and_a_number_change_links_by_type_kind_or_id_and_access_sends_through_the_host():
    doubled = what_if(machine(), ["nvlink-type.bandwidth=2x"])
    assert link(doubled, "gpu1-switch").bandwidth_bytes_per_s == 400e9
    assert link(what_if(machine(), ["nvlink.bandwidth=5e9"]), "gpu0-switch").bandwidth_bytes_per_s == 5e9
    changed = what_if(machine(), ["gpu0-switch.latency=1e-3"])
    assert (link(changed, "gpu0-switch").latency_s, link(changed, "gpu1-switch").latency_s) == (1e-3, 3e-7)
    staged = what_if(machine(), ["peer_access=off"])
    found = (staged.name, staged.path((0, "gpu0"), (0, "gpu1")).kind)
    assert found == ("example, peer_access=off", "staged")


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
