"""What a simulation reports, and what it refuses; its laws are in test_simulate_laws.py."""

import numpy as np
import pytest

from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Topology
from topologies.schema import load

NUM_BYTES = 1e6


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
