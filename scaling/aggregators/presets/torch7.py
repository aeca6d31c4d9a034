"""Torch7: everything to one GPU and back, one GPU after the other; or, as the paper has it, on the CPU.

`torch_dpt` (nn.DataParallelTable, what the paper's benchmark code runs), one flat tensor a GPU: the first GPU
copies the gradient of GPU 2, adds it, then that of GPU 3, and so on; takes the step; and copies its
parameters to GPU 2, then to GPU 3, and so on. Steps: 2(n-1). Bytes sent: (n-1) S by rank 0, S by every other
rank. It delivers the mean: the loss is that of the whole batch, so Torch's sum of the gradients is theirs.

`torch_cpu` (what the paper's section 5 describes: summed in parallel on the CPU): every GPU copies its
gradient to host memory (`d2h`), all at the same time. The sum is split by elements: each rank sums its 1/n of
them, in rank order (`reduce`), and takes the step on the same 1/n in host memory; every GPU copies the
parameters back. Bytes copied per rank: S to the host and S back. It delivers the mean.

Error: one order of summation, that of the ranks, so the ranks agree bit for bit.

References: torch/cunn, DataParallelTable.lua (`_reduce`, `_broadcast`); dlbench (hclhkbu/dlbench),
tools/torch/Main.lua; S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking State-of-the-Art Deep Learning Software
Tools", arXiv 1608.07249v7 (2017), which says in section 2 that Torch sums on the GPUs, in section 5 that it
sums on the CPU.

Differences. `torch_dpt`: Torch also gathers the outputs on GPU 1 and takes the loss there; here each rank has
its own loss, of an equal share of the batch. Torch drives all GPUs from one thread; `usenccl` is
`all_reduce`'s kind. `torch_cpu`: no source of it is known, this follows the paper's text; its threads are the
ranks' processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.aggregators.host import OnHost
from scaling.aggregators.prediction import stepped_on_host, sums_alone
from scaling.aggregators.schedule import Scheduled
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span, joined
from scaling.collectives.execute_host import HostExecution
from scaling.collectives.host_staging import host_parallel
from scaling.collectives.owners import star
from scaling.collectives.plan import Exchange, Stage
from scaling.collectives.schedule import Schedule
from scaling.process_group import Group


@final
@dataclass(frozen=True)
class TorchDpt(Scheduled):
    """Torch's DataParallelTable: rank 0 sums rank by rank, takes the optimizer step and sends parameters."""

    name = "torch_dpt"
    update_site = "root"

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        return star(world_size)


class TorchCpuState(AggregatorState):
    def __init__(
        self, of: TorchCpu, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        n, num_elements, schedule = group.world_size, layout.num_elements, host_parallel(group.world_size)
        own = schedule.bounds(num_elements)[group.rank : group.rank + 2]
        self.spans = joined([(own[0], own[1])])
        self.execution = HostExecution(
            schedule, group, num_elements, dtype, device, num_summing=n, divisor=n, keep_sums=True
        )


@final
@dataclass(frozen=True)
class TorchCpu(OnHost[TorchCpuState]):
    """Torch as in arXiv 1608.07249: each rank sums and updates 1/n of the elements in host memory."""

    name = "torch_cpu"
    state_class = TorchCpuState
    update_site = "host_parallel"

    def owned(self, state: TorchCpuState) -> list[Span]:
        return state.spans

    def aggregate(
        self, state: TorchCpuState, gradient: Tensor, phase: PhaseMarker = unmarked
    ) -> Tensor | None:
        """Returns the shared host memory that holds the mean; None where this rank owns none of it."""
        state.execution.run(gradient, None, phase)
        return state.execution.sums if state.spans else None

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n = layout.num_elements
        up = Exchange(sums_alone(host_parallel(world_size)), n)
        return [up, *stepped_on_host(n, world_size, num_threads=world_size)]
