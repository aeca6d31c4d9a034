"""Schedules made for a machine: they deliver, they reach the bound where trees can, they lose to no other."""

import functools
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from scaling.collectives import link_bound
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.link_bound import PairLinks, all_reduce_bound
from scaling.collectives.owners import stripes
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.collectives.synthesis import NAME, link_seconds, packings, synthesize
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import run_on_tensors
from tests.counting import Calls, counted
from topologies.machine import Device, Link, Machine
from topologies.model import Topology
from topologies.schema import load

SIZES = (4_096, 1 << 20, 64 << 20)
GPU_LINK, SUM = 10e9, 100e9


def on_switches(boards, uplink=5e9, slow=None, slow_link=2e9):
    """GPUs behind the switches that `boards` gives, which are on one CPU; `slow` has a slow link."""
    numbers = sorted(set(boards))
    devices = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=SUM) for i in range(len(boards))]
    devices += [Device(f"switch{b}", "pcie_switch") for b in numbers]
    devices += [Device("cpu", "cpu", cores=4, reduce_bytes_per_s=4e9)]
    devices += [Device("memory", "host_memory", bandwidth_bytes_per_s=100e9)]
    links = [
        Link(f"g{i}", f"gpu{i}", f"switch{b}", "pcie", slow_link if i == slow else GPU_LINK, 1e-7)
        for i, b in enumerate(boards)
    ]
    links += [Link(f"s{b}", f"switch{b}", "cpu", "pcie", uplink, 1e-7) for b in numbers]
    links.append(Link("bus", "cpu", "memory", "memory", 100e9, 1e-7, duplex=False))
    peers = (frozenset(f"gpu{i}" for i in range(len(boards))),)
    return Topology("made", Machine("made", tuple(devices), tuple(links), peers, {"peer": 5e-6}))


MACHINES = {
    "dual-k80": load("dual-k80"),
    "pcie-8": load("pcie-8"),
    "pcie-8-no-peer-access": load("pcie-8-no-peer-access"),
    "two switches": on_switches((0, 0, 0, 1, 1, 1)),
    "two switches, ranks in turn": on_switches((0, 1, 0, 1, 0, 1)),
    "uneven": on_switches((0, 0, 0, 1, 0), slow=1),
}


@functools.cache
def made(name, size=SIZES[-1]):
    return synthesize(MACHINES[name], MACHINES[name].num_gpus, size)


@pytest.mark.quality
@pytest.mark.parametrize("name", MACHINES)
class TestOnMachines:
    @pytest.mark.sampled(18)
    @pytest.mark.parametrize("size", SIZES)
    def test_it_is_never_behind_the_best_built_in_one(self, name, size):
        synthesis = made(name, size)
        seconds = simulate(synthesis.schedule, MACHINES[name], size).seconds
        assert {"ring", "tree", "stripes"} <= set(synthesis.built_in_s)
        assert seconds == synthesis.simulation.seconds <= min(synthesis.built_in_s.values()) * (1 + 1e-9)
        assert synthesis.is_built_in == (synthesis.schedule.name != NAME)
        assert synthesis.num_tried > 2

    def test_it_delivers_the_sum(self, name):
        schedule = made(name).schedule
        verify(schedule)
        generator = torch.Generator().manual_seed(3)
        ranks = [torch.randint(-9, 9, (1_003,), generator=generator) for _ in range(schedule.world_size)]
        for result in run_on_tensors(schedule, ranks):
            assert torch.equal(result, torch.stack(ranks).sum(0))

    def test_links_take_no_less_than_the_bound(self, name):
        machine, synthesis = MACHINES[name], made(name)
        assert synthesis.bound.is_exact
        assert synthesis.link_s >= synthesis.bound_s * (1 - 1e-6)
        assert synthesis.simulation.seconds >= synthesis.link_s * (1 - 1e-9)
        links = PairLinks.of(machine, machine.ranks(machine.num_gpus))
        for built_in in (ring, halving_doubling, stripes):
            assert link_seconds(built_in(machine.num_gpus), links, SIZES[-1]) >= synthesis.bound_s * (
                1 - 1e-6
            )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["dual-k80", "pcie-8", "pcie-8-no-peer-access"])
