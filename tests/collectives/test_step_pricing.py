"""What a step takes, by hand: messages, sums on ranks, sums in host memory."""

from dataclasses import replace

import pytest

from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.simulate import simulate
from tests.collectives.conftest import add, copy, made_of
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Network, Topology


def machine(g=4, *, cores=4, memory_bytes_per_s=100.0):
    """g GPUs with 10 B/s each to a switch, host memory behind it; a GPU sums at 2 B/s, a core at 1 B/s."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=2.0) for i in range(g)]
    host = [
        Device("switch", "pcie_switch"),
        Device("cpu", "cpu", cores=cores, reduce_bytes_per_s=1.0),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s),
    ]
    links = [Link(f"link{i}", f"gpu{i}", "switch", "pcie", 10.0, 0.0) for i in range(g)]
    links += [Link("up", "switch", "cpu", "pcie", 1e9, 0.0), Link("bus", "cpu", "memory", "memory", 1e9, 0.0)]
    groups, latency_s = (frozenset(gpu.id for gpu in gpus),), {"peer": 1.0, "staged": 3.0, "host": 2.0}
    return Machine("machine", (*gpus, *host), tuple(links), groups, latency_s)


def one(**rest):
    return Topology("one", machine(**rest))


def cluster(num_nodes, g):
    node = machine(g)
    devices = (*node.devices, Device("nic", "nic", gpudirect=True))
    links = (*node.links, Link("nic", "nic", "switch", "pcie", 1e9, 0.0))
    latency_s = {**node.message_latency_s, "network": 4.0}
    node = replace(node, devices=devices, links=links, message_latency_s=latency_s)
    return Topology("cluster", node, num_nodes, Network("ethernet", 5.0, 1.0))


def cpus():
    memory = Device("memory", "host_memory", bandwidth_bytes_per_s=100.0)
    devices = (Device("cpu", "cpu", cores=4, reduce_bytes_per_s=1.0), memory)
    links = (Link("bus", "cpu", "memory", "memory", 1e9, 0.0),)
    return Topology("cpus", Machine("cpus", devices, links, message_latency_s={"host": 1.0}))


def made(*steps, **fields):
    return made_of(*steps, world_size=4, **fields)


TIMES = {
    "latency then bytes": (made((copy(0, 1),)), one(), 20, [1 + 2]),
    "two into one rank share its link":
        (made((copy(0, 2), copy(1, 2, 1, 2)), num_chunks=2), one(), 40, [1 + 4]),
    "both directions have their own bandwidth": (made((copy(0, 1), copy(1, 0))), one(), 20, [1 + 2]),
    "a step ends with its slowest and the next begins then":
        (made((copy(0, 1), copy(2, 3, 0, 3)), (copy(0, 1),), num_chunks=3), one(), 60, [1 + 6, 1 + 2]),
    "a tensor without elements is not sent":
        (made((copy(0, 1),), num_chunks=2, chunk_elements=(0, 3)), one(), 80, [0]),
    "over the network": (made((copy(0, 2),)), cluster(2, 2), 20, [4 + 1 + 4]),
    "an empty step": (made(()), one(), 20, [0]),
    "a sum follows its message": (made((add(0, 1),)), one(), 20, [1 + 2 + 10]),
    "sums of different ranks run at once": (made((add(0, 1), add(2, 3))), one(), 20, [1 + 2 + 10]),
    # Two copies of 12 B in memory of 100 B/s, written and read: 0.48 s; sums of 1 B/s.
    "without GPUs one core a rank sums": (made((add(0, 1), add(2, 3))), cpus(), 12, [1 + 0.48 + 12]),
    "in host memory the first add is a copy and the others follow":
        (host_serial(3), one(), 20, [2 + 2 + 2 * 20, 2 + 2]),
    # Four pieces of 5 B, three sums each.
    "pieces run at once on a core each": (host_parallel(4), one(), 20, [2 + 2 + 3 * 5, 2 + 2]),
    "as many as there are cores": (host_parallel(4), one(cores=2), 20, [2 + 2 + 3 * 10, 2 + 2]),
    # 24 B at 6 B/s; then 18 B are added, for each of which 3 B are read and written.
    "they share the memory": (host_parallel(4), one(memory_bytes_per_s=6.0), 6, [2 + 4 + 9, 2 + 4]),
    # All three messages have 4/3 B/s until 0.75 s: 1 B is copied, 1 B is to be added, 8 of 9 B are left.
    # The sum and the message share memory (3 + 1 = 4 B/s) until 1.75 s; the last 7 B have all of it.
    "and that with messages in flight":
        (made((add(0, 4), add(1, 4), copy(2, 4, 1, 2)), num_chunks=2, num_hosts=1, chunk_elements=(1, 9)),
         one(memory_bytes_per_s=4.0), 10, [2 + 1.75 + 7 / 4]),
    "a second step adds to what the first left":
        (made((add(0, 4),), (add(1, 4),), num_hosts=1), one(), 20, [2 + 2, 2 + 2 + 20]),
    "part of a transfer may be a copy":
        (made((add(0, 4),), (add(1, 4, 0, 2),), num_hosts=1, num_chunks=2), one(), 40, [2 + 2, 2 + 4 + 20]),
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "topology", "num_bytes", "expected"), TIMES.values(), ids=TIMES)
def test_steps_take_what_they_take_by_hand(schedule, topology, num_bytes, expected):
    simulation = simulate(schedule, topology, num_bytes)
    assert simulation.step_seconds == pytest.approx(expected)
    assert simulation.seconds == pytest.approx(sum(expected))


class TestMessages:
    def test_transfers_between_the_same_two_ranks_are_one_message(self):
        step = tuple(copy(0, 1, c, c + 1) for c in range(4))
        simulation = simulate(made(step, num_chunks=4), one(), 40)
        assert simulation.seconds == 1 + 4
        assert [event.num_bytes for event in simulation.timeline()] == [40]

    def test_message_sent_in_parts_has_their_latencies(self):
        assert simulate(made((copy(0, 1),)), one(), 20, num_messages=5).seconds == 5 + 2

    def test_chunks_may_be_tensors(self):
        step = (copy(0, 1, 0, 1), copy(2, 3, 1, 2))
        simulation = simulate(made(step, num_chunks=2, chunk_elements=(1, 3)), one(), 80)
        assert sorted(event.num_bytes for event in simulation.timeline()) == [20, 60]

    def test_host_only_goes_through_host_memory(self):
        simulation = simulate(made((copy(0, 1),)), one(), 20, peer_access=False)
        assert simulation.seconds == 3 + 2
        assert simulation.bytes_per_resource["node0/memory"] == 40  # written and read


@pytest.mark.parametrize(
    ("order", "expected"), [(1, [(1, 5, 20), (2, 20, 25)]), (-1, [(2, 3, 8), (1, 8, 23)])]
)
def test_sums_of_one_rank_follow_one_another_in_the_listed_order(order, expected):
    # They share the link: rank 2's 10 B arrive at 3 s, rank 1's 30 B at 5 s. Sums begin while others send.
    step = (add(1, 0, 1, 2), add(2, 0, 0, 1))[::order]
    simulation = simulate(made(step, num_chunks=2, chunk_elements=(1, 3)), one(), 40)
    assert [(e.source, e.start_s, e.end_s) for e in simulation.timeline() if e.kind == "reduce"] == expected
    assert simulation.reduce_seconds == expected[-1][-1] - 5


def test_gpu_that_sums_needs_a_rate():
    gpus = [replace(d, reduce_bytes_per_s=None) if d.kind == "gpu" else d for d in machine().devices]
    with pytest.raises(TopologyError, match="gpu 'gpu1' has to sum; give it 'reduce_bytes_per_s'"):
        simulate(made((add(0, 1),)), Topology("one", replace(machine(), devices=tuple(gpus))), 20)


class TestNodes:
    @pytest.mark.parametrize(("ranks_per_host", "summing"), [(2, {0, 1}), (None, {0})])
    def test_each_host_sums_in_the_memory_of_its_node(self, ranks_per_host, summing):
        simulation = simulate(host_serial(4, ranks_per_host), cluster(2, 2), 20)
        used = {name for name in simulation.bytes_per_resource if name.endswith("memory")}
        assert used == {f"node{node}/memory" for node in summing}

    def test_hosts_have_to_be_where_their_ranks_are(self):
        schedule = host_serial(4, ranks_per_host=2)
        with pytest.raises(
            TopologyError, match="rank 2 adds into host 1, the memory of node 1, but is on node 0"
        ):
            simulate(schedule, cluster(2, 4), 20)
        places = [(0, "gpu0"), (0, "gpu1"), (1, "gpu0"), (1, "gpu1")]
        assert simulate(schedule, cluster(2, 4), 20, places=places).seconds > 0
        with pytest.raises(TopologyError, match="2 host memories are summed in, one a node, but there are 1"):
            simulate(schedule, one(), 20)
