"""The group of ranks that an aggregator is given: it moves tensors, and meters what this rank sends.

Over torch.distributed, between threads of one process (tests, `scaling.conformance`), through host memory for
ranks that share GPUs, or by a library beside it: `group.over("mpi")`.
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
