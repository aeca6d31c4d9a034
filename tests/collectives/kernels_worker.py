"""One rank of test_execute_kernels.py: exchanges in one kernel, on GPUs or interpreted; writes JSON.

In the interpreter peers' memory is files that all ranks map."""

import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import torch

from scaling.collectives import execute_kernels
from scaling.collectives.exchange import RankExchange
from scaling.collectives.execute_kernels import FusedExecution, PinnedExecution
from scaling.collectives.listing import schedule
from scaling.process_group import PeerMemory, TorchGroup
from scaling.runtime.workers import Workers
from tests.collectives.conftest import run_on_tensors
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


def exchanged(
    group: TorchGroup, device: torch.device, exchange: RankExchange, name: str, size: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Whether each round has the bits of the reference, and what was metered."""
    group.meter.reset()
    same = []
    for number in range(ROUNDS):
        generator = torch.Generator().manual_seed(number)
        inputs = list(torch.randn((group.world_size, size), generator=generator, dtype=dtype))
        time.sleep(0.01 * ((group.rank + number) % group.world_size))  # each rank is the last one once
        result = exchange.run(inputs[group.rank].to(device))
        expected = run_on_tensors(schedule(name, group.world_size), inputs)[group.rank]
        same.append(torch.equal(result.cpu(), expected))
    metered = [group.meter.bytes_sent, group.meter.messages_sent]
    return {"same": same, "metered": metered, "transport": exchange.transport}


def in_one_kernel(group: TorchGroup, device: torch.device, name: str, size: int) -> dict[str, Any]:
    """And what the pads hold in the end."""
    plan, dtype = schedule(name, group.world_size), torch.float32
    exchange = RankExchange(plan, group, size, dtype, device, transport="one_kernel", captured=False)
    found = exchanged(group, device, exchange, name, size, dtype)
    assert isinstance(exchange._in_place, FusedExecution)
    return {**found, "pads": int(exchange._in_place._pads.local.abs().sum())}


def through_host_memory(
    group: TorchGroup, device: torch.device, size: int, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """And how chunks were counted."""
    plan = schedule("stripes", group.world_size)
    exchange = RankExchange(plan, group, size, dtype, device, transport="host_memory")
    running = exchange._in_place
    assert isinstance(running, PinnedExecution)
    before = int(running._done.sum())
    found = exchanged(group, device, exchange, "stripes", size, dtype)
    chunks = {"chunks": running._num_chunks, "counted": int(running._done.sum()) - before}
    return {**found, **chunks, "captured": exchange.captured, "programs": running._programs}


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
    cases = [(name, size) for name in names for size in SIZES]
    fused = {f"{name} {size}": in_one_kernel(group, device, name, size) for name, size in cases}
    pinned = {f"stripes {size}": through_host_memory(group, device, size) for size in SIZES}
    pinned["float64"] = through_host_memory(group, device, 5000, torch.float64)
    execute_kernels.MOST_PROGRAMS, execute_kernels.LARGEST_HOST_BLOCK = 2, 128  # each goes round its slots
    pinned["rounds"] = through_host_memory(group, device, 5000)
    return {"one_kernel": fused, "host_memory": pinned}


if __name__ == "__main__":
    as_rank(seen_by)
