"""How long a step of a network takes, roughly, for `scaling plan`: fitted to the committed results.

A step is its floating-point operations at a usual rate, the time that launching kernels takes (for each step
and each tensor), and its gradient's bytes at the rate of their path. The rates are those of an H200 and of a
core of a virtual machine; `benchmarks/plan_quality.py` compares the estimates with results/reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scaling.study.cell import Cell

OPERATIONS_PER_S = {"cpu": 2e10, "cuda": 3e13}
"""Of a CPU core and of a GPU, in float32."""

TENSOR_CORES_RATIO = 8.0
"""How many times as many a GPU does in 16 bits."""

STEP_S = {"eager": 2e-3, "overlapped": 2e-3, "captured": 7e-4}
TENSOR_S = {"eager": 8e-5, "overlapped": 8e-5, "captured": 2.5e-5}
"""Of each step, and of each tensor of parameters in it."""

BYTES_PER_S = {"eager": 6e10, "overlapped": 2e11, "captured": 2e11}
"""Of a gradient between GPUs; some eager strategies go through host memory."""

THROUGH_HOST_BYTES_PER_S = 1.2e10
"""Of a gradient where workers share a GPU."""

BETWEEN_PROCESSES_BYTES_PER_S = 1e9

CELL_SET_UP_S = {"eager": 0.3, "overlapped": 0.4, "captured": 0.9}
SET_UP_S_PER_ELEMENT = {"eager": 5e-9, "overlapped": 1.8e-8, "captured": 1.4e-8}
"""Of each element of the parameters: building, and checking steps against the exact ones."""

CHECK_S_PER_ELEMENT = 6e-8
"""Of each element of the parameters, in cells that exchange: 10 cells of GPT-2 small on two H200 took 7 to
8 s longer than those of the control arm."""

COMPILE_S = 17.0
"""Of torch.compile: what 4 compiled cells of GPT-2 small took beyond others (1 to 32 s)."""


@dataclass(frozen=True)
class ModelSize:
    """What a network's steps are made of. `num_parameters`: trainable ones; `num_tensors`: that they are in;
    `flops_per_sample`: of a forward and a backward pass (None: that of dense layers)."""

    num_parameters: int
    num_tensors: int = 10
    flops_per_sample: float | None = None

    @property
    def flops(self) -> float:
        """Per sample: in dense layers 2 a parameter forward, 4 backward."""
        return self.flops_per_sample or 6.0 * self.num_parameters


def step_seconds(cell: Cell, size: ModelSize, num_cores: int) -> float:
    """The time of one step. `num_cores`: of the machine, which the workers share."""
    seconds = STEP_S[cell.step] + TENSOR_S[cell.step] * size.num_tensors
    if cell.device == "cpu":
        rate = OPERATIONS_PER_S["cpu"] * min(num_cores, cell.world_size * cell.threads)
        path = BETWEEN_PROCESSES_BYTES_PER_S
    else:
        sharing = cell.workers_per_gpu or 1
        rate = OPERATIONS_PER_S["cuda"] * cell.world_size / sharing
        rate *= TENSOR_CORES_RATIO if cell.precision in ("bf16", "fp16") else 1.0
        path = THROUGH_HOST_BYTES_PER_S if sharing > 1 else BYTES_PER_S[cell.step]
        seconds *= sharing
    seconds += size.flops * cell.global_batch / rate
    if cell.exchanges and cell.world_size > 1:
        seconds += 4.0 * size.num_parameters / path / cell.sync_every
    return seconds


def set_up_seconds(cell: Cell, size: ModelSize) -> float:
    """What a cell takes before its first step; without the checks of its exchange."""
    compiling_s = COMPILE_S if cell.compile else 0.0
    return CELL_SET_UP_S[cell.step] + SET_UP_S_PER_ELEMENT[cell.step] * size.num_parameters + compiling_s


def check_seconds(cell: Cell, size: ModelSize) -> float:
    """What checking the exchange of several workers against the mean takes, where a cell exchanges."""
    is_checked = cell.exchanges and cell.world_size > 1
    return CHECK_S_PER_ELEMENT * size.num_parameters if is_checked else 0.0
