"""One rank of test_execute_fused.py: exchanges in one kernel, on GPUs or interpreted; writes JSON.

In the interpreter peers' memory is files that all ranks map."""

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

import torch

from scaling.collectives.exchange import RankExchange
from scaling.collectives.execute_kernels import FusedExecution
from scaling.collectives.listing import schedule
from scaling.process_group import PeerMemory, TorchGroup
from scaling.runtime.workers import Workers
from tests.collectives.run_on_tensors import run_on_tensors
from tests.ranks import as_rank

SIZES = (1, 3, 301, 5000)
ROUNDS = 3


class MappedFiles(PeerMemory):
    """A buffer of each rank, as a file that all of them map."""

    def __init__(self, folder: Path, num_elements: int, dtype: torch.dtype, group: TorchGroup) -> None:
        self._group = group
        self._buffers = [
            torch.from_file(str(folder.with_name(f"{folder.name}-{rank}")), True, num_elements, dtype=dtype)
            for rank in range(group.world_size)
        ]
        self.local = self._buffers[group.rank]

    def of(self, rank: int) -> torch.Tensor:
        return self._buffers[rank]

    def barrier(self, channel: int = 0) -> None:
        self._group.barrier()


def exchanged(group: TorchGroup, name: str, size: int, device: torch.device) -> dict[str, Any]:
    """Whether each round has the bits of the reference, and what the first one metered."""
    plan = schedule(name, group.world_size)
    exchange = RankExchange(plan, group, size, torch.float32, device, transport="one_kernel", captured=False)
    same = []
    group.meter.reset()
    for number in range(ROUNDS):
        generator = torch.Generator().manual_seed(number)
        inputs = list(torch.randn((group.world_size, size), generator=generator))
        result = exchange.run(inputs[group.rank].to(device))
        same.append(torch.equal(result.cpu(), run_on_tensors(plan, inputs)[group.rank]))
    assert isinstance(exchange._in_place, FusedExecution)
    pads = exchange._in_place._pads.local
    metered = [group.meter.bytes_sent, group.meter.messages_sent]
    return {"same": same, "metered": metered, "pads": int(pads.abs().sum()), "transport": exchange.transport}


def seen_by(workers: Workers) -> dict[str, Any]:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    device = torch.device("cpu" if is_interpreted else f"cuda:{workers.info.rank}")
    if not is_interpreted:
        torch.cuda.set_device(device)  # Triton launches on the current device, and a graph is captured there
    group = workers.group(device)
    if is_interpreted:
        numbers = count()

        def mapped(size: int, dtype: torch.dtype, device: torch.device) -> PeerMemory:
            return MappedFiles(Path(sys.argv[1]).with_name(f"memory{next(numbers)}"), size, dtype, group)

        setattr(group, "peer_memory", mapped)  # noqa: B010 (a type checker takes no other way)
    names = ["stripes", *(["recursive_doubling"] if workers.info.world_size == 2 else [])]
    return {name: {size: exchanged(group, name, size, device) for size in SIZES} for name in names}


if __name__ == "__main__":
    as_rank(seen_by)
