"""The study file: what may stand in it, and what it means.

A study has a name and one or several parts; keys beside `parts` are defaults for every part. Unknown keys and
wrong values are errors that name the key, what is allowed and the rule.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    model_serializer,
)

from scaling.errors import StudyError

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

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Axis = BeforeValidator(_as_list)


class _Strict(BaseModel):
    """Keys that have no value are not written, unless that is what the study says against a default."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        return {k: v for k, v in write(self).items() if v is not None or fields[k].default is not None}


class NamedComponent(_Strict):
    """A name, with the parameters that the study sets."""

    name: str
    parameters: dict[str, Any] = {}


def _as_written(component: NamedComponent) -> dict[str, Any]:
    """What `_component` reads, so that a study that was written can be run again."""
    return {"name": component.name, **component.parameters}


Component = Annotated[NamedComponent, BeforeValidator(_component), PlainSerializer(_as_written)]


class Training(_Strict):
    """How the optimizer is set: SGD with momentum."""

    learning_rate: Number | None = Field(None, gt=0)
    momentum: Number | None = Field(None, ge=0, lt=1)
    weight_decay: Number | None = Field(None, ge=0)
    nesterov: bool | None = None


Augmentation = Literal["none", "standard"]


class Recipe(_Strict):
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


class Workload(Training, Recipe):
    """What is trained: a model on a data set, at a batch size; may set its own training parameters."""

    model: Component
    dataset: Component
    global_batch: Annotated[list[PositiveInt], Axis] | None = None
    local_batch: Annotated[list[PositiveInt], Axis] | None = None


class Alternatives(_Strict):
    """The first of several workloads whose data is on this machine."""

    first_available: list[Workload] = Field(min_length=1)


def _workload_tag(value: Any) -> str:
    is_choice = isinstance(value, Alternatives) or (isinstance(value, Mapping) and "first_available" in value)
    return "choice" if is_choice else "workload"


AnyWorkload = Annotated[
    Annotated[Workload, Tag("workload")] | Annotated[Alternatives, Tag("choice")],
    Discriminator(_workload_tag),
]


class Part(_Strict):
    """What the parts of every kind have in common."""

    world_sizes: Annotated[list[PositiveInt], Axis, Field(min_length=1)]
    repeats: PositiveInt = 1
    device: Device = "auto"
    missing_devices: Literal["error", "drop"] = "error"
    threads: PositiveInt | None = None
    peer_access: Annotated[list[bool], Axis] = [True]


class TrainingPart(Part, Training):
    """What the parts of every kind that trains have in common."""

    workloads: list[AnyWorkload] = Field(min_length=1)
    aggregators: Annotated[list[Component], Field(min_length=1)]
    scaling: Literal["strong", "weak"]
    step: Annotated[list[Literal["eager", "overlapped", "captured"]], Axis] = ["eager"]
    bucket_mb: Annotated[list[Annotated[Number, Field(gt=0)]], Axis] | None = None
    tf32: Annotated[list[bool], Axis] = [False]
    seed: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Axis] = [0]
    learning_rate: Number = Field(0.01, gt=0)
    momentum: Number = Field(0.9, ge=0, lt=1)
    weight_decay: Number = Field(0.0, ge=0)
    nesterov: bool = False
    batch_norm: Annotated[list[Literal["replica", "sync"]], Axis] = ["replica"]
    memory_format: Annotated[list[Literal["contiguous", "channels_last"]], Axis] = ["contiguous"]


class IterationPart(TrainingPart):
    """Time per iteration, by phase."""

    kind: Literal["iteration"] = "iteration"
    warmup: PositiveInt = 10
    iterations: PositiveInt = 1000
    precision_goal: Number | None = Field(0.01, gt=0, lt=1)
    min_seconds: Number | None = Field(None, ge=0)
    max_seconds: Number | None = Field(20.0, gt=0)
    split_iterations: PositiveInt = 20
    input_placement: Annotated[list[Literal["device", "pinned", "pageable", "loader"]], Axis] = ["device"]
    loader_workers: PositiveInt | None = None
    augmentation: Augmentation | None = None
    noise_pair: bool = True


class ConvergencePart(TrainingPart, Recipe):
    """Loss and test accuracy over epochs and over seconds of training."""

    kind: Literal["convergence"] = "convergence"
    epochs: PositiveInt = 5
    keep_checkpoints: bool = False
    workers_per_gpu: PositiveInt = 1


class TransferPart(Part):
    """Copies, messages and collectives alone: what the machine's links and memories give, without a model."""

    kind: Literal["transfer"] = "transfer"
    seconds: Number = Field(20.0, gt=0)


class DevicePart(_Strict):
    """An experiment (`scaling.experiments`): CPU against GPU, in one process."""

    kind: Literal["device"] = "device"
    experiment: Component
    devices: Annotated[list[Literal["cpu", "cuda"]], Axis] = ["cpu", "cuda"]
    seconds: Number = Field(1.0, gt=0)
    limit_seconds: Number = Field(10.0, gt=0)
    repeats: PositiveInt = 1

    @property
    def world_sizes(self) -> list[int]:
        """One process."""
        return [1]

    @property
    def device(self) -> Device:
        """A GPU is used where there is one and the part wants it."""
        return "auto" if "cuda" in self.devices else "cpu"

    @property
    def missing_devices(self) -> Literal["error", "drop"]:
        """A GPU that is not there is left out."""
        return "drop"


KINDS: dict[str, type[IterationPart] | type[ConvergencePart] | type[TransferPart] | type[DevicePart]] = {
    "iteration": IterationPart,
    "convergence": ConvergencePart,
    "transfer": TransferPart,
    "device": DevicePart,
}
TrainedPart = IterationPart | ConvergencePart
AnyPart = TrainedPart | TransferPart | DevicePart

