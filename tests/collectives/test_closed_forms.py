"""What collectives count, and take on uniform machines, is what the formulas say."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction

import pytest

from scaling.collectives.halving_doubling import halving_doubling, recursive_doubling
from scaling.collectives.hierarchical import hierarchical
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import COLLECTIVES, FCN_R_TENSORS
from scaling.collectives.owners import assign_owners, sharded_owners, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.collectives.tree import double_binary_tree, tree
from scaling.collectives.verify import verify
from tests.collectives.closed_forms import (
    Costs,
    HostCosts,
    double_binary_tree_bounds_s,
    halving_doubling_s,
    hierarchical_s,
    host_parallel_s,
    host_serial_s,
    recursive_doubling_s,
    ring_s,
    sharded_owners_bounds_s,
    star_s,
    stripes_s,
    tree_s,
)
from topologies.model import Device, Link, Machine, Network, Topology

COSTS = Costs(latency_s=7e-6, send_s_per_byte=1 / 8e9, add_s_per_byte=1 / 90e9)
LATENCY_BOUND = Costs(latency_s=1e-3, send_s_per_byte=1 / 8e9, add_s_per_byte=1 / 90e9)
NUM_BYTES = 56_823_848
EXACT = 1e-9
WORLD_SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 31, 32]


def log2(m):
    return m.bit_length() - 1


def depth(n):
    return (n - 1).bit_length()


def by_doubling(n):
    m = 2 ** log2(n)
    sent = [log2(m) + (r < n - m) for r in range(m)] + [1] * (n - m)
    return log2(m) + 2 * (n > m), sent, sent


def by_halving(n):
    m = 2 ** log2(n)
    extra, core = n - m, Fraction(2 * (m - 1), m)
    messages = [2 * log2(m) + (r < extra) for r in range(m)] + [1] * extra
    return 2 * log2(m) + 2 * (extra > 0), messages, [core + (r < extra) for r in range(m)] + [1] * extra


def by_blocks(n):
    blocks = [2**bit for bit in reversed(range(n.bit_length())) if n >> bit & 1]
    ratios, messages = [], []
    for i, b in enumerate(blocks):
        has_larger, has_smaller = i > 0, i + 1 < len(blocks)
        ratios += [Fraction(2 * (b - 1) + has_larger + has_smaller, b)] * b
        up = blocks[i - 1] // b if has_larger else 0
        messages += [2 * log2(b) + up + has_smaller] * b
    return 2 * log2(blocks[0]) + 2 * (len(blocks) > 1), messages, ratios


def by_tree(n):
    lowest = [rank & -rank if rank else 2 ** depth(n) for rank in range(n)]
    levels = [[2**d for d in range(depth(n)) if 2**d < lowest[r] and r + 2**d < n] for r in range(n)]
    sent = [len(children) + (rank > 0) for rank, children in enumerate(levels)]
    assert sent[0] == depth(n)
    return 2 * depth(n), sent, sent


def by_owners(n):
    owned = [0] * n
    for owner, size in zip(assign_owners(FCN_R_TENSORS, n), FCN_R_TENSORS, strict=True):
        owned[owner] += size
    owners, total = {rank for rank in range(n) if owned[rank]}, sum(FCN_R_TENSORS)
    messages = [len(owners - {rank}) + (n - 1) * (rank in owners) for rank in range(n)]
    return 2 * (n > 1), messages, [Fraction(total - o + (n - 1) * o, total) if n > 1 else 0 for o in owned]


def each(n, steps, messages=None):
    """Every rank sends 2(n-1)/n of the buffer."""
    return steps, None if messages is None else [messages] * n, [Fraction(2 * (n - 1), n)] * n


COUNTS: dict[str, Callable[[int], tuple[int, list[int] | None, Iterable[Fraction | int] | None]]] = {
    "ring": lambda n: each(n, 2 * (n - 1), 2 * (n - 1)),
    "xring": lambda n: each(n, 2 * (n - 1), 2 * (n - 1)),
    "stripes": lambda n: each(n, 2 * (n > 1), 2 * (n - 1)),
    "star": lambda n: (2 * (n - 1), [n - 1] + [1] * (n - 1), [n - 1] + [1] * (n - 1)),
    "sharded_owners": by_owners,
    "recursive_doubling": by_doubling,
    "halving_doubling": by_halving,
    "binary_blocks": by_blocks,
    "tree": by_tree,
    "mxnet_tree": lambda n: (2 * depth(n), None, None),
    "tf_hierarchical_copy": lambda n: (
        each(n, 2 if n == 2 else 4) if n % 2 == 0 else (4 * (n > 1), None, None)
    ),
    "host_serial": lambda n: (2, [1] * n, [1] * n),
    "host_parallel": lambda n: (2, [1] * n, [1] * n),
}
"""Steps, and of each rank messages and bytes sent, as the docstrings have them; None: not of a rank alone."""
ALL_SEND_TWICE = {"tree", "mxnet_tree", "tf_hierarchical_copy", "stripes", "ring"}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_docstring(name, verified):
    for n in range(1, 65):
        verification, (num_steps, messages, ratios) = verified(name, n), COUNTS[name](n)
        assert verification.num_steps == num_steps
        assert messages is None or verification.messages_per_rank == messages
        assert ratios is None or verification.sent_ratio_per_rank == ratios
        assert name not in ALL_SEND_TWICE or sum(verification.sent_ratio_per_rank) == 2 * (n - 1)


@pytest.mark.parametrize("num_chunks", [2, 8])
def test_counts_of_the_double_binary_tree_are_those_of_the_docstring(num_chunks):
    for n in range(1, 33):
        verification = verify(double_binary_tree(n, num_chunks))
        assert verification.num_steps == (2 * depth(n) + num_chunks // 2 - 1 if n > 1 else 0)
        assert sum(verification.sent_ratio_per_rank) == 2 * (n - 1)
        assert max(verification.sent_ratio_per_rank) <= 2


@pytest.mark.parametrize("collective", [host_serial, host_parallel])
@pytest.mark.parametrize("per_host", [1, 3, 4, 64, None])
def test_counts_of_hosts_are_those_of_the_docstring(collective, per_host):
    for n in (1, 2, 3, 4, 7, 12, 64):
        g = per_host or n
        num_hosts = -(-n // g)
        verification = verify(collective(n, per_host))
        assert verification.num_steps == 2 + 2 * (num_hosts - 1)
        assert verification.messages_per_rank == verification.sent_ratio_per_rank == [1] * n
        ranks_of = [min(g, n - host * g) for host in range(num_hosts)]
        assert verification.messages_per_host == [ranks + 2 * (num_hosts - 1) for ranks in ranks_of]
        ring_ratio = Fraction(2 * (num_hosts - 1), num_hosts)
        assert verification.sent_ratio_per_host == [ranks + ring_ratio for ranks in ranks_of]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_rank_gets_each_contribution_exactly_once_from_1_to_64_ranks(name, verified):
    for world_size in range(1, 65):
        assert len(verified(name, world_size).messages_per_rank) == world_size


def switch(n, costs=COSTS):
    """n GPUs on one switch that never blocks; half of the latency is the links', half the software's."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=1 / costs.add_s_per_byte) for i in range(n)]
    links = tuple(
        Link(f"link{i}", f"gpu{i}", "switch", "nvlink", 1 / costs.send_s_per_byte, costs.latency_s / 4)
        for i in range(n)
    )
    all_gpus = frozenset(gpu.id for gpu in gpus)
    machine = Machine(
        "switch", (*gpus, Device("switch", "nvswitch")), links, (all_gpus,), {"peer": costs.latency_s / 2}
    )
    return Topology("switch", machine)


