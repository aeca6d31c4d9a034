"""What the parts of a study file are made of: the types that kinds of study build theirs from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)

from launchers.watch.heartbeat import DEFAULT_STALL_TIMEOUT_S

Device = Literal["auto", "cpu", "cuda"]


def _as_list(value: Any) -> Any:
    """Axes may be given as one value or as a list of values."""
    if value == []:
        raise ValueError("a list needs one value at least")
    return value if isinstance(value, list) else [value]


def _component(value: Any) -> Any:
    """`ring` and `{name: one_bit, threshold: mean}` become a name with parameters."""
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return {"name": value["name"], "parameters": {k: v for k, v in value.items() if k != "name"}}
    raise ValueError("a component is a name, or a mapping with 'name' and its parameters")


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
"""A finite number; `1e-3`, which YAML takes for a text, is one too."""


DEFAULT_BATCH = {"cuda": 8192, "cpu": 128}
"""Of `global_batch: auto` where no trial was made (`scaling.study.trial`), as for `scaling plan`."""

SIZE_WORDS = ("auto", "all")
"""In place of world sizes: 1, 2, 4, ... and all GPUs of the machine or the allocation; these all alone."""

PositiveInt = Annotated[int, Field(gt=0, le=10**9, strict=True)]
Repeats = Annotated[int, Field(gt=0, le=10_000, strict=True)]
Threads = Annotated[int, Field(gt=0, le=4096, strict=True)]
WorldSize = Annotated[int, Field(gt=0, le=2**16, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
"""What torch's generators take."""

Axis = BeforeValidator(_as_list)


def _or_word(*words: str) -> tuple[WrapValidator, PlainSerializer]:
    """Takes one of these words in place of what the field holds."""

    def checked(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, str) and value in words else check(value)

    return WrapValidator(checked), PlainSerializer(lambda value: value)


if TYPE_CHECKING:
    Sizes = list[int] | Literal["auto", "all"]
    Batches = list[int] | Literal["auto"]
else:
    Sizes = Annotated[(list[PositiveInt], Field(min_length=1), Axis, *_or_word(*SIZE_WORDS))]
    Batches = Annotated[(list[PositiveInt], Axis, *_or_word("auto"))]


