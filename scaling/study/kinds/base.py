"""What a kind of study is: the keys of its parts, their cells, how one is run, and what its record says.

Nothing here imports torch, nor does the top of a kind's module: a study file is read without it. The time of
a step, for `scaling plan`, is fitted to the committed results, of an H200 and of cores of a virtual machine:
operations at a usual rate, launches of kernels (of each step and tensor), and the gradient's bytes at their
path's rate; `benchmarks/plan_quality.py` compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from scaling.study.cell import AnyCell, AvailableMachine, Cell
from scaling.study.parts import AnyPart

if TYPE_CHECKING:
    from scaling.study.rank.context import RankSummary, RunContext

START_UP_S = {"cpu": 2.0, "cuda": 5.0}  # what a launch is assumed to take before its first cell


PartT = TypeVar("PartT", bound=AnyPart)
CellT = TypeVar("CellT", bound=AnyCell)


class Kind(ABC, Generic[PartT, CellT]):
    part: type[PartT]  # the keys that a part may have; a pydantic model whose `kind` is a literal
    cell: ClassVar[type[AnyCell]] = Cell  # the class of its cells
    why_other_keys_are_wrong: ClassVar[str] = ""  # said where a part has a key of other kinds
    estimated_from: ClassVar[str] = "operations at an assumed rate"  # where `seconds` comes from, for people

    @abstractmethod
    def cells(self, part: PartT, machine: AvailableMachine, notes: list[str]) -> Iterable[CellT]:
        """The cells of a part on that machine; `notes` takes what was decided. Raises StudyError."""

    @abstractmethod
    def run(self, cell: CellT, context: RunContext) -> RankSummary:
        """Measures or trains the cell on this rank, whose group and device `context` has. Collective."""

    @abstractmethod
    def seconds(self, cell: CellT, num_cores: int, size: ModelSize | None) -> float:
        """About how long the cell takes; workers share the machine's `num_cores`."""

    def start_up_s(self, device: str) -> float:
        """What a launch of such cells alone is assumed to take before the first of them."""
        return START_UP_S[device]

    def summary(self, ranks: Sequence[RankSummary]) -> dict[str, Any]:
        """What `run.json` says of a finished run, from what the ranks say, by rank."""
        return {"seconds": ranks[0].seconds, "memory_peak_bytes": [rank.memory_peak_bytes for rank in ranks]}

    def label(self, cell: Mapping[str, Any]) -> str:
        """What is under way, from a cell's variables as records have them."""
        return str(cell["kind"])


OPERATIONS_PER_S = {"cpu": 2e10, "cuda": 3e13}  # of a CPU core and of a GPU, in float32
TENSOR_CORES_RATIO = 8.0  # how many times as many a GPU does in 16 bits

STEP_S = {"eager": 2e-3, "overlapped": 2e-3, "captured": 7e-4}
TENSOR_S = {"eager": 8e-5, "overlapped": 8e-5, "captured": 2.5e-5}  # of a step; of a tensor in it
BYTES_PER_S = {"eager": 6e10, "overlapped": 2e11, "captured": 2e11}  # between GPUs, some by the host
THROUGH_HOST_BYTES_PER_S = 1.2e10  # of a gradient where workers share a GPU

BETWEEN_PROCESSES_BYTES_PER_S = 1e9

CELL_SET_UP_S = {"eager": 0.3, "overlapped": 0.4, "captured": 0.9}
SET_UP_S_PER_ELEMENT = {"eager": 5e-9, "overlapped": 1.8e-8, "captured": 1.4e-8}  # building, checks
CHECK_S_PER_ELEMENT = 6e-8  # where cells exchange: 7 to 8 s more for 10 cells of GPT-2 small on two H200
COMPILE_S = 17.0  # of torch.compile: what 4 compiled cells of GPT-2 small took beyond others (1 to 32 s)


@dataclass(frozen=True)
class ModelSize:
    num_parameters: int  # trainable ones
    num_tensors: int = 10  # that they are in
    flops_per_sample: float | None = None  # of a forward and a backward pass (None: that of dense layers)

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
