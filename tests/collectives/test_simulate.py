"""What a step takes, by hand; what a simulation of a schedule reports and refuses, and its laws."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.hierarchical import hierarchical
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners, star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps
from scaling.collectives.simulate import simulate
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import add, copy, made_of
from topologies import schema
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


NUM_BYTES = 1e6

load = cache(schema.load)


class TestResults:
    def test_every_byte_is_counted_on_every_link(self):
        simulation = simulate(ring(4), one(), 40)
        assert simulation.bytes_per_resource == pytest.approx(
            {f"node0/link{i}{side}": 60 for i in range(4) for side in "<>"}
            | {f"node0/gpu{i}/sums": 30 for i in range(4)}
        )

    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_messages_carry_the_bytes_that_the_verifier_counts(self, name):
        one_schedule = schedule(name, 4)
        verification = verify(one_schedule)
        simulation = simulate(one_schedule, one(), NUM_BYTES)
        transfers = [event for event in simulation.timeline() if event.kind == "transfer"]
        ratios = verification.sent_ratio_per_rank + verification.sent_ratio_per_host
        sent = np.bincount([e.source for e in transfers], [e.num_bytes for e in transfers], len(ratios))
        assert sent == pytest.approx([float(ratio) * NUM_BYTES for ratio in ratios])
        assert len(transfers) == verification.num_messages

    def test_busiest_resource_and_how_busy(self):
        simulation = simulate(star(3), one(), 20)
        assert simulation.busiest_resource == "node0/gpu0/sums"
        assert simulation.utilisation_ratio == pytest.approx(20 / (2 * 3 + 2 * 10 + 2 * 3))

    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_timeline_ends_with_the_collective_and_stays_within_its_steps(self, name):
        simulation = simulate(schedule(name, 4), one(), NUM_BYTES)
        begins = np.concatenate([[0], np.cumsum(simulation.step_seconds)])
        events = list(simulation.timeline())
        for event in events:
            assert begins[event.step] <= event.start_s <= event.end_s <= begins[event.step + 1] * (1 + 1e-9)
        assert max(event.end_s for event in events) == pytest.approx(simulation.seconds)

    def test_no_steps_take_no_time(self):
        nothing = simulate(ring(1), one(), 20)
        assert (nothing.seconds, nothing.busiest_resource, nothing.utilisation_ratio) == (0, None, 0)


def test_places_further_apart_take_longer():
    cluster, far = load("hgx-h200-x2-10gbe"), [(0, "gpu0"), (1, "gpu1")]
    near = simulate(tree(2), cluster, NUM_BYTES)
    assert simulate(tree(2), cluster, NUM_BYTES, places=far).seconds > near.seconds


@pytest.mark.parametrize(("n", "num_bytes", "how", "error", "message"), [
    (2, 20, {"places": [(0, "gpu0")]}, ScheduleError, "ring: 1 places for 2 ranks"),
    *((2, 20, {"places": [(0, "gpu0"), place]}, TopologyError, "no place")
      for place in ((1, "gpu0"), (0, "gpu9"), (-1, "gpu0"))),
    (2, -1, {}, ScheduleError, "-1 bytes; allowed are 0 and more"),
    (5, 20, {}, TopologyError, "5 ranks, but 4 places"),
])  # fmt: skip
def test_places_and_counts_are_checked(n, num_bytes, how, error, message):
    with pytest.raises(error, match=message):
        simulate(ring(n), one(), num_bytes, **how)


NUM_BYTES_LAWS = 50e6
SYMMETRIC = "hgx-h200-4"
MACHINES = [("dual-k80", True), ("dgx1-v100", True), ("pcie-8", False), ("hgx-h200-x2-10gbe", True)]


def num_ranks(topology):
    """All of one machine; of a cluster those of two."""
    gpus = topology.num_gpus // topology.num_nodes * min(topology.num_nodes, 2)
    return gpus or topology.machine.of_kind("cpu")[0].cores


def seconds_on(topology, name, num_bytes=NUM_BYTES_LAWS, **rest):
    return simulate(schedule(name, num_ranks(topology)), topology, num_bytes, **rest).seconds


def with_link(topology, link_id, **changes):
    links = tuple(replace(x, **changes) if x.id == link_id else x for x in topology.machine.links)
    return replace(topology, machine=replace(topology.machine, links=links))


def halved(topology, link_id):
    (link,) = [link for link in topology.machine.links if link.id == link_id]
    back = None if link.back_bytes_per_s is None else link.back_bytes_per_s / 2
    half = link.bandwidth_bytes_per_s / 2
    return with_link(topology, link_id, bandwidth_bytes_per_s=half, back_bytes_per_s=back)


def links_used(topology, simulation):
    """Link id -> seconds that its busier direction takes at full capacity, longest first."""
    ids = {link.id for link in topology.machine.links}
    busy_s = {}
    for resource, num_bytes in simulation.bytes_per_resource.items():
        link_id = resource.partition("/")[2].rstrip("<>")
        if link_id in ids:
            seconds = num_bytes / topology.capacity_bytes_per_s(resource)
            busy_s[link_id] = max(seconds, busy_s.get(link_id, 0.0))
    return sorted(busy_s, key=lambda link_id: -busy_s[link_id])


class TestLaws:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", COLLECTIVES)
    @pytest.mark.parametrize(("machine", "peer_access"), MACHINES)
    def test_more_bytes_never_take_less(self, name, machine, peer_access):
        sizes = (0, 1e3, 1e6, 1e9)
        seconds = [seconds_on(load(machine), name, size, peer_access=peer_access) for size in sizes]
        assert all(less <= more for less, more in pairwise(seconds))

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("name", COLLECTIVES)
    @pytest.mark.parametrize("peer_access", [True, False])
    def test_half_of_the_busiest_links_bandwidth_costs_time(self, name, peer_access):
        topology = load(SYMMETRIC)
        simulation = simulate(schedule(name, 4), topology, NUM_BYTES_LAWS, peer_access=peer_access)
        slower = halved(topology, links_used(topology, simulation)[0])
        assert seconds_on(slower, name, peer_access=peer_access) > simulation.seconds

    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_renamed_ranks_on_a_symmetric_machine_change_nothing(self, name):
        topology = load(SYMMETRIC)
        renamed = [topology.ranks(4)[i] for i in (2, 0, 3, 1)]
        expected = pytest.approx(seconds_on(topology, name), rel=1e-12)
        assert seconds_on(topology, name, places=renamed) == expected

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("machine", schema.shipped())
    @pytest.mark.parametrize("name", ["ring", "host_parallel_by_8"])
    def test_change_of_a_used_link_changes_the_time(self, machine, name):
        topology = load(machine)
        simulation = simulate(schedule(name, num_ranks(topology)), topology, NUM_BYTES_LAWS)
        used = links_used(topology, simulation)
        assert used or machine == "cpu-2"  # its ranks share one memory
        for link_id in used:
            # A latency of one second: routes are chosen by bandwidth, so all messages still pass the link.
            assert seconds_on(with_link(topology, link_id, latency_s=1.0), name) > simulation.seconds + 0.9
        if topology.network is not None:
            bandwidth = topology.network.bandwidth_bytes_per_s / 2
            slow = replace(topology, network=replace(topology.network, bandwidth_bytes_per_s=bandwidth))
            assert seconds_on(slow, name) > simulation.seconds
        elif used:
            assert seconds_on(halved(topology, used[0]), name) != simulation.seconds

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("machine", schema.shipped())
    @pytest.mark.parametrize("name", ["ring", "tree", "sharded_owners", "host_serial"])
    def test_nothing_passes_more_bytes_than_it_can(self, machine, name):
        topology = load(machine)
        simulation = simulate(schedule(name, num_ranks(topology)), topology, NUM_BYTES_LAWS)
        assert simulation.seconds > 0
        assert 0 < simulation.utilisation_ratio <= 1 + 1e-9


def eager_hierarchical(num_hosts, g, intra):
    """The schedule as a tuple, stage after stage."""
    n = num_hosts * g
    machines = [range(first, first + g) for first in range(0, n, g)]
    if intra == "leader":
        levels = tree(g).steps
        up = side_by_side(placed(levels[: len(levels) // 2], ranks, width=num_hosts) for ranks in machines)
        return (*up, *placed(ring(num_hosts).steps, range(0, n, g)), *mirrored(up))
    inside = side_by_side(placed(ring(g).steps, ranks, width=num_hosts) for ranks in machines)
    across = side_by_side(
        placed(ring(num_hosts).steps, range(local, n, g), first_chunk=(local + 1) % g * num_hosts)
        for local in range(g)
    )
    return (*inside[: g - 1], *across, *inside[g - 1 :])


class TestKinds:
    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_steps_of_one_kind_differ_in_their_chunks_only(self, name):
        for world_size in [*range(1, 17), 24, 32]:
            one_schedule = schedule(name, world_size)
            if isinstance(one_schedule.steps, LazySteps):
                seen = {}
                for index, step in enumerate(one_schedule.steps):
                    moves = [(t.source, t.target, t.stop - t.start, t.operation) for t in step]
                    assert seen.setdefault(one_schedule.kind(index), moves) == moves

    @pytest.mark.parametrize("name", ["ring", "xring", "hierarchical", "hierarchical_leader"])
    def test_lazy_steps_cost_what_they_cost_as_a_tuple(self, name):
        lazy = schedule(name, 16)
        assert isinstance(lazy.steps, LazySteps)
        eager = replace(lazy, steps=tuple(lazy.steps))
        simulated, expected = (
            simulate(one, load("hgx-h200-x2-10gbe"), NUM_BYTES_LAWS) for one in (lazy, eager)
        )
        assert simulated.step_seconds == expected.step_seconds
        assert simulated.bytes_per_resource == expected.bytes_per_resource

    @pytest.mark.parametrize("intra", ["ring", "leader"])
    @pytest.mark.parametrize(("num_hosts", "g"), [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (5, 3), (2, 8)])
    def test_lazy_hierarchical_equals_its_stages_in_a_row(self, num_hosts, g, intra):
        assert hierarchical(num_hosts * g, g, intra).steps == eager_hierarchical(num_hosts, g, intra)

    def test_kinds_are_not_used_where_chunks_are_tensors(self):
        uneven = replace(ring(3), chunk_elements=(1, 2, 9))
        as_tuple = replace(uneven, steps=tuple(uneven.steps))
        lazy, eager = (simulate(one, load(SYMMETRIC), NUM_BYTES_LAWS) for one in (uneven, as_tuple))
        assert lazy.step_seconds == eager.step_seconds

    def test_steps_of_a_tuple_that_are_alike_are_priced_once(self):
        as_tuple = replace(ring(6), steps=tuple(ring(6).steps))
        assert len(simulate(as_tuple, load("dgx1-v100"), 6).prices) == 2
        assert len(simulate(sharded_owners(3, (5, 4)), load(SYMMETRIC), 9).prices) == 2
