"""What MPI takes in host memory: the algorithm that its source chooses, as the schedule that it is.

1. An all-reduce runs what the library's decision says for these ranks and bytes
   (`scaling.collectives.mpi_library`); messages are sent as they are.
2. Processes with a core each copy through shared memory and add, or send over the network
   (`scaling.collectives.by_processes`). With GPUs each rank's buffer is in the host memory nearest
   to its GPU; the copies there and back are stages of their own.
3. Latency and flow have factors of their own in the calibration (kind `mpi`), fitted to measured cells of two
   ranks and more, and to all-reduces of a probe that MPI started (`mpi_all_reduce`); what these took beyond
   the fit goes by the buffer's size. NCCL's and Gloo's messages tell nothing of MPI's.

The library is the one that the measured launches recorded; without one it is Open MPI, and the row says so.

Reference: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of collective communication operations in
MPICH", Int. J. High Perform. Comput. Appl. 19 (2005), for the algorithms' costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.collectives.by_processes import by_processes, process_places
from scaling.collectives.mpi_library import MpiLibrary, mpi_all_reduce
from scaling.collectives.placement import Place
from scaling.collectives.plan import Exchange
from scaling.collectives.schedule import Schedule
from scaling.prediction.native import NativeTime
from topologies.model import Topology


@dataclass(frozen=True)
class MpiTime:
    """An exchange by MPI; `note` is what was assumed of the library, None if nothing."""

    time: NativeTime
    note: str | None


def mpi_exchange(
    stage: Exchange, topology: Topology, bare: Topology, world_size: int, library: MpiLibrary | None
) -> MpiTime:
    """Prices a stage that MPI carries.

    Args:
        stage: an all-reduce of its own choice (`native`), or messages.
        topology: the machine.
        bare: the same without latency.
        world_size: ranks, node by node.
        library: None takes the default, and says so.

    Raises:
        TopologyError: the machine is too small, has no network, or its cores' rate is not known.
    """
    num_bytes = stage.num_elements * stage.bytes_per_element
    if stage.native:
        return mpi_native(topology, bare, world_size, num_bytes, library)
    places = process_places(topology, world_size)
    choice = f"{library or MpiLibrary()}: messages"
    return MpiTime(_priced(stage.schedule, choice, topology, bare, num_bytes, places), None)


def mpi_native(
    topology: Topology, bare: Topology, world_size: int, num_bytes: float, library: MpiLibrary | None
) -> MpiTime:
    """Prices MPI_Allreduce of a buffer of `num_bytes`; otherwise as `mpi_exchange`."""
    places = process_places(topology, world_size)
    num_nodes = len({node for node, _ in places})
    used = library or MpiLibrary()
    notes = [] if library else [f"no measured launch says which MPI: taken to be {used}"]
    notes += [note for note in (used.not_modelled(num_nodes),) if note]
    choice, schedule = mpi_all_reduce(used, world_size, num_bytes, num_nodes)
    time = _priced(schedule, f"{used}: {choice}", topology, bare, num_bytes, places)
    return MpiTime(time, "; ".join(notes) or None)


def _priced(
    schedule: Schedule,
    choice: str,
    topology: Topology,
    bare: Topology,
    num_bytes: float,
    places: Sequence[Place],
) -> NativeTime:
    flowing = by_processes(schedule, bare, num_bytes, places)
    whole = by_processes(schedule, topology, num_bytes, places)
    return NativeTime(whole.latency_s, flowing.flow_s, choice, flowing.busiest)
