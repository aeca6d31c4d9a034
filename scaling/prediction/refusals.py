"""What is not predicted of a machine, and why: cells of another device, and what `run` would refuse there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling.errors import ScheduleError
from scaling.prediction.strategy import Strategy
from scaling.prediction.terms import all_reach
from topologies.model import Topology


def of_other_device(cell: Mapping[str, Any], topology: Topology) -> str | None:
    """Why the cell's computation is none of that machine's ranks; None where it is."""
    has_gpus, by_processor = bool(topology.machine.of_kind("gpu")), cell.get("device") == "cpu"
    if by_processor != has_gpus:
        return None
    if by_processor:
        return (
            f"a step computed by the processor tells nothing of the GPUs of {topology.name}: say "
            "device=cuda, and name results of GPUs by --from"
        )
    return f"{topology.name} has no GPUs: say device=cpu, and name results of processors by --from"


def require_it_runs(strategy: Strategy, topology: Topology) -> None:
    """Raises ScheduleError where `run` would refuse the cell: the machine's hosts or its access forbid it."""
    cell, ranks = strategy.cell, topology.ranks(int(strategy.cell["world_size"]))
    on_hosts = topology.on_nodes(len(ranks))
    label = cell.get("aggregator_label", cell.get("aggregator"))
    if strategy.one_host and len(on_hosts) > 1:
        raise ScheduleError(
            f"{label} goes through memory that the ranks of one host share, and {len(ranks)} ranks are on "
            f"{len(on_hosts)} hosts of {topology.name}: it does not run there; ask for up to "
            f"{on_hosts[0]} ranks"
        )
    transport = dict(cell.get("aggregator_parameters") or {}).get("transport")
    may_access = cell.get("peer_access") is not False and all_reach(topology, len(ranks))
    if transport in ("peer_memory", "one_kernel") and topology.num_gpus and len(ranks) > 1 and not may_access:
        raise ScheduleError(
            f"{label} reads the other GPUs' memory, which not all of {topology.name} reach: it does not run "
            "there; use transport: sends or auto"
        )