def test_bound_is_met_where_all_ranks_are_bound_alike(name):
    assert made(name).meets_bound


@pytest.mark.parametrize("name", ["two switches", "two switches, ranks in turn"])
def test_an_uplink_is_idle_only_while_the_last_chunks_are_handed_on(name):
    synthesis = made(name)
    assert synthesis.schedule.name == NAME
    assert not synthesis.meets_bound
    assert synthesis.link_s < 1.1 * synthesis.bound_s
    if name == "two switches, ranks in turn":  # these gain most
        assert synthesis.simulation.seconds < 0.9 * min(synthesis.built_in_s.values())
        assert synthesis.simulation.seconds < 0.5 * synthesis.built_in_s["ring"]


class TestBound:
    @pytest.mark.parametrize(("boards", "uplink", "seconds"), [
        # Of equal ranks on one switch it is that of the ring; one rank needs no time.
        *(((0,) * n, 5e9, 2 * (n - 1) / n / GPU_LINK) for n in (1, 2, 3, 5, 8)),
        # Two boards are bound by their uplink, or by the links of ranks.
        *(((0, 0, 1, 1), *bound) for bound in ((1e9, 1 / 1e9), (5e9, 1 / 5e9), (8e9, 1.5 / GPU_LINK))),
    ])  # fmt: skip
    def test_it_is_that_of_the_links_that_bind(self, boards, uplink, seconds):
        machine = on_switches(boards, uplink)
        bound = all_reduce_bound(PairLinks.of(machine, machine.ranks(len(boards))))
        assert bound.is_exact
        assert bound.s_per_byte == pytest.approx(seconds)

    @pytest.mark.parametrize("boards", [(0, 0, 1, 1), (0, 1, 0, 1, 1), (0, 0, 0, 0, 1), (0, 1, 2, 0, 1, 2)])
    @pytest.mark.parametrize("uplink", [1e9, 4e9, 20e9])
    def test_it_is_between_what_every_cut_needs_and_two_phases_of_equal_parts(self, boards, uplink):
        """All of the buffer crosses every cut both ways; a gather of equal parts takes its worst cut."""
        machine, n = on_switches(boards, uplink, slow=0), len(boards)
        bound = all_reduce_bound(PairLinks.of(machine, machine.ranks(n)))
        cuts = [members for size in range(1, n) for members in combinations(range(n), size)]
        rates = [(len(members), leaving(boards, uplink, members)) for members in cuts]
        assert bound.is_exact
        assert bound.s_per_byte >= max(1 / rate for _, rate in rates) * (1 - 1e-4)
        assert bound.s_per_byte <= 2 * max(size / n / rate for size, rate in rates) * (1 + 1e-4)

    def test_direction_that_is_slower_counts_with_its_own_rate(self):
        machine = on_switches((0, 0, 0))
        links = tuple(
            replace(link, back_bytes_per_s=link.bandwidth_bytes_per_s / 4) if link.id == "g0" else link
            for link in machine.machine.links
        )
        machine = replace(machine, machine=replace(machine.machine, links=links))
        bound = all_reduce_bound(PairLinks.of(machine, machine.ranks(3)))
        # Whatever the root, all of the buffer comes to gpu0 once.
        assert bound.s_per_byte == pytest.approx(4 / GPU_LINK)

    def test_ended_early_it_is_a_lower_one(self, monkeypatch):
        machine = MACHINES["two switches, ranks in turn"]
        links = PairLinks.of(machine, machine.ranks(6))
        exact = all_reduce_bound(links)
        monkeypatch.setattr(link_bound, "MAX_BOUND_S", -1.0)
        monkeypatch.setattr(link_bound, "_first_sets", lambda links: iter(np.eye(6, dtype=bool)))
        early = all_reduce_bound(links)
        assert not early.is_exact
        assert 0 < early.s_per_byte <= exact.s_per_byte * (1 + 1e-9)


