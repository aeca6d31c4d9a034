"""The ranks' gradients side by side in host memory, tensor by tensor, for one rank to make the mean of.

What a system does whose parameters live on the CPU: nothing is cut and nothing is pipelined.

1. Every rank copies its gradient into its row, one copy a tensor (`d2h`), all ranks at the same time.
2. When all rows are there, rank 0 makes the result of them, tensor by tensor.
3. When it has, the ranks may read the result, and write their rows again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Span
from scaling.bucket import BucketLayout
from scaling.process_group import Group, HostCounters


def tensor_spans(layout: BucketLayout) -> list[Span]:
    ends = [*layout.offsets[1:], layout.num_elements]
    return [(start, stop) for start, stop in zip(layout.offsets, ends, strict=True) if start < stop]


class HostRows:
    """A row a rank in memory that all ranks of one host share. Collective to make.

    Attributes:
        spans: the elements of each tensor that has any.
        rows: [world_size, num_elements] in host memory; row r is rank r's gradient.

    Raises:
        LaunchError: the ranks are on several hosts, or shared memory is too small.
    """

    def __init__(self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device) -> None:
        n, num_elements = group.world_size, layout.num_elements
        self._is_cuda = device.type == "cuda"
        shared = group.shared_host_buffer((n + 1) * num_elements * dtype.itemsize, register=self._is_cuda)
        rows = shared.view(dtype).view(n + 1, num_elements)
        self.spans = tensor_spans(layout)
        self.rows, self.result = rows[:n], rows[n]
        self._group = group
        self._counters = HostCounters(group)

    def bring_up(self, gradient: Tensor, phase: PhaseMarker) -> None:
        row = self.rows[self._group.rank]
        with phase("d2h"):
            for start, stop in self.spans:
                row[start:stop].copy_(gradient[start:stop], non_blocking=True)
            if self._is_cuda:
                # Also for copies from `result` of the step before: rank 0 may write it again after this.
                torch.cuda.current_stream().synchronize()
        self._group.meter.count(gradient.nbytes, len(self.spans))
        self.meet(phase)

    def meet(self, phase: PhaseMarker) -> None:
        """Returns when every rank has called it: what was written to the host before is seen then."""
        with phase("wait"):
            self._counters.meet()
