"""The group of ranks that an aggregator is given.

An aggregator never touches torch.distributed: it gets a `Group`, which moves tensors between ranks and meters
what this rank sends. `TorchGroup` does it over torch.distributed, `InProcessGroup` between threads of one
process (tests, `scaling.conformance`). Where a launch has MPI or Horovod too, `group.over("mpi")` is the same
ranks with messages carried by that (`MpiGroup`, `HorovodGroup`). `ThroughHostGroup` is for ranks that share
GPUs.
"""

from scaling.process_group.base import Group, HostCounters, Message, Meter, PeerMemory
from scaling.process_group.delegated import HorovodGroup, MpiGroup
from scaling.process_group.in_process import InProcessGroup, run_in_process
from scaling.process_group.over_torch import TorchGroup
from scaling.process_group.through_host import ThroughHostGroup

__all__ = [
    "Group",
    "HorovodGroup",
    "HostCounters",
    "InProcessGroup",
    "Message",
    "Meter",
    "MpiGroup",
    "PeerMemory",
    "ThroughHostGroup",
    "TorchGroup",
    "run_in_process",
]
