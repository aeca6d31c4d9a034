"""What the record of a run may hold, and how a damaged file is told: by pydantic models, whatever wrote it.

Keys that are not listed may hold anything that JSON has: kinds of studies of other packages add their own.
Values are checked and never converted, so that what is read is what was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from scaling.axes import AXES, LARGEST_COUNT, LARGEST_WORLD, Axis, Role
from scaling.errors import StoreError
from scaling.files.documents import line_of, shown_path
from scaling.files.texts import clean
from scaling.store.upgrades import RENAMED_KEYS

MOST_PROBLEMS = 3  # that a message names

Count = Annotated[int, Field(ge=0, lt=LARGEST_COUNT)]
Size = Annotated[int, Field(ge=1, le=LARGEST_WORLD)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _time(text: str) -> str:
    try:
        if datetime.fromisoformat(text).tzinfo is not None:
            return text
    except ValueError:
        pass
    raise ValueError("should be a time with its zone, as 2026-01-31T12:00:00+00:00")


def _cell_id(text: str) -> str:
    if re.fullmatch(r"\w[\w.-]{0,99}", text, re.ASCII):
        return text
    raise ValueError("names no run; allowed are letters, digits, '.', '_' and '-'")


CellId = Annotated[str, AfterValidator(_cell_id)]
Time = Annotated[str, AfterValidator(_time)]


class OpenModel(BaseModel):
    """Further keys are taken as they are."""

    model_config = ConfigDict(extra="allow", strict=True)


# -- run.json ------------------------------------------------------------------------------------------------

_ANY_KIND = ("kind", "device", "world_size")
_TRAINED = (
    *(*_ANY_KIND, "model", "dataset", "aggregator", "step", "scaling", "local_batch", "global_batch"),
    *("threads", "learning_rate", "momentum", "seed"),
)
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "iteration": _TRAINED,
    "convergence": _TRAINED,
    "attached": (*_ANY_KIND, "model", "dataset", "aggregator", "step", "scaling", "local_batch", "arm"),
    "transfer": (*_ANY_KIND, "threads", "peer_access"),
    "device": (*_ANY_KIND, "threads", "experiment", "parameters", "point"),
}
"""Kind -> the variables that its cells always have; those of a user's own kind have at least three."""

Scalar = bool | int | Finite | str | None


def _type_of(axis: Axis) -> Any:
    """What a cell may have of a variable."""
    if axis.holds == "mapping":
        return dict[str, Any]
    if axis.holds == "numbers":
        return list[Finite] | None
    if axis.dtype in ("string", "boolean"):
        return (str if axis.dtype == "string" else bool) | None
    if axis.dtype == "Int64":
        return Annotated[int, Field(ge=axis.least, le=axis.most)] | None
    return Annotated[float, Field(ge=axis.least, le=axis.most, allow_inf_nan=False)] | None


_VARIABLES: dict[str, Any] = {
    row.name: (_type_of(row), {} if row.holds == "mapping" else None)
    for row in AXES
    if Role.RECORDED not in row.role
}
_OLD_KEYS: dict[str, Any] = {
    old: _VARIABLES.get(new, (Count | None, None)) for old, new in RENAMED_KEYS.items()
}
_Variables: Any = create_model("_Variables", __base__=OpenModel, **_VARIABLES, **_OLD_KEYS)


class CellModel(_Variables):  # type: ignore[misc]
    """A cell: its variables, of `scaling.axes`, and what else it says; the kind says which it must have."""

    kind: Annotated[str, Field(min_length=1)]
    device: str
    world_size: Size
    scaling: Literal["strong", "weak"] | None = None
    model_label: str | None = None
    dataset_label: str | None = None
    aggregator_label: str | None = None
    launch_threads: Size | None = None
    warmup: Count | None = None
    iterations: Count | None = None
    precision_goal: Positive | None = None
    min_seconds: Seconds | None = None
    max_seconds: Seconds | None = None
    profiled_iterations: Count | None = None
    epochs: Count | None = None
    target_accuracy: Finite | None = None
    exchanges: bool | None = None
    lossy: bool | None = None
    keep_checkpoints: bool | None = None
    experiment: Annotated[str, Field(min_length=1)] | None = None
    parameters: dict[str, Any] = {}
    point: dict[str, Scalar] = {}
    seconds: Seconds | None = None
    limit_s: Seconds | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            kind = values.get("kind")
            required = REQUIRED.get(kind, _ANY_KIND) if isinstance(kind, str) else _ANY_KIND
            missing = [name for name in required if name not in values]
            if missing:
                raise ValueError(f"lacks {', '.join(missing)}, which every cell of its kind has")
            nulls = [name for name in required if values[name] is None and name != "peer_access"]
            if nulls:
                raise ValueError(f"has null for {', '.join(nulls)}, which every cell of its kind has")
        return values


