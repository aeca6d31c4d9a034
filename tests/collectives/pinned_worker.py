"""One rank of test_execute_pinned.py: `stripes` through host memory, on GPUs or interpreted; writes JSON."""

import os
import time
from typing import Any

import torch

from scaling.collectives import execute_kernels
from scaling.collectives.exchange import RankExchange
from scaling.collectives.execute_kernels import PinnedExecution
from scaling.collectives.owners import stripes
from scaling.process_group import TorchGroup
from scaling.runtime.workers import Workers
from tests.collectives.run_on_tensors import run_on_tensors
from tests.ranks import as_rank

SIZES = (1, 3, 301, 5000)
ROUNDS = 3


def exchanged(group: TorchGroup, size: int, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Whether each round has the bits of the reference, what was metered, and how chunks were counted."""
    plan = stripes(group.world_size)
    exchange = RankExchange(plan, group, size, dtype, device, transport="host_memory")
    running = exchange._in_place
    assert isinstance(running, PinnedExecution)
    before = int(running._done.sum())
    group.meter.reset()
    same = []
    for number in range(ROUNDS):
        generator = torch.Generator().manual_seed(number)
        inputs = list(torch.randn((group.world_size, size), generator=generator, dtype=dtype))
        time.sleep(0.01 * ((group.rank + number) % group.world_size))  # each rank is the last one once
        result = exchange.run(inputs[group.rank].to(device))
        same.append(torch.equal(result.cpu(), run_on_tensors(plan, inputs)[group.rank]))
    return {
        "same": same,
        "metered": [group.meter.bytes_sent, group.meter.messages_sent],
        "captured": exchange.captured,
        "transport": exchange.transport,
        "chunks": running._num_chunks,
        "programs": running._programs,
        "counted": int(running._done.sum()) - before,
    }


def seen_by(workers: Workers) -> dict[str, Any]:
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    device = torch.device("cpu" if is_interpreted else f"cuda:{workers.info.rank}")
    if not is_interpreted:
        torch.cuda.set_device(device)  # Triton launches on the current device, and a graph is captured there
    group = workers.group(device)
    seen = {str(size): exchanged(group, size, device, torch.float32) for size in SIZES}
    seen["float64"] = exchanged(group, 5000, device, torch.float64)
    execute_kernels.MOST_PROGRAMS, execute_kernels.LARGEST_HOST_BLOCK = (
        2,
        128,
    )  # each program goes round its slots
    seen["rounds"] = exchanged(group, 5000, device, torch.float32)
    return seen


if __name__ == "__main__":
    as_rank(seen_by)
