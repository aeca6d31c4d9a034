"""The transports, each with a topology of its own on which its messages are priced.

- peer_memory: copies into and sums out of the other GPUs' memory; the machine as it is.
- sends: a library's messages between GPUs that reach each other; the machine as it is.
- sends_host: the same through host memory. The library's kernels copy through a small buffer that stays in
  the processor's cache, and reach less than the bus, least of all both ways at once. Where a probe measured
  messages one way and both ways, the link of every GPU gets those rates (a part for each direction, and one
  that both share), and host memory is taken to be no limit.
- host_memory: kernels that store to and load from host memory, without access to each other's; the machine
  as it is.
- host: copies between GPUs and host memory, and sums there; the machine as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.collectives.simulate import simulate
from scaling.prediction.measured import MeasuredTransfer
from topologies.model import Device, Topology

LARGE_BYTES = 16 << 20  # messages from which on a rate is read off: below, latency counts


@dataclass(frozen=True)
class HostSends:
    """What messages through host memory reach of a GPU's link, as ratios of its bandwidth."""

    one_way: float = 1.0  # while the GPU sends or receives
    both_ways: float = 1.0  # in each direction while it does both


def moves(operation: str, world_size: int) -> Schedule:
    """What a probe's `send` (first rank to last), `swap` and `shift` (each to the next) do, as a schedule."""
    pairs = {
        "send": [(0, world_size - 1)],
        "swap": [(0, 1), (1, 0)],
        "shift": [(rank, (rank + 1) % world_size) for rank in range(world_size)],
    }[operation]
    step = tuple(Transfer(source, target, 0, 1, "copy") for source, target in pairs)
    return Schedule(operation, world_size, 1, (step,))


def in_turns(schedule: Schedule) -> Schedule:
    """The same as ranks do it over peer memory: what a rank pulls and then pushes follows one another. A turn
    of a step has what each rank has for one partner; several that turn to the same rank at once share its
    link (`scaling.collectives.execute_peer`)."""
    steps: list[ScheduleStep] = []
    for step in schedule.steps:
        partners: dict[int, list[tuple[int, str]]] = defaultdict(list)
        turns: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in sorted(step, key=lambda transfer: transfer.operation != "add"):
            is_pull = transfer.operation == "add"
            rank, other = (transfer.target, transfer.source)[:: 1 if is_pull else -1]
            if (other, transfer.operation) not in partners[rank]:
                partners[rank].append((other, transfer.operation))
            turns[partners[rank].index((other, transfer.operation))].append(transfer)
        steps += [tuple(turn) for turn in turns.values()] if len(turns) > 1 else [step]
    return replace(schedule, steps=tuple(steps))


def shared_paths_s(
    schedule: Schedule, bare: Topology, num_bytes: float, *, peer_access: bool = False
) -> float:
    """What the bytes take on the busiest path that ranks share: host memory, its bus, between sockets, ports.
    `bare`: the machine file's, without latency; without `peer_access` all goes through host memory."""
    moved = simulate(schedule, bare, num_bytes, peer_access=peer_access).bytes_per_resource
    gpus = {gpu.id for gpu in bare.machine.of_kind("gpu")}
    of_one_gpu = {
        f"{link.id}{way}"
        for link in bare.machine.links
        for way in ("", "<", ">")
        if gpus & {link.first, link.second}
    }
    shared = [name for name in moved if not {name.split("/")[1]} & (of_one_gpu | gpus)]
    return max(
        (moved[name] / bare.capacity_bytes_per_s(name) for name in shared if not name.endswith("cores")),
        default=0.0,
    )


def measured_host_sends(topology: Topology, transfers: Iterable[MeasuredTransfer]) -> HostSends | None:
    """From host-only transfers of a probe on that machine; None where it did not measure both."""
    bare = without_host_limit(topology.without_latency)
    ratios: dict[str, list[float]] = {"one": [], "both": []}
    for transfer in transfers:
        kind = {"send": "one", "swap": "both", "shift": "both"}.get(transfer.operation)
        if kind is None or not transfer.host_only or transfer.num_bytes < LARGE_BYTES:
            continue
        if transfer.num_ranks < 2 or transfer.num_ranks > len(topology.machine.of_kind("gpu")):
            continue
        ideal = simulate(
            moves(transfer.operation, transfer.num_ranks), bare, transfer.num_bytes, peer_access=False
        ).seconds
        ratios[kind].append(ideal / transfer.seconds)
    if not ratios["one"] or not ratios["both"]:
        return None
    return HostSends(min(1.0, median(ratios["one"])), min(1.0, median(ratios["both"])))


def without_host_limit(topology: Topology) -> Topology:
    """The same machine with a host memory that takes whatever its links bring."""
    devices = tuple(
        replace(device, bandwidth_bytes_per_s=None) if device.kind == "host_memory" else device
        for device in topology.machine.devices
    )
    return replace(topology, machine=replace(topology.machine, devices=devices))


def for_host_sends(topology: Topology, rates: HostSends | None) -> Topology:
    """The machine as messages through host memory find it; the machine itself where nothing was measured."""
    if rates is None:
        return topology
    machine = without_host_limit(topology).machine
    devices, links = list(machine.devices), list(machine.links)
    for gpu in machine.of_kind("gpu"):
        first = machine.route(gpu.id, machine.nearest(gpu.id, "host_memory"))[0][0]
        index = links.index(first)
        between = f"{gpu.id}/both-ways"
        devices.append(Device(between, "pcie_switch"))
        slowest = min(first.bandwidth_bytes_per_s, first.back_bytes_per_s or first.bandwidth_bytes_per_s)
        outer = first.second if first.first == gpu.id else first.first
        ends: dict[str, Any] = {"first": gpu.id, "second": between, "back_bytes_per_s": None, "duplex": True}
        links[index] = replace(first, bandwidth_bytes_per_s=rates.one_way * slowest, **ends)
        rest: dict[str, Any] = {"id": f"{first.id}/both-ways", "latency_s": 0.0, "duplex": False}
        both = 2 * rates.both_ways * slowest
        links.append(replace(links[index], first=between, second=outer, bandwidth_bytes_per_s=both, **rest))
    return replace(topology, machine=replace(machine, devices=tuple(devices), links=tuple(links)))