class LaunchModel(OpenModel):
    launcher: str | None = None
    host: str | None = None
    boot: str | None = None
    job_id: str | None = None
    mpi: str | None = None
    horovod: str | None = None
    num_nodes: Size | None = None
    nodes: list[str] | None = None
    workers_per_gpu: Size | None = None
    position: Count | None = None
    code_changes: Count | None = None
    started_at: Time | None = None
    finished_at: Time | None = None
    campaign: str | None = None
    environment: str | None = None


class GpuModel(OpenModel):
    """What was read of a rank's GPU (`scaling.measure.power`)."""

    window_s: Seconds | None = None
    energy_j: Seconds | None = None
    energy_per_sample_j: Seconds | None = None
    mean_power_w: Finite | None = None
    power_after_w: Finite | None = None
    power_limit_w: Finite | None = None
    sm_clock_before_hz: Seconds | None = None
    sm_clock_after_hz: Seconds | None = None
    sm_clock_max_hz: Positive | None = None
    memory_clock_before_hz: Seconds | None = None
    memory_clock_after_hz: Seconds | None = None
    temperature_before_c: Finite | None = None
    temperature_after_c: Finite | None = None
    memory_used_bytes: Count | None = None
    other_processes: Count | None = None
    other_processes_memory_bytes: Count | None = None
    throttled_s: dict[str, Seconds] | None = None
    throttle_reasons: list[str] | None = None


class HostModel(OpenModel):
    """What was read of a rank's process (`scaling.measure.host`)."""

    window_s: Seconds | None = None
    cpu_s: Seconds | None = None
    queued_s: Seconds | None = None
    cores: list[Count] | None = None


class MatrixRateModel(OpenModel):
    """What a rank's device does in products of matrices (`scaling.measure.matrix_rate`)."""

    flops_per_s: Positive
    low: Positive
    high: Positive
    size: Count
    num_samples: Count


class SummaryModel(OpenModel):
    num_parameters: Count | None = None
    wire_bytes_per_rank: list[Count] | None = None
    messages_per_rank: list[Count | None] | None = None
    memory_peak_bytes: list[Count | None] | None = None
    peak_device_memory_bytes: list[Count | None] | None = None
    warmup_iterations: Count | None = None
    checksums: dict[str, str] | None = None
    seconds: dict[str, Seconds | None] | None = None
    warmup_end: str | None = None
    stop_reason: str | None = None
    block_iterations: list[Annotated[int, Field(ge=1, lt=2**62)]] | None = None
    clock_uncertainty_s: list[Seconds | None] | None = None
    gpu: list[GpuModel | None] | None = None
    power: list[GpuModel | None] | None = None
    host: list[HostModel | None] | None = None
    data_in_host_memory: list[bool] = []
    model_flops: Count | None = None
    matrix_rate: list[MatrixRateModel | None] | None = None
    tokens_per_sample: Count | None = None
    optimizer_state_bytes: list[Count | None] | None = None
    hosts_before: list[str] = []
    tensor_shapes: str | None = None
    bucket_bytes: list[Count] | None = None
    failure_kind: str | None = None


class RunModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    cell_id: CellId
    repeat: Annotated[int, Field(ge=0, le=LARGEST_WORLD)]
    cell: CellModel
    state: Literal["planned", "running", "done", "failed"] = "planned"
    reason: str | None = None
    deaths: Count = 0
    launch: LaunchModel = LaunchModel()
    notes: list[str] = []
    summary: SummaryModel = SummaryModel()
    schema_version: int


def validate(model: type[BaseModel], values: Any, where: object, mend: str, text: str | None = None) -> None:
    """Checks what a file holds. Raises StoreError: naming keys, lines (of `text`) and what is allowed."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [explain(dict(problem), text) for problem in problems[:MOST_PROBLEMS]]
        more = f"; {len(problems) - MOST_PROBLEMS} more are wrong" if len(problems) > MOST_PROBLEMS else ""
        raise StoreError(f"{where} is damaged: {'; '.join(lines)}{more}; {mend}") from None


def explain(problem: Mapping[str, Any], text: str | None) -> str:
    """Pydantic's problem in words: the key, its line where the text is known, and what is allowed."""
    path, kind = list(problem["loc"]), problem["type"]
    if path and isinstance(path[-1], str) and "[" in path[-1] and kind != "missing":
        path.pop()  # the branch of a union
    line = None if text is None else line_of(text, path)
    key, place = shown_path(path) or "it", "" if line is None else f" (line {line})"
    if kind == "missing":
        return f"{key} is missing{place}"
    if kind == "extra_forbidden":
        return f"{key} is no key of it{place}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = f"{message[:1].lower()}{message[1:]}"
    is_short = path and not isinstance(problem["input"], Mapping | list)
    value_text = f" is {problem['input']!r:.40}; it" if is_short else ""
    return clean(f"{key}{value_text} {message}{place}")
