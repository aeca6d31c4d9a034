"""What a step takes, by hand: messages, sums on ranks, sums in host memory."""

from dataclasses import replace

import pytest

from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.simulate import simulate
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Network, Topology

NUM_BYTES = 1e6


def machine(g=4, *, peer_access=True, cores=4, memory_bytes_per_s=100.0, link_bytes_per_s=10.0):
    """g GPUs with 10 B/s each to a switch, host memory behind it; a GPU sums at 2 B/s, a core at 1 B/s."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=2.0) for i in range(g)]
    host = [
        Device("switch", "pcie_switch"),
        Device("cpu", "cpu", cores=cores, reduce_bytes_per_s=1.0),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s),
    ]
    links = [Link(f"link{i}", f"gpu{i}", "switch", "pcie", link_bytes_per_s, 0.0) for i in range(g)]
    links += [Link("up", "switch", "cpu", "pcie", 1e9, 0.0), Link("bus", "cpu", "memory", "memory", 1e9, 0.0)]
    groups = (frozenset(gpu.id for gpu in gpus),) if peer_access else ()
    latency_s = {"peer": 1.0, "staged": 3.0, "host": 2.0}
    return Machine("machine", (*gpus, *host), tuple(links), groups, latency_s)


def one(**rest):
    return Topology("one", machine(**rest))


def cluster(num_nodes, g):
    node = machine(g)
    nic = (Device("nic", "nic", gpudirect=True),)
    links = (Link("nic", "nic", "switch", "pcie", 1e9, 0.0),)
    node = replace(
        node,
        devices=node.devices + nic,
        links=node.links + links,
        message_latency_s={**node.message_latency_s, "network": 4.0},
    )
    return Topology("cluster", node, num_nodes, Network("ethernet", 5.0, 1.0))


def cpus(num_nodes=1, cores=4):
    devices = (
        Device("cpu", "cpu", cores=cores, reduce_bytes_per_s=1.0),
        Device("memory", "host_memory", bandwidth_bytes_per_s=100.0),
    )
    links = (Link("bus", "cpu", "memory", "memory", 1e9, 0.0),)
    return Topology("cpus", Machine("cpus", devices, links, message_latency_s={"host": 1.0}), num_nodes)


def made_of(*steps, world_size=4, num_chunks=1, num_hosts=0, chunk_elements=None):
    return Schedule("made", world_size, num_chunks, steps, num_hosts, chunk_elements)


def add(source, target, start=0, stop=1):
    return Transfer(source, target, start, stop, "add")


def copy(source, target, start=0, stop=1):
    return Transfer(source, target, start, stop, "copy")


class TestMessages:
    def test_latency_then_bytes(self):
        assert simulate(made_of((copy(0, 1),)), one(), 20).seconds == 1 + 2

    def test_two_into_one_rank_share_its_link(self):
        assert simulate(made_of((copy(0, 2), copy(1, 2, 1, 2)), num_chunks=2), one(), 40).seconds == 1 + 4

    def test_both_directions_of_a_link_have_their_own_bandwidth(self):
        assert simulate(made_of((copy(0, 1), copy(1, 0))), one(), 20).seconds == 1 + 2

    def test_transfers_between_the_same_two_ranks_are_one_message(self):
        step = tuple(copy(0, 1, c, c + 1) for c in range(4))
        simulation = simulate(made_of(step, num_chunks=4), one(), 40)
        assert simulation.seconds == 1 + 4
        assert [event.num_bytes for event in simulation.timeline()] == [40]

    def test_message_sent_in_parts_has_their_latencies(self):
        assert simulate(made_of((copy(0, 1),)), one(), 20, num_messages=5).seconds == 5 + 2

    def test_step_ends_with_its_slowest_and_the_next_begins_then(self):
        steps = ((copy(0, 1, 0, 1), copy(2, 3, 0, 3)), (copy(0, 1, 0, 1),))
        simulation = simulate(made_of(*steps, num_chunks=3), one(), 60)
        assert simulation.step_seconds == [1 + 6, 1 + 2]
        assert simulation.seconds == 10

    def test_chunks_may_be_tensors(self):
        step = (copy(0, 1, 0, 1), copy(2, 3, 1, 2))
        simulation = simulate(made_of(step, num_chunks=2, chunk_elements=(1, 3)), one(), 80)
        assert sorted(event.num_bytes for event in simulation.timeline()) == [20, 60]

    def test_tensor_without_elements_is_not_sent(self):
        step = (copy(0, 1, 0, 1),)
        simulation = simulate(made_of(step, num_chunks=2, chunk_elements=(0, 3)), one(), 80)
        assert simulation.seconds == 0

    def test_host_only_goes_through_host_memory(self):
        simulation = simulate(made_of((copy(0, 1),)), one(), 20, peer_access=False)
        assert simulation.seconds == 3 + 2
        assert simulation.bytes_per_resource["node0/memory"] == 40  # written and read

    def test_over_the_network(self):
        assert simulate(made_of((copy(0, 2),)), cluster(2, 2), 20).seconds == 4 + 1 + 4

    def test_empty_step_takes_no_time(self):
        assert simulate(made_of(()), one(), 20).step_seconds == [0]


class TestSumsOnRanks:
    def test_follow_the_message(self):
        simulation = simulate(made_of((add(0, 1),)), one(), 20)
        assert simulation.seconds == 1 + 2 + 10
        assert simulation.reduce_seconds == 10

    def test_of_one_rank_follow_one_another_in_the_listed_order(self):
        # They share the link: rank 2's 10 B arrive at 3 s, rank 1's 30 B at 5 s, but these are listed first.
        step = (add(1, 0, 1, 2), add(2, 0, 0, 1))
        simulation = simulate(made_of(step, num_chunks=2, chunk_elements=(1, 3)), one(), 40)
        sums = [(e.source, e.start_s, e.end_s) for e in simulation.timeline() if e.kind == "reduce"]
        assert sums == [(1, 5, 20), (2, 20, 25)]

    def test_begin_while_others_still_send(self):
        step = (add(1, 0, 1, 2), add(2, 0, 0, 1))[::-1]
        simulation = simulate(made_of(step, num_chunks=2, chunk_elements=(1, 3)), one(), 40)
        sums = [(e.source, e.start_s, e.end_s) for e in simulation.timeline() if e.kind == "reduce"]
        assert sums == [(2, 3, 8), (1, 8, 23)]

    def test_of_different_ranks_run_at_the_same_time(self):
        assert simulate(made_of((add(0, 1), add(2, 3))), one(), 20).seconds == 1 + 2 + 10

    def test_on_a_machine_without_gpus_take_one_core_a_rank(self):
        # Two copies of 12 B in memory of 100 B/s, written and read: 0.48 s; sums of 1 B/s.
        simulation = simulate(made_of((add(0, 1), add(2, 3))), cpus(), 12)
        assert simulation.seconds == pytest.approx(1 + 0.48 + 12)

    def test_gpu_that_sums_needs_a_rate(self):
        gpus = [replace(d, reduce_bytes_per_s=None) if d.kind == "gpu" else d for d in machine().devices]
        topology = Topology("one", replace(machine(), devices=tuple(gpus)))
        with pytest.raises(TopologyError, match="gpu 'gpu1' has to sum; give it 'reduce_bytes_per_s'"):
            simulate(made_of((add(0, 1),)), topology, 20)


class TestSumsInHostMemory:
    def test_first_add_is_a_copy_and_the_others_follow_one_another(self):
        simulation = simulate(host_serial(3), one(), 20)
        assert simulation.step_seconds == [2 + 2 + 2 * 20, 2 + 2]

    def test_pieces_run_at_the_same_time_on_a_core_each(self):
        # Four pieces of 5 B, three sums each.
        assert simulate(host_parallel(4), one(), 20).step_seconds == [2 + 2 + 3 * 5, 2 + 2]

    def test_as_many_as_there_are_cores(self):
        assert simulate(host_parallel(4), one(cores=2), 20).step_seconds == [2 + 2 + 3 * 10, 2 + 2]

    def test_share_the_bandwidth_of_memory(self):
        # 24 B at 6 B/s; then 18 B are added, for each of which 3 B are read and written.
        slow = simulate(host_parallel(4), one(memory_bytes_per_s=6.0), 6)
        assert slow.step_seconds == pytest.approx([2 + 4 + 9, 2 + 4])

    def test_share_memory_with_messages_in_flight(self):
        # All three messages have 4/3 B/s until 0.75 s: 1 B is copied, 1 B is to be added, 8 of 9 B are left.
        # The sum and the message share memory (3 + 1 = 4 B/s) until 1.75 s; the last 7 B have all of it.
        step = (add(0, 4, 0, 1), add(1, 4, 0, 1), copy(2, 4, 1, 2))
        both = made_of(step, num_chunks=2, num_hosts=1, chunk_elements=(1, 9))
        assert simulate(both, one(memory_bytes_per_s=4.0), 10).seconds == pytest.approx(2 + 1.75 + 7 / 4)

    def test_second_step_adds_to_what_the_first_left(self):
        steps = ((add(0, 4),), (add(1, 4),))
        assert simulate(made_of(*steps, num_hosts=1), one(), 20).step_seconds == [2 + 2, 2 + 2 + 20]

    def test_part_of_a_transfer_may_be_a_copy(self):
        steps = ((add(0, 4, 0, 1),), (add(1, 4, 0, 2),))
        simulation = simulate(made_of(*steps, num_hosts=1, num_chunks=2), one(), 40)
        assert simulation.step_seconds == [2 + 2, 2 + 4 + 20]

    def test_each_node_sums_in_its_own_memory(self):
        simulation = simulate(host_serial(4, ranks_per_host=2), cluster(2, 2), 20)
        assert {"node0/memory", "node1/memory"} <= set(simulation.bytes_per_resource)

    def test_hosts_have_to_be_where_their_ranks_are(self):
        with pytest.raises(
            TopologyError, match="rank 2 adds into host 1, the memory of node 1, but is on node 0"
        ):
            simulate(host_serial(4, ranks_per_host=2), cluster(2, 4), 20)
        places = [(0, "gpu0"), (0, "gpu1"), (1, "gpu0"), (1, "gpu1")]
        assert simulate(host_serial(4, ranks_per_host=2), cluster(2, 4), 20, places=places).seconds > 0

    def test_as_many_nodes_as_hosts_are_needed(self):
        with pytest.raises(TopologyError, match="2 host memories are summed in, one a node, but there are 1"):
            simulate(host_serial(4, ranks_per_host=2), one(), 20)

    def test_one_host_gets_the_sums_of_all_nodes(self):
        simulation = simulate(host_serial(4), cluster(2, 2), 20)
        assert "node1/memory" not in simulation.bytes_per_resource
