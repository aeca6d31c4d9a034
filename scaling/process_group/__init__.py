"""The group of ranks that an aggregator is given.

An aggregator never touches torch.distributed: it gets a `Group`, which moves tensors between ranks and meters
what this rank sends. `TorchGroup` does it over torch.distributed, `InProcessGroup` between threads of one
process (tests, `scaling.conformance`).
"""

from scaling.process_group.base import Group, Message, Meter, PeerMemory
from scaling.process_group.host_counters import HostCounters
from scaling.process_group.in_process import InProcessGroup, run_in_process
from scaling.process_group.over_torch import TorchGroup

__all__ = [
    "Group",
    "HostCounters",
    "InProcessGroup",
    "Message",
    "Meter",
    "PeerMemory",
    "TorchGroup",
    "run_in_process",
]
