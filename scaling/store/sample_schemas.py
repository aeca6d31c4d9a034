"""What a line of samples may hold: one schema a kind of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import NotRequired, TypedDict

from scaling.axes import LARGEST_WORLD
from scaling.errors import StoreError
from scaling.store.files import MEND_SAMPLES
from scaling.store.schemas import Count, Finite, OpenModel, Scalar, Seconds, Size, explain

Rank = Annotated[int, Field(ge=0, lt=LARGEST_WORLD)]
Loss = Finite | None
"""None where it was not finite, which JSON does not know."""

Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None


class _Line(TypedDict):
    """Of many lines, as typed dictionaries are checked five times as fast as models."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]


Span = Annotated[tuple[str, str, Seconds, Seconds], Field(strict=False)]
"""[phase, lane, start, stop], in seconds after the step's start; a list, as JSON has no tuples."""


class IterationLine(_Line):
    """A step of a timed cell, or several as one: `steps`; older folders have `<phase>_s`, not `spans`."""

    iteration: Count
    warmup: bool
    step_s: Seconds
    steps: NotRequired[Size]
    profiled: NotRequired[bool]
    start_s: NotRequired[Seconds | None]
    spans: NotRequired[list[Span]]
    behind_s: NotRequired[dict[str, Finite] | None]
    input_s: NotRequired[Seconds]
    h2d_s: NotRequired[Seconds]
    forward_s: NotRequired[Seconds]
    backward_s: NotRequired[Seconds]
    encode_s: NotRequired[Seconds]
    d2h_s: NotRequired[Seconds]
    communicate_s: NotRequired[Seconds]
    reduce_s: NotRequired[Seconds]
    decode_s: NotRequired[Seconds]
    clip_s: NotRequired[Seconds]
    update_s: NotRequired[Seconds]
    h2d_result_s: NotRequired[Seconds]
    wait_s: NotRequired[Seconds]


class NoiseSquares(_Line):
    """Squared norms of gradients of two batch sizes in some steps (`scaling.training.noise_probe`)."""

    small_batch: Size
    big_batch: Size
    steps: list[Count]
    small: list[Finite]
    big: list[Finite]


class ConvergenceLine(_Line):
    """An epoch of a training; what is the same on all ranks is in the lines of rank 0 alone."""

    epoch: Count
    train_s: Seconds
    train_j: NotRequired[Seconds | None]
    bytes_sent: NotRequired[Count]
    samples: NotRequired[Count]
    learning_rate: NotRequired[Finite]
    step_losses: NotRequired[list[Loss]]
    train_loss: NotRequired[Loss]
    test_loss: NotRequired[Loss]
    train_accuracy: NotRequired[Share]
    test_accuracy: NotRequired[Share]
    noise: NotRequired[NoiseSquares]


class TransferSampleModel(BaseModel):
    """`scaling.measure.probe.cases.Sample`, after JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    launch: str
    operation: Annotated[str, Field(min_length=1)]
    ranks: Annotated[list[Rank], Field(min_length=1)]
    memory: str
    captured: bool
    num_threads: Size | None
    num_bytes: Annotated[int, Field(ge=1, lt=2**62)]
    repeats: Annotated[int, Field(ge=1, lt=2**62)]
    seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _RankFactsModel(OpenModel):
    name: str | None = None
    uuid: str | None = None
    peers: list[Rank] = []


class _DetectedModel(OpenModel):
    name: str
    description: str
    device_types: dict[str, Any]
    link_types: dict[str, Any]
    devices: list[Any]
    links: list[Any]


class TransferFactsModel(OpenModel):
    """What the workers of a probe found of the machine."""

    device: str
    ranks: Annotated[list[_RankFactsModel], Field(min_length=1)]
    torch: str
    nccl: str | None = None
    mpi: str | None = None
    date: str
    detected: _DetectedModel
    gpu_ids: list[str]
    missing: list[str]


class TransferLineModel(OpenModel):
    sample: TransferSampleModel | None = None
    facts: TransferFactsModel | None = None


class DeviceLineModel(OpenModel):
    """A line of an experiment's: a sample of a phase, or a fact with a value or a point of a curve."""

    phase: str | None = None
    seconds: Seconds | None = None
    fact: str | None = None
    value: Scalar | list[Any] | dict[str, Any] = None
    x: Scalar | list[Scalar] = None
    y: Scalar | list[Scalar] = None

    @model_validator(mode="after")
    def _one_of_both(self) -> DeviceLineModel:
        if self.fact is None and (self.phase is None or self.seconds is None):
            raise ValueError("is neither a sample nor a fact")
        return self


TRAINED_LINES = {"iteration": IterationLine, "attached": IterationLine, "convergence": ConvergenceLine}
"""Kind of cells that train -> a line of its samples."""

LINES: dict[str, Any] = {**TRAINED_LINES, "transfer": TransferLineModel, "device": DeviceLineModel}
"""The same of all built-in kinds."""


@cache
def _lines_of(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(list[model])


def validate_lines(model: Any, lines: Sequence[Mapping[str, Any]], where: str) -> None:
    """Checks the lines of a rank's samples. Raises StoreError: naming the first line that is wrong, its key,
    and what is allowed."""
    try:
        _lines_of(model).validate_python(lines)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        number, *path = first["loc"]
        problem = explain({**first, "loc": tuple(path)}, None)
        raise StoreError(f"{where}, line {int(number) + 1} is damaged: {problem}; {MEND_SAMPLES}") from None
