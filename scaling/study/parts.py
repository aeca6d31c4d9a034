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
from scaling.axes import DEFAULTS
from scaling.training.outer_updates import OuterName

Device = Literal["auto", "cpu", "cuda"]


def as_list(value: Any) -> Any:
    """Axes may be given as one value or as a list of values."""
    if value == []:
        raise ValueError("a list needs one value at least")
    return value if isinstance(value, list) else [value]


def component(value: Any) -> Any:
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


DEFAULT_BATCH = {"cuda": 8192, "cpu": 128}  # of `global_batch: auto` without a trial, as in `scaling plan`
SIZE_WORDS = ("auto", "all")  # as world sizes: 1, 2, 4, ... and all GPUs; all GPUs alone

PositiveInt = Annotated[int, Field(gt=0, le=10**9, strict=True)]
NumRepeats = Annotated[int, Field(gt=0, le=10_000, strict=True)]
Threads = Annotated[int, Field(gt=0, le=4096, strict=True)]
WorldSize = Annotated[int, Field(gt=0, le=2**16, strict=True)]
Size = Annotated[Number, Field(gt=0)]
BucketSizes = Annotated[list[Size], Field(min_length=1, max_length=10_000)]


SizeOrSizes = Annotated[
    Annotated[Size, Tag("size")] | Annotated[BucketSizes, Tag("sizes")],
    Discriminator(lambda value: "sizes" if isinstance(value, list) else "size"),
]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]  # what torch's generators take

Axis = BeforeValidator(as_list)


