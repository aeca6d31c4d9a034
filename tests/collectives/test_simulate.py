"""What a simulation reports and refuses, and its laws."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from scaling.collectives.composition import mirrored, placed, side_by_side
from scaling.collectives.hierarchical import hierarchical
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners, star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps
from scaling.collectives.simulate import simulate
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from topologies import schema
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Topology

NUM_BYTES = 1e6

load = cache(schema.load)


def one(g=4):
    """g GPUs with 10 B/s each to a switch, host memory behind it; a GPU sums at 2 B/s, a core at 1 B/s."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=2.0) for i in range(g)]
    host = [Device("cpu", "cpu", cores=4, reduce_bytes_per_s=1.0), Device("memory", "host_memory")]
    links = [Link(f"link{i}", gpu.id, "cpu", "pcie", 10.0, 0.0) for i, gpu in enumerate(gpus)]
    links.append(Link("bus", "cpu", "memory", "memory", 1e9, 0.0))
    peers = frozenset(gpu.id for gpu in gpus)
    return Topology("one", Machine("one", (*gpus, *host), tuple(links), (peers,), {"peer": 1.0}))


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

    def test_one_rank_needs_nothing(self):
        simulation = simulate(ring(1), one(), 20)
        assert simulation.seconds == 0
        assert simulation.busiest_resource is None
        assert simulation.utilisation_ratio == 0
        assert "0 steps" in simulation.describe()

    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_timeline_ends_with_the_collective_and_stays_within_its_steps(self, name):
        simulation = simulate(schedule(name, 4), one(), NUM_BYTES)
        begins = np.concatenate([[0], np.cumsum(simulation.step_seconds)])
        events = list(simulation.timeline())
        for event in events:
            assert begins[event.step] <= event.start_s <= event.end_s <= begins[event.step + 1] * (1 + 1e-9)
        assert max(event.end_s for event in events) == pytest.approx(simulation.seconds)

    def test_description_names_time_steps_and_the_busiest_resource(self):
        text = simulate(ring(4), one(), 4e6).describe()
        assert text.startswith("ring, 4 ranks on one: 4 MB in ")
        assert "6 steps (2 of them different)" in text
        assert "busiest: node0/gpu0/sums, 3 MB at 2e-09 GB/s, 71% of the time" in text


class TestArguments:
    def test_places(self):
        cluster, far = load("hgx-h200-x2-10gbe"), [(0, "gpu0"), (1, "gpu1")]
        near = simulate(tree(2), cluster, NUM_BYTES)
        assert simulate(tree(2), cluster, NUM_BYTES, places=far).seconds > near.seconds

    def test_as_many_places_as_ranks(self):
        with pytest.raises(ScheduleError, match="ring: 1 places for 2 ranks"):
            simulate(ring(2), one(), 20, places=[(0, "gpu0")])

    @pytest.mark.parametrize("place", [(1, "gpu0"), (0, "gpu9"), (-1, "gpu0")])
    def test_places_have_to_exist(self, place):
        with pytest.raises(TopologyError, match="no place"):
            simulate(ring(2), one(), 20, places=[(0, "gpu0"), place])

    @pytest.mark.parametrize(("num_bytes", "num_messages"), [(-1, 1), (1, 0)])
    def test_counts_are_checked(self, num_bytes, num_messages):
        with pytest.raises(ScheduleError, match="allowed are 0 and more bytes, 1 and more messages"):
            simulate(ring(2), one(), num_bytes, num_messages=num_messages)

    def test_too_many_ranks(self):
        with pytest.raises(TopologyError, match="5 ranks, but 4 places"):
            simulate(ring(5), one(), 20)


NUM_BYTES_SIMULATE_LAWS = 50e6
SYMMETRIC = "hgx-h200-4"
MACHINES = [("dual-k80", True), ("dgx1-v100", True), ("pcie-8", False), ("hgx-h200-x2-10gbe", True)]


def num_ranks(topology):
    """All of one machine; of a cluster those of two."""
    gpus = topology.num_gpus // topology.num_nodes * min(topology.num_nodes, 2)
    return gpus or topology.machine.of_kind("cpu")[0].cores


def seconds_on(topology, name, num_bytes=NUM_BYTES_SIMULATE_LAWS, **rest):
    return simulate(schedule(name, num_ranks(topology)), topology, num_bytes, **rest).seconds


def with_link(topology, link_id, **changes):
    """The topology with another link of that id."""
    links = tuple(replace(x, **changes) if x.id == link_id else x for x in topology.machine.links)
    return replace(topology, machine=replace(topology.machine, links=links))


def halved(topology, link_id):
    """The topology with half of that link's bandwidth."""
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
        simulation = simulate(schedule(name, 4), topology, NUM_BYTES_SIMULATE_LAWS, peer_access=peer_access)
        slower = halved(topology, links_used(topology, simulation)[0])
        assert seconds_on(slower, name, peer_access=peer_access) > simulation.seconds

    @pytest.mark.parametrize("name", COLLECTIVES)
    def test_renamed_ranks_on_a_symmetric_machine_change_nothing(self, name):
        topology = load(SYMMETRIC)
        places = topology.ranks(4)
        renamed = [places[i] for i in (2, 0, 3, 1)]
        expected = pytest.approx(seconds_on(topology, name), rel=1e-12)
        assert seconds_on(topology, name, places=renamed) == expected

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("machine", schema.shipped())
    @pytest.mark.parametrize("name", ["ring", "host_parallel_by_8"])
    def test_change_of_a_used_link_changes_the_time(self, machine, name):
        topology = load(machine)
        simulation = simulate(schedule(name, num_ranks(topology)), topology, NUM_BYTES_SIMULATE_LAWS)
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
        simulation = simulate(schedule(name, num_ranks(topology)), topology, NUM_BYTES_SIMULATE_LAWS)
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
        expected = simulate(eager, load("hgx-h200-x2-10gbe"), NUM_BYTES_SIMULATE_LAWS)
        simulated = simulate(lazy, load("hgx-h200-x2-10gbe"), NUM_BYTES_SIMULATE_LAWS)
        assert simulated.step_seconds == expected.step_seconds
        assert simulated.bytes_per_resource == expected.bytes_per_resource

    @pytest.mark.parametrize("intra", ["ring", "leader"])
    @pytest.mark.parametrize(("num_hosts", "g"), [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (5, 3), (2, 8)])
    def test_lazy_hierarchical_equals_its_stages_in_a_row(self, num_hosts, g, intra):
        assert hierarchical(num_hosts * g, g, intra).steps == eager_hierarchical(num_hosts, g, intra)

    def test_kinds_are_not_used_where_chunks_are_tensors(self):
        uneven = replace(ring(3), chunk_elements=(1, 2, 9))
        steps = simulate(uneven, load(SYMMETRIC), NUM_BYTES_SIMULATE_LAWS).step_seconds
        assert (
            steps
            == simulate(
                replace(uneven, steps=tuple(uneven.steps)), load(SYMMETRIC), NUM_BYTES_SIMULATE_LAWS
            ).step_seconds
        )

    def test_steps_of_a_tuple_that_are_alike_are_priced_once(self):
        assert (
            simulate(replace(ring(6), steps=tuple(ring(6).steps)), load("dgx1-v100"), 6).num_priced_steps == 2
        )
        assert simulate(sharded_owners(3, (5, 4)), load(SYMMETRIC), 9).num_priced_steps == 2
