"""What collectives take by formula, on ranks that are all alike: what `simulate` is tested against.

alpha is a message's latency, beta and gamma the seconds to send and to add a byte (`Costs`); n ranks, S
bytes, L = ceil(log2 n), on a switch that never blocks, each rank with a link of one bandwidth in either
direction.

Exact there, for every n (the simulation gives the same up to rounding): `tree_s`, `star_s`, `ring_s`,
`recursive_doubling_s`, `halving_doubling_s`, `stripes_s`, `host_serial_s`, `host_parallel_s`,
`hierarchical_s`. Between two bounds: `sharded_owners_bounds_s`, `double_binary_tree_bounds_s`.

The bounds above rest on one argument: under max-min fairness the last message of a step, from u to v, always
has a full link, that of u or that of v. So a step's bytes flow for no longer than the bytes that u sends and
those that v gets take together.

References: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005): the model, and the binomial tree, recursive doubling
and halving-doubling; P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
workstations", J. Parallel Distrib. Comput. 69 (2009): the ring; P. Sanders, J. Speck, J. L. Träff, "Two-tree
algorithms for full bandwidth broadcast, reduction and scan", Parallel Comput. 35 (2009). The others are
counted from the steps that their modules list.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling.collectives.halving_doubling import power_of_two_below


@dataclass(frozen=True)
class Costs:
    """The three costs, in the order alpha, beta, gamma.

    Attributes:
        latency_s: of a message.
        send_s_per_byte: on a rank's link, in one direction.
        add_s_per_byte: of one addend.
    """

    latency_s: float
    send_s_per_byte: float
    add_s_per_byte: float

    def step_s(self, sent_bytes: float, added_bytes: float = 0.0) -> float:
        """One message, and then a sum: alpha + beta sent + gamma added."""
        return self.latency_s + sent_bytes * self.send_s_per_byte + added_bytes * self.add_s_per_byte


def tree_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Binomial tree, one chunk: 2L(alpha + S beta) + L S gamma."""
    levels = (world_size - 1).bit_length()
    return levels * (costs.step_s(num_bytes, num_bytes) + costs.step_s(num_bytes))


def star_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Star: 2(n-1)(alpha + S beta) + (n-1) S gamma."""
    return (world_size - 1) * (costs.step_s(num_bytes, num_bytes) + costs.step_s(num_bytes))


def ring_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Ring: 2(n-1) alpha + 2(n-1)/n S beta + (n-1)/n S gamma."""
    segment = num_bytes / world_size
    return (world_size - 1) * (costs.step_s(segment, segment) + costs.step_s(segment))


def recursive_doubling_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Recursive doubling: log2 m (alpha + S beta + S gamma), m the largest power of two that is not above n.

    Where n is not m, the extra ranks fold in and out: 2(alpha + S beta) + S gamma more.
    """
    swaps = power_of_two_below(world_size).bit_length() - 1
    return swaps * costs.step_s(num_bytes, num_bytes) + _folding_s(world_size, num_bytes, costs)


def halving_doubling_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Halving and doubling, extra ranks folded: 2 log2 m alpha + 2(m-1)/m S beta + (m-1)/m S gamma.

    m and the folding as for `recursive_doubling_s`.
    """
    m = power_of_two_below(world_size)
    halves = [num_bytes / 2**level for level in range(1, m.bit_length())]
    steps_s = sum(costs.step_s(half, half) + costs.step_s(half) for half in halves)
    return steps_s + _folding_s(world_size, num_bytes, costs)


def _folding_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    if world_size == power_of_two_below(world_size):
        return 0.0
    return costs.step_s(num_bytes, num_bytes) + costs.step_s(num_bytes)


def stripes_s(world_size: int, num_bytes: float, costs: Costs) -> float:
    """Stripes: 2 alpha + 2(n-1)/n S beta + (n-1)/n S gamma."""
    if world_size == 1:
        return 0.0
    others = num_bytes * (world_size - 1) / world_size
    return costs.step_s(others, others) + costs.step_s(others)