def host_machine(n, costs):
    """n GPUs, each group of `ranks_per_link` behind a PCIe switch, one CPU and its memory."""
    rank, c = costs.rank, costs.ranks_per_link
    memory_bandwidth = 1 / costs.memory_s_per_byte if costs.memory_s_per_byte else None
    devices = [Device(f"gpu{i}", "gpu") for i in range(n)]
    devices += [Device(f"switch{i}", "pcie_switch") for i in range(n // c)]
    devices += [
        Device("cpu", "cpu", cores=costs.num_cores, reduce_bytes_per_s=1 / rank.add_s_per_byte),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bandwidth),
    ]
    wide = 1e15
    links = [Link(f"g{i}", f"gpu{i}", f"switch{i // c}", "pcie", wide, 0) for i in range(n)]
    links += [
        Link(f"s{i}", f"switch{i}", "cpu", "pcie", 1 / rank.send_s_per_byte, rank.latency_s)
        for i in range(n // c)
    ]
    links.append(Link("bus", "cpu", "memory", "memory", wide, 0))
    return Topology("host machine", Machine("host machine", tuple(devices), tuple(links)))


def cluster(num_hosts, g):
    """Nodes of g GPUs that share one NIC; and what a rank has of it while all of them send."""
    latency_s, bytes_per_s = 20e-6, 3e9
    node = switch(g).machine
    links = (*node.links, Link("nic", "nic", "switch", "pcie", 1e15, latency_s / 4 - COSTS.latency_s / 4))
    node = replace(node, devices=(*node.devices, Device("nic", "nic", gpudirect=True)), links=links)
    network = Network("ethernet", bytes_per_s, latency_s / 2)
    across = Costs(latency_s, g / bytes_per_s, COSTS.add_s_per_byte)
    return Topology("cluster", node, num_hosts, network), across


class TestExact:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("costs", [COSTS, LATENCY_BOUND])
    @pytest.mark.parametrize("n", WORLD_SIZES)
    @pytest.mark.parametrize(("schedule_of", "seconds_of"), [
        (tree, tree_s), (star, star_s), (ring, ring_s), (recursive_doubling, recursive_doubling_s),
        (halving_doubling, halving_doubling_s), (stripes, stripes_s),
    ])  # fmt: skip
    def test_between_gpus(self, schedule_of, seconds_of, n, costs):
        simulated = simulate(schedule_of(n), switch(n, costs), NUM_BYTES).seconds
        assert simulated == pytest.approx(seconds_of(n, NUM_BYTES, costs), rel=EXACT)

    @pytest.mark.parametrize("costs", [
        HostCosts(COSTS, num_cores=64),
        HostCosts(COSTS, ranks_per_link=2, num_cores=3),
        HostCosts(COSTS, num_cores=64, memory_s_per_byte=1 / 20e9),
        HostCosts(COSTS, ranks_per_link=2, num_cores=64, memory_s_per_byte=1 / 100e9),
    ])  # fmt: skip
    @pytest.mark.parametrize("n", [2, 4, 8])
    @pytest.mark.parametrize(
        ("schedule_of", "seconds_of"), [(host_serial, host_serial_s), (host_parallel, host_parallel_s)]
    )
    def test_through_the_host(self, schedule_of, seconds_of, n, costs):
        simulated = simulate(schedule_of(n), host_machine(n, costs), NUM_BYTES).seconds
        assert simulated == pytest.approx(seconds_of(n, NUM_BYTES, costs), rel=EXACT)

    @pytest.mark.parametrize(("num_hosts", "g"), [(1, 4), (3, 1), (2, 4), (4, 3), (8, 8), (512, 8)])
    def test_hierarchical_is_priced_by_four_steps(self, num_hosts, g):
        topology, across = cluster(num_hosts, g)
        simulation = simulate(hierarchical(num_hosts * g, g), topology, NUM_BYTES)
        expected_s = hierarchical_s(num_hosts, g, NUM_BYTES, COSTS, across)
        assert simulation.seconds == pytest.approx(expected_s, rel=EXACT)
        assert len(simulation.step_seconds) == 2 * (g - 1) + 2 * (num_hosts - 1)
        assert len(simulation.prices) == 2 * (g > 1) + 2 * (num_hosts > 1)

    @pytest.mark.parametrize("n", [2, 3, 4, 8])
    def test_owners_of_equal_shares(self, n):
        simulated = simulate(sharded_owners(n, [1000] * 2 * n), switch(n), NUM_BYTES).seconds
        assert simulated == pytest.approx(stripes_s(n, NUM_BYTES, COSTS), rel=EXACT)


class TestBounds:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("n", WORLD_SIZES)
    @pytest.mark.parametrize("tensors", [(1, 2, 3), (784, 2048, 17, 4), (1,), (5,) * 40, (100, 1, 1, 1, 50)])
    def test_sharded_owners(self, n, tensors):
        """Between 2 alpha + 2(n-1) o beta + o gamma and 2 alpha + 2((n-1) o + S) beta + (n-1) o gamma."""
        owned = [0.0] * n
        for owner, size in zip(assign_owners(tensors, n), tensors, strict=True):
            owned[owner] += NUM_BYTES * size / sum(tensors)
        low_s, high_s = sharded_owners_bounds_s(n, owned, COSTS)
        simulated = simulate(sharded_owners(n, tensors), switch(n), NUM_BYTES).seconds
        assert low_s * (1 - EXACT) <= simulated <= high_s * (1 + EXACT)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("costs", [COSTS, LATENCY_BOUND])
    @pytest.mark.parametrize("num_chunks", [2, 8, 64])
    @pytest.mark.parametrize("n", WORLD_SIZES)
    def test_double_binary_tree(self, n, num_chunks, costs):
        """From T alpha + max(T/C, 2(n-1)/n) S beta to T (alpha + 8/C S beta + 2/C S gamma), T the steps."""
        low_s, high_s = double_binary_tree_bounds_s(n, NUM_BYTES, costs, num_chunks)
        schedule = double_binary_tree(n, num_chunks)
        simulated = simulate(schedule, switch(n, costs), NUM_BYTES).seconds
        assert low_s * (1 - EXACT) <= simulated <= high_s * (1 + EXACT)

    @pytest.mark.parametrize("n", [4, 5, 8, 16, 31])
    def test_double_binary_tree_of_many_chunks_takes_two_passes_of_the_buffer_and_a_tenth_at_most(self, n):
        """4 and 5 ranks reach 2 S beta + S gamma; fair shares do not fill every link where more send."""
        no_latency = Costs(0, COSTS.send_s_per_byte, COSTS.add_s_per_byte)
        simulated = simulate(double_binary_tree(n, 2000), switch(n, no_latency), NUM_BYTES).seconds
        passes_s = NUM_BYTES * (2 * no_latency.send_s_per_byte + no_latency.add_s_per_byte)
        assert 0.999 * passes_s <= simulated <= 1.1 * passes_s


def test_examples_by_hand():
    """1 GB at 1 GB/s, no latency, sums for nothing; then, in host memory, 3 sums of 1 s each."""
    costs = Costs(0, 1e-9, 0)
    forms = {ring_s: 1.5, halving_doubling_s: 1.5, tree_s: 4, star_s: 6, recursive_doubling_s: 2}
    assert {form: form(4, 1e9, costs) for form in forms} == pytest.approx(forms)
    assert recursive_doubling_s(5, 1e9, costs) == pytest.approx(4)
    costs = Costs(0, 1e-9, 1e-9)
    assert host_serial_s(4, 1e9, HostCosts(costs)) == pytest.approx(2 + 3)
    assert host_parallel_s(4, 1e9, HostCosts(costs, num_cores=8)) == pytest.approx(2 + 0.75), "four threads"
    assert host_serial_s(4, 1e9, HostCosts(costs, memory_s_per_byte=1e-9)) == pytest.approx(2 * 4 + 9)