RECORDED_KEYS = ("schema_version", "notes")

_WHY_ONLY_THERE = {
    "workers_per_gpu": " (workers that share a GPU take turns on it: they learn what as many GPUs would, but "
    "their times are not those of as many GPUs)",
}
"""Key -> why it is for the kinds that have it."""

_WITHOUT_MODEL: dict[type[BaseModel], str] = {
    TransferPart: "; kind: transfer has no model and takes no step",
    DevicePart: "; kind: device runs an experiment, whose parameters stand beside its name",
}


class Study(_Strict):
    """A validated study."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    parts: tuple[Annotated[AnyPart, Field(discriminator="kind")], ...]


def parse_study(raw: object, source: str) -> Study:
    """Validates what a study file holds.

    Args:
        raw: the parsed YAML.
        source: file or study name, for messages.

    Raises:
        StudyError: naming every key that is wrong, what is allowed, and the rule.
    """
    if not isinstance(raw, Mapping):
        raise StudyError(f"{source}: a study is a mapping of keys, as in `name: my-study`")
    if "name" not in raw:
        raise StudyError(f"{source}: key 'name' is missing; it names the results folder")
    # What a results folder's study.yaml has besides: it can be run again as it is.
    inherited = {key: value for key, value in raw.items() if key not in ("name", "parts", *RECORDED_KEYS)}
    if "parts" not in raw:
        bodies = [("", dict(inherited))]
    else:
        if not isinstance(raw["parts"], list) or not raw["parts"]:
            raise StudyError(f"{source}: 'parts' must be a list of parts, each with its own 'kind'")
        bodies = []
        for index, part in enumerate(raw["parts"]):
            if not isinstance(part, Mapping):
                raise StudyError(f"{source}: parts.{index} must be a mapping of keys")
            bodies.append((f"parts.{index}.", {**_inheritable(inherited, part, source), **part}))
    parts = tuple(_parse_part(body, prefix, source) for prefix, body in bodies)
    try:
        return Study(name=raw["name"], parts=parts)
    except ValidationError as error:
        raise StudyError(
            f"{source}: name {raw['name']!r} is not allowed; use letters, digits, '.', '_' and '-'"
        ) from error


def _inheritable(inherited: Mapping[str, Any], part: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The keys beside `parts` that a part of this kind knows; a key that no kind knows is an error."""
    kind = part.get("kind", inherited.get("kind", "iteration"))
    known = {key for cls in KINDS.values() for key in cls.model_fields}
    for key in inherited:
        if key not in known:
            raise StudyError(f"{source}: {_unknown(key, sorted(known | {'name', 'parts'}))}")
    own = KINDS[kind].model_fields if kind in list(KINDS) else inherited
    return {key: value for key, value in inherited.items() if key in own}


def _parse_part(body: dict[str, Any], prefix: str, source: str) -> AnyPart:
    kind = body.get("kind", "iteration")
    if kind not in list(KINDS):  # a list is not hashable
        raise StudyError(f"{source}: {prefix}kind is {kind!r}; allowed: {', '.join(KINDS)}")
    cls = KINDS[kind]
    try:
        part = cls.model_validate(body)
    except ValidationError as error:
        lines = [f"{source}: {_explain(dict(problem), prefix, cls)}" for problem in error.errors()]
        raise StudyError("\n".join(lines)) from None
    if isinstance(part, TransferPart | DevicePart):
        return part
    for index, workload in enumerate(part.workloads):
        for one in workload.first_available if isinstance(workload, Alternatives) else [workload]:
            _check_batch(one, part.scaling, f"{source}: {prefix}workloads.{index}")
            for key in Recipe.model_fields:
                if getattr(one, key) is not None and key not in cls.model_fields:
                    raise StudyError(
                        f"{source}: key '{prefix}workloads.{index}.{key}' belongs to kind: convergence; "
                        "leave it out"
                    )
    return part


def _check_batch(workload: Workload, scaling: str, where: str) -> None:
    wanted, other = (
        ("global_batch", "local_batch") if scaling == "strong" else ("local_batch", "global_batch")
    )
    if getattr(workload, wanted) is None or getattr(workload, other) is not None:
        raise StudyError(
            f"{where}: scaling: {scaling} keeps the {wanted} constant over world sizes, so the workload "
            f"needs {wanted} and must not have {other}"
        )


def _explain(problem: dict[str, Any], prefix: str, cls: type[BaseModel]) -> str:
    # Behind workloads.<index> stands the union's tag; elsewhere these words are a user's own keys.
    location = [p for at, p in enumerate(problem["loc"]) if at != 2 or p not in ("workload", "choice")]
    key = prefix + ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        name = str(location[-1])
        kinds = [kind for kind, other in KINDS.items() if len(location) == 1 and name in other.model_fields]
        if kinds:
            own = _WITHOUT_MODEL.get(cls, "")
            why = _WHY_ONLY_THERE.get(name, "")
            whose = f"key {key!r} belongs to kind: {' or '.join(kinds)}{own}{why}"
            return f"{whose}; leave it out, or change the part's kind"
        fields = cls.model_fields if len(location) == 1 else Workload.model_fields
        return _unknown(name, sorted(fields), key)
    if problem["type"] == "missing":
        hint = " (strong keeps the global batch, weak the local batch)" if location[-1] == "scaling" else ""
        return f"key {key!r} is missing{hint}"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key} is {problem['input']!r}: {message[0].lower()}{message[1:]}"


def _unknown(name: str, allowed: list[str], key: str | None = None) -> str:
    near = difflib.get_close_matches(name, allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key or name!r}{hint} (allowed: {', '.join(allowed)})"
