"""The bytes that an exchange puts on each link of the machine, and how busy that keeps them.

Processes meter what they send, not which links it takes. That follows from the aggregator's schedule on the
topology of the folder (topology.yaml), so it is simulated, and says so wherever it is shown. A cell is told
only if its schedule sends, rank by rank, what was metered; of others the report says why they are left out.
The utilisation is the time that the bytes take at a link's full bandwidth over the measured iteration: its
numerator is simulated, its denominator measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from scaling.analysis.columns import Row, is_control_arm
from scaling.analysis.groups import Group
from scaling.analysis.samples import CellResult
from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.listing import schedule as catalogued
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule
from scaling.collectives.simulate import simulate
from scaling.collectives.star import star
from scaling.collectives.tree import caffe_pairs, tree
from scaling.errors import ScheduleError
from scaling.report.figure_data import main_variant
from topologies.errors import TopologyError
from topologies.model import Topology

BYTES_PER_VALUE = 4
"""Gradients are float32."""

LARGEST_DISAGREEMENT = 0.01
"""A schedule that sends other bytes than were metered by more than this is not what was run."""

SIMULATED = "simulated"


def _caffe(world_size: int, gpus_per_board: int) -> Schedule:
    boards = [rank // gpus_per_board for rank in range(world_size)]
    return tree(world_size, caffe_pairs(boards, [[False] * world_size] * world_size))


_Maker = Callable[[int, Mapping[str, Any]], Schedule]

SCHEDULES: dict[str, _Maker] = {
    "ring": lambda n, values: ring(n, directions=values.get("directions", 1)),
    "tree": lambda n, _: tree(n),
    "schedule": lambda n, values: catalogued(str(values.get("collective")), n),
    "torch_dpt": lambda n, _: star(n),
    "caffe": lambda n, values: _caffe(n, int(values.get("gpus_per_board", 1))),
    "host_serial": lambda n, _: host_serial(n),
    "host_parallel": lambda n, _: host_parallel(n),
    "all_reduce": lambda n, _: ring(n),
}
"""Aggregator -> the collective of its whole buffer; the library's all-reduce is taken for a ring."""

TAKEN_FOR_A_RING = ("all_reduce",)

LINK_COLUMNS = {
    "cell_id": "string",
    "aggregator": "string",
    "world_size": "Int64",
    "link": "string",
    "kind": "string",
    "bytes": "float64",
    "bandwidth_bytes_per_s": "float64",
    "utilisation": "float64",
    "source": "string",
}
"""Of links.csv: one row a cell and link."""


@dataclass(frozen=True)
class LinkUse:
    """What an iteration puts on one direction of a link.

    Attributes:
        link: `gpu0-nvswitch0>`: from the first device to the second.
        bytes: simulated.
        bandwidth_bytes_per_s: of the topology.
        utilisation: busy time at that bandwidth over the measured iteration.
    """

    link: str
    bytes: float
    bandwidth_bytes_per_s: float
    utilisation: float


@dataclass(frozen=True)
class CellLinks:
    """A cell's links, in the topology's order."""

    cell_id: str
    aggregator: str
    name: str
    world_size: int
    uses: list[LinkUse]


def links_of(
    group: Group, cells: Mapping[str, CellResult], topology: Topology | None
) -> tuple[list[CellLinks], dict[str, str]]:
    """The links of a group's cells at the largest world size.

    Args:
        group: iteration cells.
        cells: the samples, by cell id.
        topology: of the machine; None where the folder has none.

    Returns:
        Those that can be told, and aggregator -> why it is left out.
    """
    told, left_out = [], {}
    for label in dict.fromkeys(row["aggregator"] for row in group.rows):
        for row in main_variant(group, label):
            if row["world_size"] != max(group.world_sizes) or row["world_size"] < 2 or is_control_arm(row):
                continue
            try:
                told.append(_links(group, row, cells[row["cell_id"]], topology))
            except _CannotTellError as reason:
                left_out[group.name(row)] = str(reason)
    return told, left_out


class _CannotTellError(Exception):
    """Why a cell's links are left out."""


