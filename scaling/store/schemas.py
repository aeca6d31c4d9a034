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


def required(*fields: tuple[Any, str]) -> Any:
    """An open model with these keys: of each type the names."""
    names: dict[str, Any] = {name: (kind, ...) for kind, words in fields for name in words.split()}
    return create_model("Required", __base__=OpenModel, **names)


def optional(*fields: tuple[Any, str], base: Any = OpenModel) -> Any:
    """A model in which keys may be missing or null: the type that they have else, and their names."""
    names: dict[str, Any] = {name: (kind | None, None) for kind, words in fields for name in words.split()}
    return create_model("Optional", __base__=base, **names)


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
}  # kind -> the variables that its cells always have

Scalar = bool | int | Finite | str | None


def _type_of(axis: Axis) -> Any:
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


_CellKeys: Any = optional(
    (Literal["strong", "weak"], "scaling"),
    (str, "model_label dataset_label aggregator_label"),
    (Annotated[str, Field(min_length=1)], "experiment"),
    (Size, "launch_threads"),
    (Count, "warmup iterations profiled_iterations epochs"),
    (Positive, "precision_goal"),
    (Seconds, "min_seconds max_seconds seconds limit_s"),
    (Finite, "target_accuracy"),
    (bool, "exchanges lossy keep_checkpoints"),
    base=_Variables,
)


class CellModel(_CellKeys):  # type: ignore[misc]
    """A cell: its variables, of `scaling.axes`, and what else it says; the kind says which it must have."""

    kind: Annotated[str, Field(min_length=1)]
    device: str
    world_size: Size
    parameters: dict[str, Any] = {}
    point: dict[str, Scalar] = {}

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


LaunchModel = optional(
    (str, "launcher host boot job_id mpi horovod campaign environment"),
    (Size, "num_nodes workers_per_gpu"),
    (list[str], "nodes"),
    (Count, "position code_changes"),
    (Time, "started_at finished_at"),
)
GpuRecord = optional(
    (Seconds, "window_s energy_j energy_per_sample_j sm_clock_before_hz sm_clock_after_hz"),
    (Seconds, "memory_clock_before_hz memory_clock_after_hz"),
    (Positive, "sm_clock_max_hz"),
    (Finite, "mean_power_w power_after_w power_limit_w temperature_before_c temperature_after_c"),
    (Count, "memory_used_bytes other_processes other_processes_memory_bytes"),
    (dict[str, Seconds], "throttled_s"),
    (list[str], "throttle_reasons"),
)  # what was read of a rank's GPU (`scaling.measure.power`)

HostModel = optional((Seconds, "window_s cpu_s queued_s"), (list[Count], "cores"))  # `measure.host`


MatrixRateModel = required((Positive, "flops_per_s low high"), (Count, "size num_samples"))
"""What a rank's device does in products of matrices (`scaling.measure.matrix_rate`)."""

_SummaryKeys: Any = optional(
    (Count, "num_parameters warmup_iterations model_flops tokens_per_sample"),
    (list[Count], "wire_bytes_per_rank bucket_bytes"),
    (list[Count | None], "messages_per_rank memory_peak_bytes peak_device_memory_bytes"),
    (list[Count | None], "optimizer_state_bytes"),
    (list[Annotated[int, Field(ge=1, lt=2**62)]], "block_iterations"),
    (dict[str, str], "checksums"),
    (dict[str, Seconds | None], "seconds"),
    (list[Seconds | None], "clock_uncertainty_s"),
    (str, "warmup_end stop_reason tensor_shapes failure_kind"),
    (list[GpuRecord | None], "gpu power"),  # type: ignore[valid-type]
    (list[HostModel | None], "host"),  # type: ignore[valid-type]
    (list[MatrixRateModel | None], "matrix_rate"),  # type: ignore[valid-type]
)


class SummaryModel(_SummaryKeys):  # type: ignore[misc]
    data_in_host_memory: list[bool] = []
    hosts_before: list[str] = []


class RunModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    cell_id: CellId
    repeat: Annotated[int, Field(ge=0, le=LARGEST_WORLD)]
    cell: CellModel
    state: Literal["planned", "running", "done", "failed"] = "planned"
    reason: str | None = None
    deaths: Count = 0
    launch: LaunchModel = LaunchModel()  # type: ignore[valid-type]
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
