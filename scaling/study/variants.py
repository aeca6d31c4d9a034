"""How a step is computed, exchanged and set: the combinations of a part's keys that go together."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.bucket import DDP_BUCKETS_MB
from scaling.errors import StudyError
from scaling.study.optimizers import chosen, optimizer_fields
from scaling.study.parts import TrainingPart, Workload
from scaling.training.gradients import WIRES

OF_DDP = ("first_bucket_mb", "find_unused_parameters", "static_graph", "gradient_as_bucket_view")
"""Keys that are arguments of torch's DDP."""

_OF_DDP_DEFAULTS = {"static_graph": False, "gradient_as_bucket_view": False}


def precisions(part: TrainingPart, device: str) -> list[dict[str, Any]]:
    """The fields `tf32` and `precision` of the part's cells; those of a CPU know no TF32.

    Raises:
        StudyError: both keys are there.
    """
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
    part: TrainingPart, workload: Workload, step: str, aggregator: Aggregator[Any]
) -> Iterator[dict[str, Any]]:
    """The fields of `Cell` for each combination of the keys that this step and aggregator have.

    Raises:
        StudyError: numbers of the optimizer contradict each other.
    """
    ddp = {key: _of_ddp(key, part, step, aggregator) for key in OF_DDP}
    axes: dict[str, Sequence[Any]] = {
        "bucket_mb": _bucket_sizes(part, step, aggregator),
        "wire": wires(part, aggregator),
        "accumulate": part.accumulate,
        "checkpoint_activations": part.checkpoint_activations,
        "compile": part.compile,
        **ddp,
    }
    clip_norm = chosen("clip_norm", workload, part)
    clipping = {"clip_norm": clip_norm, "clip_gradient": clip_norm and clipped_gradient(workload, part)}
    for name in part.optimizer:
        fields = {**optimizer_fields(name, workload, part), **clipping}
        for values in itertools.product(*axes.values()):
            yield {**fields, **dict(zip(axes, values, strict=True)), **_buckets(values[0])}


def clipped_gradient(workload: Workload, part: TrainingPart) -> str:
    """Which gradient is clipped; that of a lossy aggregator the study has to name (`scaling.study.rules`)."""
    return str(chosen("clip_gradient", workload, part, "mean"))


def wires(part: TrainingPart, aggregator: Aggregator[Any]) -> list[str | None]:
    """The precision of messages; an aggregator that encodes, or exchanges nothing, has its own alone."""
    if aggregator.lossy or not aggregator.exchanges:
        return [None]
    return [name if name in WIRES else None for name in part.wire]


def wraps_in_ddp(step: str, aggregator: Aggregator[Any]) -> bool:
    """Whether the step is that of torch's DDP."""
    return step == "overlapped" and aggregator.ddp_path() in ("hook", "library_hook", "own")


def _of_ddp(key: str, part: TrainingPart, step: str, aggregator: Aggregator[Any]) -> Sequence[Any]:
    if not wraps_in_ddp(step, aggregator):
        return [None]
    default: Any = _OF_DDP_DEFAULTS.get(key)
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
