"""1-bit Adam, and its compressed all-reduce of the momentum for SGD.

`one_bit_momentum`:
1. Every rank makes its own momentum of the common one: v = momentum * (the last step's result) + gradient.
2. v + residual, in chunks of C elements, goes as signs and one scale a chunk through compressed stripes
   (`scaling.aggregators.striped`), with both residuals. The scale is |v| / sqrt(C) in the 2-norm, so decoded
   values have the norm of v; the new residual = v - decoded.
3. The result is the new common momentum, by which the optimizer steps as by a gradient: its own is 0.

Steps and bytes: those of the stripes, with u = d = ceil(N / C) (4 + C / 8) for N elements in chunks of C.
Error property: n times the result + the new residuals = the sum of v + the old residuals. A rank alone
encodes nothing: its momentum is torch.optim.SGD's.

`one_bit_adam`: Adam until its second moment has settled, then its momentum in one bit an element.
1. For `warmup_steps` steps gradients are summed by the library's all-reduce, and Adam's moments m and s are
   made of the mean.
2. Then s is frozen. Every rank adds its gradient to the common momentum, which goes through the compressed
   stripes of `one_bit_momentum`, with both residuals.
3. What comes out is m / (sqrt(s) + epsilon), by which the optimizer steps: SGD without momentum, with Adam's
   learning rate; its weight decay is then AdamW's. Tables say adamw, or adam without decay, with these betas.

An element that had no gradient in the warm-up has no second moment: it keeps its value, as a sign divided by
epsilon would be a step of any size.

Steps and bytes: those of an all-reduce, then of `one_bit_momentum`. Error property, behind the warm-up: n
times the result + the new residuals = the sum of the ranks' momenta + the old residuals, all divided by
sqrt(s) + epsilon. A rank alone encodes nothing.

Reference: H. Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence
Speed", ICML 2021, algorithm 1; DeepSpeed, deepspeed/runtime/comm/nccl.py (compressed_allreduce) and
deepspeed/runtime/fp16/onebit/adam.py. Where we differ: one scale a chunk of the flat bucket, where DeepSpeed
has one a rank's whole message; `one_bit_momentum`'s momentum is 1 / (1 - beta) times as large, and it has no
steps without compression at the start, which settle the variance that SGD has not; in `one_bit_adam` both
moments are corrected for their bias, as in torch.optim.Adam, until the second is frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from pydantic import PositiveFloat
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, Stated, unmarked
from scaling.aggregators.state import AggregatorState, check_momentum
from scaling.aggregators.striped import Striped
from scaling.bucket import BucketLayout
from scaling.codecs.chunks import ChunkCodec, Kernel, SignCodec
from scaling.codecs.kernels import Kernels
from scaling.collectives.plan import Stage
from scaling.errors import StudyError
from scaling.process_group import Group


@dataclass(frozen=True)
class NormSignCodec(SignCodec):
    """Signs that are multiplied by the root mean square."""

    name: ClassVar[str] = "one_bit_momentum"
    kernel: ClassVar[Kernel] = "ROOT"

    def scale(self, values: Tensor, valid: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        return norms / valid.sqrt()


@final
@dataclass(frozen=True)
class OneBitMomentum(Striped):
    """1-bit Adam's compressed all-reduce of the momentum, for SGD; the optimizer's momentum must be 0.

    `momentum`: of the result, from 0 to less than 1; `chunk_elements`: values that share a scale, a multiple
    of 32."""

    name = "one_bit_momentum"

    momentum: float = 0.9
    chunk_elements: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check_momentum(self.name, "momentum", self.momentum, may_be_zero=False)

    def codec(self) -> ChunkCodec:
        return NormSignCodec(self.chunk_elements)

    def own_momentum(self) -> float:
        return self.momentum


class OneBitAdamState(AggregatorState):
    """Adam's moments on one rank, and the stripes of the first one."""

    by_parameter = ("second",)

    def __init__(
        self, of: OneBitAdam, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(group, layout)
        self.settings, n = of, layout.num_elements
        # With the momentum, m / (1 - beta1); it and the second moment are without their corrections.
        self.stripes = of.stripes().start(layout, group, torch.float32, device)
        self.second = torch.zeros(n, device=device)
        self.steps = torch.zeros((), dtype=torch.int64)  # taken so far, in host memory
        self.result = torch.empty(n, dtype=dtype, device=device)

    @property
    def is_settled(self) -> bool:
        return int(self.steps) >= self.settings.warmup_steps

    @property
    def notes(self) -> list[str]:
        return [f"one bit an element after {self.settings.warmup_steps} steps", *self.stripes.notes]

    def check(self) -> None:
        self.stripes.check()

    def direction(self, momentum: Tensor) -> Tensor:
        """[num_elements] Adam's step of a momentum m / (1 - beta1), without the learning rate."""
        of, steps = self.settings, min(int(self.steps), self.settings.warmup_steps)
        first = (1 - of.beta1) / (1 - of.beta1**steps)
        second = self.second / (1 - of.beta2**steps)
        return (momentum * first / (second.sqrt_() + of.epsilon)).masked_fill_(self.second == 0, 0.0)

    def withheld(self) -> Tensor | None:
        """The stripes' residuals, as they would change the next step; None before anything is encoded."""
        if int(self.steps) <= self.settings.warmup_steps:
            return None
        held = self.stripes.withheld()
        return None if held is None else self.direction(held)

    def state_dict(self) -> dict[str, Tensor]:
        return self.stripes.state_dict() | super().state_dict()

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        super().load_state_dict(tensors)
        self.stripes.load_state_dict(tensors)

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        seconds = super().checkpoint_tensors()
        return seconds | {name.replace("second", "steps", 1): self.steps for name in seconds}


@final
@dataclass(frozen=True)
class OneBitAdam(Stated[OneBitAdamState]):
    """1-bit Adam; the optimizer is sgd without momentum, its learning rate Adam's.

    `warmup_steps`: of Adam without compression, at least one; `chunk_elements`: values that share a scale, a
    multiple of 32; `kernels`: see `one_bit_momentum`."""

    name = "one_bit_adam"
    state_class = OneBitAdamState
    lossy = True
    overlaps = True
    dtypes = (torch.float32, torch.float64, torch.bfloat16)  # of a step, which float16 may not hold

    warmup_steps: int = 100
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: PositiveFloat = 1e-8
    chunk_elements: int = 1024
    kernels: Kernels = field(default="auto", kw_only=True)

    def __post_init__(self) -> None:
        if self.warmup_steps < 1:
            raise StudyError(
                f"aggregator {self.name!r}: warmup_steps is {self.warmup_steps}; it needs one at least, and "
                "a training some hundred: they make the second moment that is frozen behind them"
            )
        check_momentum(self.name, "beta1", self.beta1, may_be_zero=False)
        check_momentum(self.name, "beta2", self.beta2, may_be_zero=False)
        self.stripes()

    def stripes(self) -> OneBitMomentum:
        return OneBitMomentum(self.beta1, self.chunk_elements, kernels=self.kernels)

    def own_momentum(self) -> float:
        return self.beta1

    def settling_steps(self) -> int:
        return self.warmup_steps

    def aggregate(self, state: OneBitAdamState, gradient: Tensor, phase: PhaseMarker = unmarked) -> Tensor:
        gradient = gradient.float()
        if state.is_settled:
            momentum = self.stripes().aggregate(state.stripes, gradient, phase)
        else:
            momentum = self._uncompressed(state, gradient, phase)
        state.steps += 1
        with phase("decode"):
            return state.result.copy_(state.direction(momentum))

    def _uncompressed(self, state: OneBitAdamState, gradient: Tensor, phase: PhaseMarker) -> Tensor:
        """The momentum with the exact mean, of which both moments are made."""
        mean = gradient.clone()
        if state.group.world_size > 1:
            with phase("communicate"):
                state.group.all_reduce(mean)
            with phase("reduce"):
                mean.div_(state.group.world_size)
        with phase("decode"):
            momentum = state.stripes.momentum[: mean.numel()]
            momentum.mul_(self.beta1).add_(mean)
            state.second.mul_(self.beta2).addcmul_(mean, mean, value=1 - self.beta2)
        return momentum

    def contribution(self, state: OneBitAdamState, gradient: Tensor) -> Tensor:
        if not state.is_settled:
            return gradient
        momentum = self.stripes().contribution(state.stripes, gradient.float())
        return state.direction(momentum)

    def stages(self, layout: BucketLayout, world_size: int) -> list[Stage]:
        return self.stripes().stages(layout, world_size)
