"""A training loop with torch's DistributedDataParallel, as one writes it by hand.

It is the yardstick of `against_ddp_loop.py` and `power_sgd_speed.py`, and uses nothing of this project.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class DdpLoop:
    """The loop's body, for a model that is on its device already.

    Args:
        model: gives logits for inputs.
        process_group: of the ranks; None: the default one.
        broadcast_buffers: DDP's own default; without it statistics of batch normalisation stay each rank's.
        bucket_mb: upper size of a bucket, in MiB; None: DDP's default.
        bucket_views: gradients are views into the buckets, so that DDP need not copy them.
        hook: a communication hook and its state.
    """

    def __init__(
        self,
        model: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        *,
        broadcast_buffers: bool = True,
        bucket_mb: float | None = None,
        bucket_views: bool = False,
        hook: tuple[Any, Any] | None = None,
    ) -> None:
        sizes: dict[str, Any] = {} if bucket_mb is None else {"bucket_cap_mb": bucket_mb}
        self.model = DistributedDataParallel(
            model,
            process_group=process_group,
            broadcast_buffers=broadcast_buffers,
            gradient_as_bucket_view=bucket_views,
            **sizes,
        )
        if hook is not None:
            function, state = hook
            self.model.register_comm_hook(state, function)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One iteration; the loss is not waited for."""
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()
