"""TensorFlow of 2017: towers on the GPUs, variables on the CPU; or a copy each, summed tensor by tensor.

`tensorflow` (the CIFAR-10 tutorial's towers, what the paper's benchmark code runs), for each variable: every
tower's gradient is copied to host memory (`d2h`), all towers at the same time. The CPU writes them one behind
the other into a new tensor (n S written), and reads that for the mean over its first axis (n S read)
(`reduce`). One momentum update, on the CPU, by one thread; every tower copies the parameters back. Bytes
copied per rank: S to the host, one message a tensor, and S back. It delivers the mean.

`tf_replicated` (variable_update=replicated of tf_cnn_benchmarks), for tensor i of the model: all GPUs copy it
to GPU i mod n, which sums (`shuffle` with one owner) and copies the sum back to all; every GPU takes the
step. Steps: 2. Bytes sent by a rank that owns o bytes: S - o, then (n-1) o. It delivers the sum; ours the
mean.

Error: one order of summation, so the ranks agree bit for bit.

References: `tensorflow`: dlbench (hclhkbu/dlbench) at commit 921cf29, tools/tensorflow, after
tensorflow/models, tutorials/image/cifar10/cifar10_multi_gpu_train.py (`average_gradients`); M. Abadi et al.,
"TensorFlow: Large-Scale Machine Learning on Heterogeneous Distributed Systems", arXiv 1603.04467 (2016).
`tf_replicated`: tensorflow/benchmarks, scripts/tf_cnn_benchmarks/batch_allreduce.py
(`CopyToDeviceAlgorithm`).

Differences. `tensorflow`: TensorFlow begins with a variable when its gradients are there, and may spread one
operation over several threads; here the CPU begins when all gradients are there, with one thread. Every step
the tower also reads the variables anew, which is the copy back. `tf_replicated`: the owner's gradient comes
first in the sum, TensorFlow adds in the order of the GPUs; tensors of one owner travel as one message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.aggregators.host import HostRows, OnHost, threads
from scaling.aggregators.prediction import rows_to_host, stepped_on_host
from scaling.aggregators.schedule import Scheduled
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout
from scaling.collectives.composition import BufferPart, of_parts
from scaling.collectives.owners import shuffle
from scaling.collectives.plan import CodecWork, Stage
from scaling.collectives.schedule import Schedule
from scaling.process_group import Group


class TowersState(AggregatorState):
    """The gradients in host memory, and room on rank 0 for those of the largest variable side by side."""

    def __init__(
        self, of: TensorFlow, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        self.host = HostRows(layout, group, dtype, device)
        largest = max((stop - start for start, stop in self.host.spans), default=0)
        num_elements = group.world_size * largest if group.rank == 0 else 0
        self.concatenated = torch.empty(num_elements, dtype=dtype)


@final
@dataclass(frozen=True)
class TensorFlow(OnHost[TowersState]):
    """TensorFlow's towers: the CPU concatenates, averages and applies the gradients of each variable."""

    name = "tensorflow"
    state_class = TowersState
    update_site = "host_serial"

    def aggregate(self, state: TowersState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor | None:
        state.host.bring_up(gradient, phase)
        if state.group.rank == 0:
            n, rows = state.group.world_size, state.host.rows
            with phase("reduce"), threads(1):
                for start, stop in state.host.spans:
                    towers = state.concatenated[: n * (stop - start)].view(n, stop - start)
                    torch.cat([row[start:stop].unsqueeze(0) for row in rows], out=towers)
                    torch.mean(towers, 0, out=state.host.result[start:stop])
        state.host.meet(phase)
        return state.host.result if state.group.rank == 0 else None

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n, num_bytes = layout.num_elements, 4.0 * layout.num_elements * world_size
        one_of = 1 + 3 / world_size  # all rows are read, their sum is written, read to be divided and written
        return [
            rows_to_host(n, world_size),
            CodecWork("concatenate", num_bytes, where="host", by_all=False),
            CodecWork("mean", num_bytes, where="host", bytes_moved=one_of, by_all=False),
            *stepped_on_host(n, world_size, num_threads=1),
        ]


@final
@dataclass(frozen=True)
class TfReplicated(Scheduled):
    """TensorFlow's replicated variables: tensor i is summed on rank i mod n, and copied back."""

    name = "tf_replicated"

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        parts = [
            BufferPart(math.prod(shape), shuffle(world_size, [i % world_size]))
            for i, shape in enumerate(layout.shapes)
        ]
        return of_parts(self.name, world_size, parts)