def _links(group: Group, row: Row, cell: CellResult, topology: Topology | None) -> CellLinks:
    if topology is None:
        raise _CannotTellError("the folder has no topology.yaml that can be read")
    if row["device"] != "cuda":
        raise _CannotTellError("workers on a CPU exchange through its memory, not over links")
    if (row["num_nodes"] or 1) > topology.num_nodes:
        raise _CannotTellError("topology.yaml is of one node, the cell ran on several")
    schedule, num_bytes = _exchanged(row, cell)
    try:
        simulation = simulate(schedule, topology, num_bytes, peer_access=row["peer_access"] is not False)
    except (TopologyError, ScheduleError) as error:
        raise _CannotTellError(f"its schedule does not fit topology.yaml: {error}") from None
    uses = []
    for resource, passed in simulation.bytes_per_resource.items():
        # Sums, cores and memories are priced, too, but are no links.
        if resource.endswith(("/sums", "/cores")) or _local(resource) in topology.machine.by_id:
            continue
        bandwidth = topology.capacity_bytes_per_s(resource)
        uses.append(LinkUse(_local(resource), passed, bandwidth, passed / bandwidth / row["iteration_s"]))
    return CellLinks(row["cell_id"], row["aggregator"], group.name(row), row["world_size"], uses)


def _exchanged(row: Row, cell: CellResult) -> tuple[Schedule, int]:
    """The schedule of a cell's gradient and its bytes, if they are what was metered."""
    name, summary = str(cell.cell["aggregator"]), cell.done[0].summary if cell.done else {}
    parameters, metered = summary.get("num_parameters"), summary.get("wire_bytes_per_rank")
    if row["iteration_s"] is None or not parameters or not metered:
        raise _CannotTellError("its parameters or the bytes that its ranks sent were not recorded")
    if name not in SCHEDULES:
        raise _CannotTellError("which schedule its bytes follow is not known to the report")
    num_bytes = BYTES_PER_VALUE * int(parameters)
    try:
        schedule = SCHEDULES[name](row["world_size"], cell.cell.get("aggregator_parameters") or {})
    except ScheduleError as error:
        raise _CannotTellError(f"its schedule cannot be made: {error}") from None
    for rank, count in enumerate(metered):
        expected = _sent(schedule, int(parameters), rank) * BYTES_PER_VALUE
        if abs(expected - count) > LARGEST_DISAGREEMENT * max(expected, count):
            raise _CannotTellError(
                f"rank {rank} sent {count / 1e6:.4g} MB, its schedule would send {expected / 1e6:.4g} MB"
            )
    return schedule, num_bytes


def _sent(schedule: Schedule, num_elements: int, rank: int) -> int:
    """Elements that a rank sends, and copies from host memory."""
    bounds, hosts = schedule.bounds(num_elements), range(schedule.world_size, schedule.num_nodes)
    return sum(
        bounds[t.stop] - bounds[t.start]
        for step in schedule.steps
        for t in step
        if t.source == rank or (t.target == rank and t.source in hosts)
    )


def _local(resource: str) -> str:
    """`node0/gpu0-nvswitch0>` -> `gpu0-nvswitch0>`; other nodes keep theirs."""
    return resource.removeprefix("node0/")


def link_remarks(
    told: Mapping[str, Sequence[CellLinks]], left_out: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """What a reader of the maps should know, in sentences.

    Args:
        told: group's title -> its cells.
        left_out: group's title -> aggregator -> why it is not among them.
    """
    names: dict[str, dict[str, None]] = {}
    for reasons in left_out.values():
        for name, reason in reasons.items():
            names.setdefault(reason, {})[name] = None
    remarks = [f"Left out: {', '.join(own)}: {reason}." for reason, own in names.items()]
    cells = [cell for own in told.values() for cell in own]
    too_busy = dict.fromkeys(
        use.link.rstrip("<>") for cell in cells for use in cell.uses if use.utilisation > 1
    )
    if too_busy:
        remarks.append(
            f"More than 100% is impossible: the bandwidth that topology.yaml gives {', '.join(too_busy)} is "
            "lower than the real one. `scaling topology probe` measures it."
        )
    return remarks


def link_table(cells: Iterable[CellLinks]) -> pd.DataFrame:
    """links.csv: a row a cell and direction of a link; `source` says that it is simulated."""
    rows: list[dict[str, Any]] = [
        {
            "cell_id": cell.cell_id,
            "aggregator": cell.aggregator,
            "world_size": cell.world_size,
            "link": use.link,
            "kind": "taken for a ring" if cell.aggregator in TAKEN_FOR_A_RING else "schedule",
            "bytes": use.bytes,
            "bandwidth_bytes_per_s": use.bandwidth_bytes_per_s,
            "utilisation": use.utilisation,
            "source": SIMULATED,
        }
        for cell in cells
        for use in cell.uses
    ]
    return pd.DataFrame(rows, columns=list(LINK_COLUMNS), dtype=object).astype(LINK_COLUMNS)


def all_links(cells: Sequence[CellLinks]) -> list[str]:
    """The links that any of them uses, alike ones together: by the devices' names, each with its way back."""
    names = dict.fromkeys(use.link for cell in cells for use in cell.uses)
    return sorted(names, key=lambda name: (name.rstrip("<>"), name[-1] == "<"))