def _or_word(*words: str) -> tuple[WrapValidator, PlainSerializer]:
    """Takes one of these words in place of what the field holds."""

    def checked(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        return value if isinstance(value, str) and value in words else check(value)

    checked.words = words  # type: ignore[attr-defined]  # for `editor_schema`
    return WrapValidator(checked), PlainSerializer(lambda value: value)


if TYPE_CHECKING:
    Sizes = list[int] | Literal["auto", "all"]
    Batches = list[int] | Literal["auto"]
else:
    _SIZES = (list[WorldSize], Field(min_length=1), Axis, *_or_word(*SIZE_WORDS))
    _BATCHES = (list[PositiveInt], Axis, *_or_word("auto"))
    Sizes = Annotated[_SIZES]
    Batches = Annotated[_BATCHES]


class Strict(BaseModel):
    """A mapping of its fields alone. What has no value is written only where that is against a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {k: v for k, v in write(self).items() if v is not None or fields[k].default is not None}


class NamedComponent(Strict):
    """A name, with the parameters that the study sets."""

    name: str
    parameters: dict[str, Any] = {}


Component = Annotated[
    NamedComponent,
    BeforeValidator(component),
    PlainSerializer(lambda named: {"name": named.name, **named.parameters}),  # what `component` reads
]


class Training(Strict):
    """How the optimizer is set; the defaults of each are in `scaling.study.variants`."""

    learning_rate: Number | None = Field(None, gt=0)
    """Default 0.01 with SGD, 0.001 with Adam and AdamW."""
    momentum: Number | None = Field(None, ge=0, lt=1)
    """Of SGD; default 0.9."""
    weight_decay: Number | None = Field(None, ge=0)
    """Default 0; with AdamW 0.01."""
    nesterov: bool | None = None
    """Of SGD; default false."""
    beta1: Number | None = Field(None, ge=0, lt=1)
    """Of Adam and AdamW; default 0.9."""
    beta2: Number | None = Field(None, ge=0, lt=1)
    """Of Adam and AdamW; default 0.999."""
    epsilon: Number | None = Field(None, gt=0)
    """Of Adam and AdamW; default 1e-8."""
    clip_norm: Number | None = Field(None, gt=0)
    """Clips the gradient to this norm."""
    clip_gradient: Literal["mean", "local"] | None = None
    """Which gradient is clipped: the mean, or each worker's own before a lossy codec."""


Augmentation = Literal["none", "standard"]


class Recipe(Strict):
    """How a training goes on over its epochs (`scaling.training.learning_rate`)."""

    learning_rate_rule: Literal["fixed", "linear", "sqrt"] | None = None
    """How the learning rate grows with the global batch; default fixed."""
    base_batch: PositiveInt | None = None
    """The global batch that `learning_rate` is meant for, with the rules linear and sqrt."""
    warmup_epochs: Number | None = Field(None, ge=0)
    """Epochs over which the learning rate rises from near 0; default 0."""
    schedule: Literal["constant", "step", "cosine"] | None = None
    """Of the learning rate after the warm-up; default constant."""
    milestones: list[Annotated[Number, Field(gt=0)]] | None = Field(None, min_length=1)
    """Epochs after which the schedule `step` multiplies the learning rate by `gamma`."""
    gamma: Number | None = Field(None, gt=0, lt=1)
    """See `milestones`; default 0.1."""
    augmentation: Augmentation | None = None
    """standard: shift images by up to 4 pixels and mirror them; default none."""
    epochs: PositiveInt | None = None
    """Length of the training; default 5."""
    target_accuracy: Number | None = Field(None, gt=0, le=1)
    """Test accuracy; the report gives the time to reach it."""
    target_bits_per_byte: Number | None = Field(None, gt=0)
    """Test loss of a text in bits per byte; the report gives the time to reach it."""


class Workload(Training, Recipe):
    """What is trained: a model on a data set, at a batch size; with `device` for that device alone."""

    model: Component
    """A name of `scaling list models` or `module:attribute`, alone or with parameters."""
    dataset: Component
    """A name of `scaling list datasets` or `module:attribute`, alone or with parameters."""
    device: Literal["cpu", "cuda"] | None = None
    """Only under `first_available`: the alternative is for this device."""
    global_batch: Batches | None = None
    """Batch of all workers together, for strong scaling; auto: found by a trial step."""
    local_batch: Annotated[list[PositiveInt], Axis] | None = None
    """Batch of each worker, for weak scaling."""


class Alternatives(Strict):
    """The first of several workloads for this device whose data is on this machine."""

    first_available: list[Workload] = Field(min_length=1)
    """Workloads; the first for this device with its data on this machine is taken."""


def _workload_tag(value: Any) -> str:
    is_choice = isinstance(value, Alternatives) or (isinstance(value, Mapping) and "first_available" in value)
    return "choice" if is_choice else "workload"


AnyWorkload = Annotated[
    Annotated[Workload, Tag("workload")] | Annotated[Alternatives, Tag("choice")],
    Discriminator(_workload_tag),
]


class AnyPart(Strict):
    """A part of any kind: its keys are fields, but for those of these that the kind fixes. The text below a
    field of this class or a subclass is what docs/reference/study-keys.md says of the key."""

    stall_timeout: Number = Field(DEFAULT_STALL_TIMEOUT_S, ge=0, le=10**6)
    """Seconds without progress after which a launch is ended; 0: no limit. No part of a cell."""

    if TYPE_CHECKING:

        @property
        def kind(self) -> str: ...  # a name of `scaling.study.kinds.KINDS`
        @property
        def world_sizes(self) -> list[int] | Literal["auto", "all"]: ...  # see `places.sizes_of`
        @property
        def repeats(self) -> int: ...  # how often each cell is run
        @property
        def device(self) -> Device: ...
        @property
        def missing_devices(
            self,
        ) -> Literal["error", "drop"]: ...  # of world sizes with too few GPUs, or cores


class Part(AnyPart):
    """What the parts of kinds with world sizes have in common."""

    world_sizes: Sizes
    """Numbers of workers; auto: 1, 2, 4, ... and all GPUs; all: all GPUs."""
    repeats: NumRepeats = 1
    """Number of launches; a decision needs two or more."""
    device: Device = "auto"
    """auto: GPUs if there are any."""
    missing_devices: Literal["error", "drop"] = "error"
    """drop: leave out world sizes with too few GPUs; on CPUs, of auto and all, more than 2 and the cores."""
    threads: Threads | None = None
    """CPU threads of a worker; default 1 on CPUs, 3/4 of its GPU's share of the cores on GPUs."""
    peer_access: Annotated[list[bool], Axis] = [True]
    """false: no direct access between GPUs (host-only)."""


class TrainingPart(Part, Training):
    """What the parts of every kind that trains have in common."""

    workloads: list[AnyWorkload] = Field(min_length=1)
    """Each has the keys of the table "A workload", or `first_available`."""
    aggregators: Annotated[list[Component], Field(min_length=1)]
    """Names of `scaling list aggregators` or `module:Class`, alone or with parameters."""
    scaling: Literal["strong", "weak"]
    """strong: the global batch is fixed; weak: the batch of each worker is fixed."""
    step: Annotated[list[Literal["eager", "overlapped", "captured"]], Axis] = ["eager"]
    """eager: exchange after the backward pass; overlapped: under it (DDP); captured: one CUDA graph."""
    bucket_mb: Annotated[list[SizeOrSizes], Axis] | None = None
    """MiB of buckets under the backward pass; default DDP's, `[[1, 25]]`; a list in the list: one by one."""
    tf32: Annotated[list[bool], Axis] | None = None
    """Older form of `precision: tf32`."""
    precision: Annotated[list[Literal["float32", "tf32", "bf16", "fp16"]], Axis] | None = None
    """Of the computation; bf16 and fp16 by torch.autocast, parameters stay float32."""
    wire: Annotated[list[Literal["float32", "bf16", "fp16"]], Axis] = [DEFAULTS["wire"]]
    """Type of the exchanged gradient."""
    optimizer: Annotated[list[Literal["sgd", "adam", "adamw"]], Axis] = [DEFAULTS["optimizer"]]
    """Its numbers are keys of their own (`learning_rate`, `momentum`, ...)."""
    accumulate: Annotated[list[PositiveInt], Axis] = [DEFAULTS["accumulate"]]
    """Micro-batches per step, with one exchange."""
    sync_every: Annotated[list[PositiveInt], Axis] = [DEFAULTS["sync_every"]]
    """Steps of a block of local updates, after which the workers' models are brought together."""
    outer_update: Annotated[list[OuterName], Axis] | None = None
    """Of local updates; without it blocks of several steps are averaged, of one exchange gradients."""
    outer_momentum: Annotated[list[Annotated[Number, Field(ge=0, lt=1)]], Axis] | None = None
    """Of block_momentum (default 1 - 1/workers, CNTK's too) and nesterov (0.9)."""
    outer_learning_rate: Annotated[list[Size], Axis] | None = None
    """Of block_momentum (default 1, CNTK's too) and nesterov (0.7)."""
    checkpoint_activations: Annotated[list[bool], Axis] = [DEFAULTS["checkpoint_activations"]]
    """Recompute activations in the backward pass."""
    compile: Annotated[list[bool], Axis] = [DEFAULTS["compile"]]
    """Compile the model with torch.compile."""
    first_bucket_mb: Annotated[list[Annotated[Number, Field(gt=0)]], Axis] | None = None
    """Of DDP: size of its first bucket in MiB; without `bucket_mb` 1, DDP's default; else as the others."""
    find_unused_parameters: Annotated[list[bool], Axis] | None = None
    """Of DDP."""
    static_graph: Annotated[list[bool], Axis] | None = None
    """Of DDP."""
    gradient_as_bucket_view: Annotated[list[bool], Axis] | None = None
    """Of DDP."""
    seed: Annotated[list[Seed], Axis] = [0]
    """Of the initial weights and of the order of the data."""
    batch_norm: Annotated[list[Literal["replica", "sync"]], Axis] = [DEFAULTS["batch_norm"]]
    """replica: statistics of each worker's share; sync: of the global batch."""
    memory_format: Annotated[list[Literal["contiguous", "channels_last"]], Axis] = [DEFAULTS["memory_format"]]
    """channels_last is for networks with convolutions."""


def chosen(key: str, workload: Workload, part: TrainingPart, default: Any = None) -> Any:
    """A key's value: the workload's own, or else its part's, or else the default."""
    for level in (workload, part):
        if getattr(level, key) is not None:
            return getattr(level, key)
    return default
