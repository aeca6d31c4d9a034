"""The bytes that an exchange puts on each link of the machine, and how busy that keeps them.

Processes meter what they send, not which links it takes. That follows from the plan of the exchange,
which the run has recorded (`scaling.collectives.plan_record`), on the topology of the folder (topology.yaml),
so it is simulated, and says so wherever it is shown. A cell is shown only if its plan sends, rank by rank,
what was metered; of others the report says why they are left out.
The utilisation is the time that the bytes take at a link's full bandwidth over the measured iteration: its
numerator is simulated, its denominator measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.columns import Row, is_control_arm
from scaling.analysis.groups import CellGroup, main_variant
from scaling.analysis.samples import CellResult
from scaling.collectives.plan_record import ExchangePlan, read_plan
from scaling.errors import ScheduleError
from scaling.store.upgrades.plans import plan_before_records
from topologies.errors import TopologyError
from topologies.model import Topology

LARGEST_DISAGREEMENT = 0.01  # of a plan's bytes and the metered ones; else it is not what was run


def plan_of_cell(cell: CellResult) -> ExchangePlan:
    """What a cell's ranks send in a step (of blocks the mean); ScheduleError: unknown, or not as metered."""
    summary = cell.done[0].summary if cell.done else {}
    parameters, metered = summary.get("num_parameters"), summary.get("wire_bytes_per_rank")
    if not parameters or not metered:
        raise ScheduleError("its parameters or the bytes that its ranks sent were not recorded")
    plan = _plan(cell, summary, int(parameters)).over_steps(cell.steps_each)
    for rank, count in enumerate(metered):
        expected = plan.sent_bytes(rank)
        if abs(expected - count) > LARGEST_DISAGREEMENT * max(expected, count):
            raise ScheduleError(
                f"rank {rank} sent {count / 1e6:.4g} MB, its schedule would send {expected / 1e6:.4g} MB"
            )
    return plan


def known_plan(cell: CellResult) -> ExchangePlan | None:
    try:
        return plan_of_cell(cell)
    except ScheduleError:
        return None


def _plan(cell: CellResult, summary: Mapping[str, Any], num_parameters: int) -> ExchangePlan:
    world_size = int(cell.cell["world_size"])
    if "plan" in summary:
        return read_plan(summary["plan"], world_size)
    if "plan_unknown" in summary:
        raise ScheduleError(str(summary["plan_unknown"]))
    parameters = cell.cell.get("aggregator_parameters") or {}
    return plan_before_records(str(cell.cell["aggregator"]), parameters, world_size, num_parameters)


SIMULATED = "simulated"

_OWNERS = {"": "NCCL", "mpi": "MPI", "horovod": "Horovod", "gloo": "Gloo"}  # of an exchange between GPUs


LINK_COLUMNS = {
    **dict.fromkeys(("cell_id", "aggregator"), "string"),
    "world_size": "Int64",
    **dict.fromkeys(("link", "kind"), "string"),
    **dict.fromkeys(("bytes", "bandwidth_bytes_per_s", "utilisation"), "float64"),
    "source": "string",
}
"""Of links.csv: one row a cell and link."""


@dataclass(frozen=True)
class LinkUse:
    """What a step puts on one direction of a link."""

    link: str  # `gpu0-nvswitch0>`: from the first device to the second
    bytes: float  # simulated
    bandwidth_bytes_per_s: float  # of the topology
    utilisation: float  # busy time at that bandwidth over the measured step


@dataclass(frozen=True)
class CellLinks:
    """A cell's links, in the order in which its exchange uses them."""

    cell_id: str
    aggregator: str
    name: str
    world_size: int
    uses: list[LinkUse]
    assumed: str = ""  # a library that exchanges in its own way, and the schedule that stands for it


def links_of(
    group: CellGroup, cells: Mapping[str, CellResult], topology: Topology | None
) -> tuple[list[CellLinks], dict[str, str]]:
    """The known links of a group's cells at the largest world size; aggregator -> why it is left out."""
    known, left_out = [], {}
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        for row in main_variant(group, label):
            if row["world_size"] != max(group.world_sizes) or row["world_size"] < 2 or is_control_arm(row):
                continue
            try:
                known.append(_links(group, row, cells[row["cell_id"]], topology))
            except ScheduleError as reason:
                left_out[group.name(row)] = str(reason)
    return known, left_out


def _links(group: CellGroup, row: Row, cell: CellResult, topology: Topology | None) -> CellLinks:
    """ScheduleError: why they are left out."""
    if topology is None:
        raise ScheduleError("the folder has no topology.yaml that can be read")
    if row["device"] != "cuda":
        raise ScheduleError("workers on a CPU exchange through its memory, not over links")
    if (row["num_nodes"] or 1) > topology.num_nodes:
        raise ScheduleError("topology.yaml is of one node, the cell ran on several")
    if row["iteration_s"] is None:
        raise ScheduleError("it has no time")
    plan = plan_of_cell(cell)
    try:
        passed = plan.bytes_per_resource(topology, peer_access=row["peer_access"] is not False)
    except (TopologyError, ScheduleError) as error:
        raise ScheduleError(f"its schedule does not fit topology.yaml: {error}") from None
    uses = []
    for resource, num_bytes in passed.items():
        if _local(resource) in topology.machine.by_id:  # a memory, which is no link
            continue
        bandwidth = topology.capacity_bytes_per_s(resource)
        utilisation = num_bytes / bandwidth / row["iteration_s"]
        uses.append(LinkUse(_local(resource), num_bytes, bandwidth, utilisation))
    assumed = ", ".join(f"{_OWNERS[each.library]}'s own, as a {each.schedule}" for each in plan.native)
    return CellLinks(row["cell_id"], row["aggregator"], group.name(row), row["world_size"], uses, assumed)


def _local(resource: str) -> str:
    """`node0/gpu0-nvswitch0>` -> `gpu0-nvswitch0>`; other nodes keep theirs."""
    return resource.removeprefix("node0/")


def link_table(cells: Iterable[CellLinks]) -> pd.DataFrame:
    """links.csv: a row a cell and direction of a link; `source` says that it is simulated."""
    rows: list[dict[str, Any]] = [
        {
            **{name: getattr(cell, name) for name in ("cell_id", "aggregator", "world_size")},
            **vars(use),
            "kind": cell.assumed or "schedule",
            "source": SIMULATED,
        }
        for cell in cells
        for use in cell.uses
    ]
    return pd.DataFrame(rows, columns=list(LINK_COLUMNS), dtype=object).astype(LINK_COLUMNS)


def all_links(cells: Sequence[CellLinks]) -> list[str]:
    """The links that any of them uses, equal ones together: by the devices' names, each with its way back."""
    names = dict.fromkeys(use.link for cell in cells for use in cell.uses)
    return sorted(names, key=lambda name: (name.rstrip("<>"), name[-1] == "<"))