def leaving(boards, uplink, members):
    """The bandwidth out of a set of ranks, where each switch is on the side that costs least."""
    rates = [2e9 if rank == 0 else GPU_LINK for rank in range(len(boards))]
    total_if_cpu_is = {"inside": 0.0, "outside": 0.0}
    for board in set(boards):
        on_board = [rank for rank in range(len(boards)) if boards[rank] == board]
        up = sum(rates[rank] for rank in on_board if rank in members)  # cut if the switch is outside
        down = sum(rates[rank] for rank in on_board if rank not in members)  # cut if it is inside
        total_if_cpu_is["inside"] += min(up + uplink, down)
        total_if_cpu_is["outside"] += min(up, down + uplink)
    return min(total_if_cpu_is.values())


def test_every_packing_is_spanning_trees_once_up_and_once_down():
    machine = MACHINES["uneven"]
    num = 0
    for schedule, _ in packings(PairLinks.of(machine, machine.ranks(5))):
        num += 1
        verify(schedule)
        for operation in ("add", "copy"):
            per_chunk = np.zeros(schedule.num_chunks, dtype=int)
            for step in schedule.steps:
                for transfer in step:
                    per_chunk[transfer.start : transfer.stop] += transfer.operation == operation
            assert (per_chunk == 4).all(), "a tree of five ranks has four edges"
    assert num > 10


@pytest.mark.parametrize("change", ["dropped", "doubled", "elsewhere"])
def test_damaged_ones_are_refused(change):
    machine = MACHINES["uneven"]
    schedule, _ = next(packings(PairLinks.of(machine, machine.ranks(5))))
    for number, step in enumerate(schedule.steps):
        for place, transfer in enumerate(step):
            other = (transfer.start + 1) % schedule.num_chunks
            moved = transfer._replace(start=other, stop=other + 1)
            now = {"dropped": [], "doubled": [transfer, transfer], "elsewhere": [moved]}[change]
            damaged = [*step[:place], *now, *tuple(step)[place + 1 :]]
            steps = (*schedule.steps[:number], tuple(damaged), *schedule.steps[number + 1 :])
            with pytest.raises(ScheduleError):
                verify(replace(schedule, steps=steps))


def test_no_rank_waits_for_a_link_that_is_too_slow_for_a_step():
    # A switch at 450 a port, and a link of 100 between ranks 0 and 1 alone, over which they would go.
    n = 8
    source, target = np.nonzero(~np.eye(n, dtype=bool))
    used = {(0, 1): [16], (1, 0): [17]}
    uses = [used.get((a, b), [a, 8 + b]) for a, b in zip(source.tolist(), target.tolist(), strict=True)]
    where = [resource for resources in uses for resource in resources]
    pairs = [pair for pair, resources in enumerate(uses) for _ in resources]
    passed = csr_array((np.ones(len(where)), (where, pairs)), shape=(18, len(source)))
    back = csr_array(passed[:, np.argsort(target * n + source, kind="stable")])
    links = PairLinks(n, source, target, passed, np.array([450.0] * 16 + [100.0] * 2), back)
    made = list(packings(links))
    assert made
    assert all(verify(schedule) for schedule, _ in made[:3])


@pytest.mark.quality
def test_64_gpus_take_few_calls():
    calls = Calls()
    with counted(calls):
        synthesis = synthesize(load("hgx-h200-x16-infiniband"), 64, 64 << 20)
    assert calls.number < 8_000_000
    assert synthesis.simulation.seconds < 0.9 * min(synthesis.built_in_s.values())