def sharded_owners_bounds_s(world_size: int, owned_bytes: list[float], costs: Costs) -> tuple[float, float]:
    """Sharded owners (a parameter server on the ranks), o the largest and S the sum of `owned_bytes`.

    Below: 2 alpha + 2(n-1) o beta + o gamma, as the largest owner's link carries n-1 shares in and out, and
    the last share to arrive is still to be added. Above: 2 alpha + 2((n-1) o + S) beta + (n-1) o gamma.
    Shares that are equal give 2 alpha + 2(n-1) o beta + (n-1) o gamma.
    """
    if world_size == 1:
        return 0.0, 0.0
    largest, total = max(owned_bytes), sum(owned_bytes)
    through = (world_size - 1) * largest
    low_s = costs.step_s(through, largest) + costs.step_s(through)
    high_s = costs.step_s(through + total, through) + costs.step_s(through + total)
    return low_s, high_s


def double_binary_tree_bounds_s(
    world_size: int, num_bytes: float, costs: Costs, num_chunks: int
) -> tuple[float, float]:
    """Two pipelined trees in C chunks: 2L + C/2 - 1 steps.

    With T steps. Below: in each some rank sends a chunk, and all ranks together send 2(n-1) S: T alpha +
    max(T/C, 2(n-1)/n) S beta. Above: in a step a rank gets at most 4 chunks, sends at most 4 and adds at most
    2: T (alpha + 8/C S beta + 2/C S gamma). With many chunks that is 2 S beta + S gamma and,
    where fair shares leave links partly idle, up to a tenth more.
    """
    if world_size == 1:
        return 0.0, 0.0
    steps = 2 * (world_size - 1).bit_length() + num_chunks // 2 - 1
    chunk = num_bytes / num_chunks
    sent = max(steps * chunk, 2 * num_bytes * (world_size - 1) / world_size)
    low_s = steps * costs.latency_s + sent * costs.send_s_per_byte
    return low_s, steps * costs.step_s(8 * chunk, 2 * chunk)


@dataclass(frozen=True)
class HostCosts:
    """The costs of sums in host memory.

    Attributes:
        rank: the way between a rank and host memory; `add_s_per_byte` is one core's.
        ranks_per_link: that share one way to host memory; the ranks are a multiple of it.
        memory_s_per_byte: to read or write a byte of host memory.
        num_cores: of the CPU.
    """

    rank: Costs
    ranks_per_link: int = 1
    memory_s_per_byte: float = 0.0
    num_cores: int = 1

    def staging_s(self, world_size: int, num_bytes: float) -> float:
        """All ranks at once, one way: alpha + S max(c beta, n mu), mu the memory's cost of a byte."""
        on_link = self.ranks_per_link * self.rank.send_s_per_byte
        return self.rank.latency_s + num_bytes * max(on_link, world_size * self.memory_s_per_byte)


def host_serial_s(world_size: int, num_bytes: float, costs: HostCosts, num_threads: int = 1) -> float:
    """Host, one thread: up, (n-1) S max(gamma, 3 mu), down; the first add is a copy, others move 3 bytes."""
    add_s_per_byte = max(costs.rank.add_s_per_byte / num_threads, 3 * costs.memory_s_per_byte)
    sums_s = (world_size - 1) * num_bytes * add_s_per_byte
    return 2 * costs.staging_s(world_size, num_bytes) + sums_s


def host_parallel_s(world_size: int, num_bytes: float, costs: HostCosts) -> float:
    """Host, one piece a rank: up, (n-1) S max(gamma/p, 3 mu), down; p = min(n, cores) threads."""
    return host_serial_s(world_size, num_bytes, costs, min(world_size, costs.num_cores))


def hierarchical_s(
    num_hosts: int, ranks_per_host: int, num_bytes: float, inside: Costs, across: Costs
) -> float:
    """Rings inside machines, across, and inside: the ring of g ranks on S and that of H ranks on S/g.

    `across` is what one rank has of the network while all g ranks of its machine send.
    """
    share = num_bytes / ranks_per_host
    return ring_s(ranks_per_host, num_bytes, inside) + ring_s(num_hosts, share, across)
