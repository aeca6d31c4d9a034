"""How a step is computed, exchanged and set: the combinations of a part's keys that go together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.axes import axis
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import StudyError
from scaling.study.parts import Training, TrainingPart, Workload, chosen
from scaling.training.gradients import WIRES
from scaling.training.outer_updates import WITHOUT_MOMENTUM

OF_DDP = ("first_bucket_mb", "find_unused_parameters", "static_graph", "gradient_as_bucket_view")
"""Keys that are arguments of torch's DDP."""

_ADAM: dict[str, Any] = {
    "learning_rate": 0.001,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "epsilon": 1e-8,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.01, "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    "adam": _ADAM,
    "adamw": {**_ADAM, "weight_decay": 0.01},
}  # where the study does not say; of Adam they are torch's


LOCAL_KEYS = ("outer_update", "outer_momentum", "outer_learning_rate")  # with `sync_every`
CLIPPING = ("clip_norm", "clip_gradient")  # keys that go with every optimizer


def precisions(part: TrainingPart, device: str) -> list[dict[str, Any]]:
    """The fields `tf32` (of GPUs alone) and `precision`. Raises StudyError: both keys are there."""
    if part.tf32 is not None and part.precision is not None:
        raise StudyError("tf32: true is precision: tf32; give precision alone")
    names = part.precision or ["tf32" if tf32 else "float32" for tf32 in part.tf32 or [False]]
    fields = [
        {
            "tf32": name == "tf32" if device == "cuda" else None,
            "precision": name if name in ("bf16", "fp16") else None,
        }
        for name in names
    ]
    return [field for number, field in enumerate(fields) if field not in fields[:number]]


def variants(
    part: TrainingPart, optimizers: Sequence[Mapping[str, Any]], step: str, aggregator: Aggregator[Any]
) -> list[dict[str, Any]]:
    """The fields of `Cell` for each combination of the keys that this step and aggregator have."""
    ddp = {key: _of_ddp(key, part, step, aggregator) for key in OF_DDP}
    axes: dict[str, Sequence[Any]] = {
        "bucket_mb": _bucket_sizes(part, step, aggregator),
        "wire": wires(part, aggregator),
        "accumulate": part.accumulate,
        "checkpoint_activations": part.checkpoint_activations,
        "compile": part.compile,
        **ddp,
    }
    settings = itertools.product(optimizers, local_updates(part, step, aggregator))
    return [
        {**fields, **local, **dict(zip(axes, values, strict=True)), **_buckets(values[0])}
        for (fields, local), values in itertools.product(settings, itertools.product(*axes.values()))
    ]


def optimizers_of(workload: Workload, part: TrainingPart) -> list[dict[str, Any]]:
    """The fields of `Cell` of each optimizer, and what it clips. Raises StudyError."""
    clip_norm = chosen("clip_norm", workload, part)
    clipped = chosen("clip_gradient", workload, part, "mean")
    clipping = {"clip_norm": clip_norm, "clip_gradient": clip_norm and clipped}
    return [{**optimizer_fields(name, workload, part), **clipping} for name in part.optimizer]


def optimizer_fields(name: str, workload: Workload, part: TrainingPart) -> dict[str, Any]:
    """The fields of `Cell` of the optimizer: by the workload's keys, or else the part's; else StudyError."""
    values = {key: chosen(key, workload, part, default) for key, default in DEFAULTS[name].items()}
    if values.get("nesterov") and not values["momentum"]:
        raise StudyError("nesterov: true needs a momentum above 0")
    return {"optimizer": name, "momentum": 0.0, "nesterov": False, **values}


def check_optimizer_keys(workload: Workload, part: TrainingPart) -> None:
    """Refuses numbers of optimizers that the part does not have. Raises StudyError: naming the key."""
    for key in Training.model_fields:
        owners = [name for name, defaults in DEFAULTS.items() if key in defaults]
        if key in CLIPPING or set(owners) & set(part.optimizer):
            continue
        if chosen(key, workload, part) is not None:
            raise StudyError(
                f"{key} belongs to optimizer: {' or '.join(owners)}, and the part has "
                f"{', '.join(part.optimizer)}; leave it out"
            )


def wires(part: TrainingPart, aggregator: Aggregator[Any]) -> list[str | None]:
    """The precision of messages; an aggregator that encodes, or exchanges nothing, has its own alone."""
    if aggregator.lossy or not aggregator.exchanges:
        return [None]
    return [name if name in WIRES else None for name in part.wire]


def local_updates(part: TrainingPart, step: str, aggregator: Aggregator[Any]) -> list[dict[str, Any]]:
    """The fields of `Cell` for each kind of block; or those without local updates."""
    keys = ("sync_every", *LOCAL_KEYS)
    if not can_be_local(step, aggregator):
        return [dict(zip(keys, (1, None, None, None), strict=True))]
    found: list[dict[str, Any]] = []
    names: Sequence[str | None] = part.outer_update or [None]
    for every, given in itertools.product(part.sync_every, names):
        name = given or ("average" if every > 1 else None)
        has_numbers = name is not None and name not in WITHOUT_MOMENTUM
        numbers = ((getattr(part, key) if has_numbers else None) or [None] for key in LOCAL_KEYS[1:])
        chosen = itertools.product([every], [name], *numbers)
        found += [dict(zip(keys, values, strict=True)) for values in chosen]
    return found


def can_be_local(step: str, aggregator: Aggregator[Any]) -> bool:
    """Whether models can be brought together so: the mean of what ranks moved by, exact or in 16 bits."""
    return step == "eager" and aggregator.exchanges and (not aggregator.lossy or aggregator.name in WIRES)


def wraps_in_ddp(step: str, aggregator: Aggregator[Any]) -> bool:
    return step == "overlapped" and aggregator.ddp_path() in ("hook", "library_hook", "own")


def _of_ddp(key: str, part: TrainingPart, step: str, aggregator: Aggregator[Any]) -> Sequence[Any]:
    if not wraps_in_ddp(step, aggregator):
        return [None]
    default: Any = axis(key).default
    if key == "first_bucket_mb" and part.bucket_mb is None:
        default = DDP_BUCKETS_MB[0]
    return getattr(part, key) or [default]


def _buckets(size: Any) -> dict[str, Any]:
    """The fields for one size of all buckets, or for their sizes one by one."""
    if isinstance(size, list):
        return {"bucket_mb": None, "bucket_sizes_mb": tuple(map(float, size))}
    return {"bucket_mb": size}


def _bucket_sizes(part: TrainingPart, step: str, aggregator: Aggregator[Any]) -> Sequence[Any]:
    """Those of DDP, and of steps layer by layer: captured ones if the study asks for it."""
    is_layered = aggregator.ddp_path() == "layered"
    may_be = aggregator.overlaps and (aggregator.update_site == "replica" or is_layered)
    if step == "captured" and part.bucket_mb and may_be:
        return part.bucket_mb
    if step == "overlapped" and is_layered:
        return part.bucket_mb or [DDP_BUCKETS_MB[-1]]
    if not wraps_in_ddp(step, aggregator):
        return [None]
    return part.bucket_mb or [DDP_BUCKETS_MB[-1]]
