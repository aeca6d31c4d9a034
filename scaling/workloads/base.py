"""What a workload is made of: a model that declares its input, and a data set that declares its shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits [n, ..., num_classes], targets [n, ...]) -> a scalar: the mean over all targets."""


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


BENCHMARK_PAPER = (
    'S. Shi, Q. Wang, P. Xu, X. Chu, "Benchmarking state-of-the-art deep learning software tools", '
    "arXiv 1608.07249"
)
"""Where the networks come from that this project began with."""


@dataclass(frozen=True)
class DataShape:
    """The shape of one sample, and targets 0 to num_classes - 1. `tokens`: inputs are numbers of classes too,
    and each has a target; otherwise a sample is of real numbers and has one."""

    input_shape: tuple[int, ...]
    num_classes: int
    tokens: bool = False


@dataclass(frozen=True)
class Split:
    """Inputs [n, *input_shape] float32, of tokens int64; targets [n] int64, of tokens [n, *input_shape]."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class DataSplits:
    """`checksums`: file or source -> checksum; `in_host_memory`: it does not fit on the device."""

    train: Split
    test: Split
    checksums: dict[str, str]
    in_host_memory: bool = False


@dataclass(frozen=True)
class Dataset(ABC):
    """A data set by name; its fields are the parameters that a study may set. `source`: where it comes from,
    for people; `real`: False for random numbers, whose accuracy means nothing; `num_train`: training samples;
    None where as many are made as are asked for, or `num_samples` says; `bits_per_byte`: its tokens are
    bytes, so that its test loss is that of bytes."""

    name: ClassVar[str]
    source: ClassVar[str]
    real: ClassVar[bool] = True
    num_train: ClassVar[int | None] = None
    bits_per_byte: ClassVar[bool] = False

    def num_samples(self, shape: DataShape) -> int | None:
        """Training samples of that shape; None where as many are made as are asked for."""
        return self.num_train

    @abstractmethod
    def shape(self, model_shape: DataShape | None) -> DataShape:
        """Its shape; `model_shape` is what the model demands, for data that adapts to it."""

    @abstractmethod
    def available(self) -> bool:
        """Whether `load` would succeed on this machine without a download."""

    @abstractmethod
    def fetch(self) -> None:
        """Once a machine, before any `load`; may download. DataError: file, checksum and places."""

    @abstractmethod
    def load(self, shape: DataShape, num_samples: int, seed: int) -> DataSplits:
        """Into host memory; never downloads. `num_samples`: training samples that are needed at least, and
        `seed`: of data made on demand. DataError: a file is missing or damaged."""


@dataclass(frozen=True)
class Model:
    """`build`: (shape, parameters of the study...) -> module, its weights from torch's global generator. It
    gives logits, [n, num_classes] or for tokens [n, *input_shape, num_classes]. `shape`: None if it adapts to
    the data set; `dataset`: that it was published with; `parameters`: names and defaults; `shape_of`: gives
    `shape`, of the parameters by name, where it depends on them."""

    name: str
    build: Callable[..., nn.Module]
    shape: DataShape | None
    dataset: str
    source: str
    parameters: dict[str, object] = field(default_factory=dict)
    loss: Loss = cross_entropy
    shape_of: Callable[..., DataShape] | None = None


Maker = TypeVar("Maker", bound=Callable[..., nn.Module])


def declares(
    input_shape: tuple[int, ...], num_classes: int, *, tokens: bool = False, loss: Loss = cross_entropy
) -> Callable[[Maker], Maker]:
    """Of a function, or a class, that gives a torch module: its input (`DataShape`) and what is minimized."""

    def declared(maker: Maker) -> Maker:
        maker.declared = (DataShape(tuple(input_shape), num_classes, tokens), loss)  # type: ignore[attr-defined]
        return maker

    return declared
