"""torch's own PowerSGD hook for DDP, next to `power_sgd`: what users of DDP register.

Its mean is that of `power_sgd`, to rounding, and so are its bytes. It differs in how it gets there:
1. the first `start_step` steps exchange the gradient as it is, while DDP settles its buckets;
2. what is sent as it is, all P and all Q travel in three all-reduces a bucket, matrix by matrix unless
   `batched`; the backward pass waits for the device in each.

Only the overlapped step runs it, by torch's code. Elsewhere, as in `scaling verify`, `power_sgd` stands in.

Error property: n mean + the new residuals = the sum of gradients + the old ones, up to float rounding.

Reference: T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019; PyTorch, ddp_comm_hooks/powerSGD_hook.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from scaling.aggregators.base import DdpPath
from scaling.aggregators.power_sgd import PowerSgd
from scaling.aggregators.prediction import all_reduce_bytes, native_all_reduce
from scaling.aggregators.state import layout_digest, require_same_layout, saved_tensor
from scaling.bucket import BucketLayout
from scaling.codecs.base import WORD_BYTES
from scaling.collectives.plan import CodecWork, Stage, Update
from scaling.errors import StudyError

if TYPE_CHECKING:  # torch.distributed has it too, hidden from type checkers
    from torch._C._distributed_c10d import GradBucket

EARLIEST_STEP = 2  # that torch allows: DDP rebuilds its buckets behind the first
ENCODE_BYTES_MOVED = 7.0
"""For each byte of the gradient: 3 to add the residual, 2 to copy the sum, 2 to read it for P and for Q."""
DECODE_BYTES_MOVED = 4.0  # 1 for P Q^T, 3 for the residual


@final
@dataclass(frozen=True)
class PowerSgdHook(PowerSgd):
    """torch's PowerSGD hook for DDP.

    `start_step`: the step with which compression begins; 2 is the earliest. torch's default is 1000.
    `batched`: matrices of one shape in a bucket are multiplied together."""

    name = "power_sgd_hook"
    overlapped_only = True
    graph_capturable = False
    dtypes = (torch.float32,)

    start_step: int = EARLIEST_STEP
    batched: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_step < EARLIEST_STEP:
            raise StudyError(
                f"aggregator {self.name!r}: start_step: allowed is {EARLIEST_STEP} or more, since DDP "
                f"rebuilds its buckets behind the first step; got {self.start_step}"
            )

    def ddp_path(self) -> DdpPath:
        return "library_hook"

    def settling_steps(self) -> int:
        return self.start_step

    def library_hook(
        self, process_group: Any, layouts: Mapping[int, BucketLayout], device: torch.device
    ) -> PowerSgdHookState:
        return PowerSgdHookState(self, process_group, layouts, device)

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        n, num_bytes = layout.num_elements, 4.0 * layout.num_elements
        sizes = [size // WORD_BYTES for size in self.messages(layout)]
        return [
            CodecWork("encode", num_bytes, bytes_moved=ENCODE_BYTES_MOVED),
            *(native_all_reduce(sizes, world_size, "all_reduce") if world_size > 1 else []),
            CodecWork("decode", num_bytes, bytes_moved=DECODE_BYTES_MOVED),
            Update("replica", n),
        ]

    def messages(self, layout: BucketLayout) -> list[int]:
        matrices = WORD_BYTES * sum(group.p_elements for group in self.codec().groups(layout.shapes))
        first, second = self.codec().message_bytes(layout)
        return [first - matrices, matrices, second]


class PowerSgdHookState:
    """torch's hook with its state, for all buckets of one rank. StudyError: a parameter is a scalar, of which
    the hook makes no matrix."""

    def __init__(
        self,
        aggregator: PowerSgdHook,
        process_group: Any,
        layouts: Mapping[int, BucketLayout],
        device: torch.device,
    ) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        if device.type == "cpu" and torch.cuda.is_available():
            raise StudyError(
                "torch's PowerSGD hook waits for a GPU wherever there is one: set CUDA_VISIBLE_DEVICES= for "
                "cells on the CPU, or use power_sgd"
            )
        tensors = ((name, s) for of in layouts.values() for name, s in zip(of.names, of.shapes, strict=True))
        scalar = next((name for name, shape in tensors if not shape), None)
        if scalar is not None:
            raise StudyError(
                f"parameter {scalar!r} is a scalar, which torch's PowerSGD hook does not take; give it the "
                "shape [1], or use power_sgd"
            )
        self._aggregator, self._layouts, self._hook = aggregator, layouts, powerSGD_hook.powerSGD_hook
        self._world_size, self._device = process_group.size(), device
        self.state = powerSGD_hook.PowerSGDState(
            process_group,
            matrix_approximation_rank=aggregator.approximation_size,
            start_powerSGD_iter=aggregator.start_step,
            min_compression_rate=aggregator.minimum_compression,
            use_error_feedback=aggregator.error_feedback,
            warm_start=aggregator.warm_start,
            random_seed=aggregator.seed,
            batch_tensors_with_same_shape=aggregator.batched,
        )

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = self._hook(self.state, bucket)
        return future

    def next_bytes(self, index: int) -> int:
        layout = self._layouts[index]
        compresses = self.state.iter >= self._aggregator.start_step
        sizes = self._aggregator.messages(layout) if compresses else [WORD_BYTES * layout.num_elements]
        return all_reduce_bytes(sizes, self._world_size)

    def residual(self, index: int, like: Tensor) -> Tensor | None:
        """[num_elements] what a bucket has withheld so far, a copy; None without feedback."""
        if not self._aggregator.error_feedback:
            return None
        withheld = self.state.error_dict.get(index)
        return torch.zeros_like(like) if withheld is None else withheld.detach().clone()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Residual, P and Q of every bucket that has them, by its number; the step and the random state."""
        saved = {str(index): layout_digest(layout) for index, layout in self._layouts.items()}
        for name, tensors in self._tensors().items():
            for index, tensor in tensors.items():
                saved[str(index)][name] = tensor.detach().clone()
        _, keys, place, *_ = self.state.rng.get_state(legacy=True)
        drawn = torch.tensor([*map(int, keys), int(place)])
        return {**saved, "hook": {"step": torch.tensor([self.state.iter]), "random": drawn}}

    def load_state_dict(self, saved: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes over what `state_dict` gave of the same buckets; of others nothing (CheckpointError)."""
        for index, layout in self._layouts.items():
            require_same_layout(layout, saved.get(str(index), {}))
        hook = saved.get("hook", {})
        step = int(saved_tensor(hook, "step", [1]))
        *keys, place = saved_tensor(hook, "random", [625]).tolist()
        drawn = np.array(keys, dtype=np.uint32)
        for name, tensors in self._tensors().items():
            tensors.clear()
            for index in self._layouts:
                if name in saved[str(index)]:
                    tensors[index] = saved[str(index)][name].to(self._device, copy=True)
        self.state.iter = step
        self.state.rng.set_state(("MT19937", drawn, place, 0, 0.0))

    def _tensors(self) -> dict[str, dict[int, Tensor]]:
        state = self.state
        return {"residual": state.error_dict, "p": state.p_memory_dict, "q": state.q_memory_dict}
