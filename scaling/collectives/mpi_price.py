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

from scaling.collectives.by_processes import by_processes, process_places
from scaling.collectives.mpi_library import MpiLibrary, mpi_all_reduce
from scaling.collectives.price import Price
from scaling.collectives.schedule import Schedule
from topologies.model import Topology


def mpi_price(
    schedule: Schedule | None,
    topology: Topology,
    world_size: int,
    num_bytes: float,
    library: MpiLibrary | None,
) -> Price:
    """Prices messages that MPI carries, or its own all-reduce.

    Args:
        schedule: of the messages; None: MPI_Allreduce, as the library chooses.
        topology: the machine.
        world_size: ranks, node by node.
        num_bytes: of the buffer.
        library: None takes the default, and says so.

    Raises:
        TopologyError: the machine is too small, has no network, or its cores' rate is not known.
    """
    places = process_places(topology, world_size)
    used, choice, notes = library or MpiLibrary(), "messages", []
    if schedule is None:
        num_nodes = len({node for node, _ in places})
        notes = [] if library else [f"no measured launch says which MPI: taken to be {used}"]
        notes += [note for note in (used.not_modelled(num_nodes),) if note]
        choice, schedule = mpi_all_reduce(used, world_size, num_bytes, num_nodes)
    flowing = by_processes(schedule, topology.without_latency, num_bytes, places)
    whole = by_processes(schedule, topology, num_bytes, places)
    note = "; ".join(notes) or None
    return Price(whole.latency_s, flowing.flow_s, flowing.busiest, f"{used}: {choice}", note)