class Strict(BaseModel):
    """A mapping that takes no other keys than its fields.

    Keys that have no value are not written, unless that is what the study says against a default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {k: v for k, v in write(self).items() if v is not None or fields[k].default is not None}


class NamedComponent(Strict):
    """A name, with the parameters that the study sets."""

    name: str
    parameters: dict[str, Any] = {}


def _as_written(component: NamedComponent) -> dict[str, Any]:
    """What `_component` reads, so that a study that was written can be run again."""
    return {"name": component.name, **component.parameters}


Component = Annotated[NamedComponent, BeforeValidator(_component), PlainSerializer(_as_written)]


class Training(Strict):
    """How the optimizer is set; the defaults of each are in `scaling.study.optimizers`."""

    learning_rate: Number | None = Field(None, gt=0)
    momentum: Number | None = Field(None, ge=0, lt=1)
    weight_decay: Number | None = Field(None, ge=0)
    nesterov: bool | None = None
    beta1: Number | None = Field(None, ge=0, lt=1)
    beta2: Number | None = Field(None, ge=0, lt=1)
    epsilon: Number | None = Field(None, gt=0)
    clip_norm: Number | None = Field(None, gt=0)
    clip_gradient: Literal["mean", "local"] | None = None


Augmentation = Literal["none", "standard"]


class Recipe(Strict):
    """How a training goes on over its epochs (`scaling.training.learning_rate`)."""

    learning_rate_rule: Literal["fixed", "linear", "sqrt"] | None = None
    base_batch: PositiveInt | None = None
    warmup_epochs: Number | None = Field(None, ge=0)
    schedule: Literal["constant", "step", "cosine"] | None = None
    milestones: list[Annotated[Number, Field(gt=0)]] | None = Field(None, min_length=1)
    gamma: Number | None = Field(None, gt=0, lt=1)
    augmentation: Augmentation | None = None
    epochs: PositiveInt | None = None
    target_accuracy: Number | None = Field(None, gt=0, le=1)
    target_bits_per_byte: Number | None = Field(None, gt=0)


class Workload(Training, Recipe):
    """What is trained: a model on a data set, at a batch size; may set its own training parameters.

    With `device` it is one of several alternatives, for that device alone.
    """

    model: Component
    dataset: Component
    device: Literal["cpu", "cuda"] | None = None
    global_batch: Batches | None = None
    local_batch: Annotated[list[PositiveInt], Axis] | None = None


class Alternatives(Strict):
    """The first of several workloads for this device whose data is on this machine."""

    first_available: list[Workload] = Field(min_length=1)


def _workload_tag(value: Any) -> str:
    is_choice = isinstance(value, Alternatives) or (isinstance(value, Mapping) and "first_available" in value)
    return "choice" if is_choice else "workload"


AnyWorkload = Annotated[
    Annotated[Workload, Tag("workload")] | Annotated[Alternatives, Tag("choice")],
    Discriminator(_workload_tag),
]


class AnyPart(Strict):
    """A part of any kind: its keys are fields, but for those of these that the kind fixes.

    Attributes:
        stall_timeout: seconds for which a rank may stand still before its launch is ended; 0: any time. It
            decides no result, so that it is no part of a cell.
    """

    stall_timeout: Number = Field(DEFAULT_STALL_TIMEOUT_S, ge=0)

    if TYPE_CHECKING:

        @property
        def kind(self) -> str:
            """A name of `scaling.study.kinds.KINDS`."""

        @property
        def world_sizes(self) -> list[int] | Literal["auto", "all"]:
            """Numbers of workers; or `auto`, or `all` (`scaling.study.places.sizes_of`)."""

        @property
        def repeats(self) -> int:
            """How often each cell is run."""

        @property
        def device(self) -> Device:
            """Where it runs."""

        @property
        def missing_devices(self) -> Literal["error", "drop"]:
            """What becomes of world sizes for which there are too few GPUs."""


class Part(AnyPart):
    """What the parts of kinds with world sizes have in common."""

    world_sizes: Sizes
    repeats: Repeats = 1
    device: Device = "auto"
    missing_devices: Literal["error", "drop"] = "error"
    threads: Threads | None = None
    peer_access: Annotated[list[bool], Axis] = [True]


class TrainingPart(Part, Training):
    """What the parts of every kind that trains have in common."""

    workloads: list[AnyWorkload] = Field(min_length=1)
    aggregators: Annotated[list[Component], Field(min_length=1)]
    scaling: Literal["strong", "weak"]
    step: Annotated[list[Literal["eager", "overlapped", "captured"]], Axis] = ["eager"]
    bucket_mb: Annotated[list[Annotated[Number, Field(gt=0)]], Axis] | None = None
    tf32: Annotated[list[bool], Axis] | None = None
    precision: Annotated[list[Literal["float32", "tf32", "bf16", "fp16"]], Axis] | None = None
    wire: Annotated[list[Literal["float32", "bf16", "fp16"]], Axis] = ["float32"]
    optimizer: Annotated[list[Literal["sgd", "adam", "adamw"]], Axis] = ["sgd"]
    accumulate: Annotated[list[PositiveInt], Axis] = [1]
    checkpoint_activations: Annotated[list[bool], Axis] = [False]
    compile: Annotated[list[bool], Axis] = [False]
    first_bucket_mb: Annotated[list[Annotated[Number, Field(gt=0)]], Axis] | None = None
    find_unused_parameters: Annotated[list[bool], Axis] | None = None
    static_graph: Annotated[list[bool], Axis] | None = None
    gradient_as_bucket_view: Annotated[list[bool], Axis] | None = None
    seed: Annotated[list[Seed], Axis] = [0]
    batch_norm: Annotated[list[Literal["replica", "sync"]], Axis] = ["replica"]
    memory_format: Annotated[list[Literal["contiguous", "channels_last"]], Axis] = ["contiguous"]
