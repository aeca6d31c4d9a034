"""Combinations of a study that cannot be: each an error that names the rule and a way out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError
from scaling.study.parts import TrainingPart
from scaling.study.step_rules import check_step_keys
from scaling.study.variants import optimizer_fields


def check_part(
    part: TrainingPart, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str, where: str
) -> None:
    """Checks what the parts of a combination demand of each other.

    Args:
        part: of the study.
        aggregators: its aggregators.
        sizes: its world sizes on this machine.
        device: "cpu" or "cuda".
        where: the part, for messages.

    Raises:
        StudyError: naming the combination, the rule and a way out.
    """
    if part.bucket_mb is not None and not {"overlapped", "captured"} & set(part.step):
        raise StudyError(
            f"{where}bucket_mb is the size of the buckets that are exchanged under the backward pass, which "
            "only step: overlapped and captured do; leave it out"
        )
    check_step_keys(part, aggregators, where)
    for aggregator in aggregators:
        _check_worlds(aggregator, sizes, where)
        _check_momentum(aggregator, part, where)
        for step in part.step:
            _check_step(aggregator, step, device, where, under_backward=part.bucket_mb is not None)


def _check_worlds(aggregator: Aggregator[Any], sizes: Sequence[int], where: str) -> None:
    if min(sizes) < aggregator.min_world_size:
        raise StudyError(
            f"{where}aggregator {aggregator.label()!r} needs a world size of {aggregator.min_world_size} at "
            f"least, world_sizes has {min(sizes)}"
        )


def _check_momentum(aggregator: Aggregator[Any], part: TrainingPart, where: str) -> None:
    workloads = [keys for choice in part.workloads for keys in getattr(choice, "first_available", [choice])]
    if not aggregator.own_momentum():
        return
    what = (
        f"{where}aggregator {aggregator.label()!r} applies a momentum of {aggregator.own_momentum()} itself"
    )
    if part.optimizer != ["sgd"]:
        raise StudyError(
            f"{what}: it goes with optimizer: sgd and momentum: 0 alone, in a part of its own if need be; "
            f"with {part.optimizer[-1]} use one_bit"
        )
    momenta = [optimizer_fields("sgd", keys, part)["momentum"] for keys in workloads]
    if any(momenta):
        raise StudyError(
            f"{what}, and the optimizer's is {max(momenta)}, which would apply it twice; set momentum: 0, in "
            "a part of its own if need be"
        )


def _check_step(
    aggregator: Aggregator[Any], step: str, device: str, where: str, *, under_backward: bool
) -> None:
    label = aggregator.label()
    if aggregator.overlapped_only and step != "overlapped":
        raise StudyError(
            f"{where}aggregator {label!r} is for step: overlapped alone; for step: {step} use "
            f"{'zero1' if aggregator.exchanges else 'none'}, or a part of its own"
        )
    on_owners = aggregator.update_site != "replica" and aggregator.ddp_path() != "layered"
    if aggregator.releases_gradients and (step == "eager" or (step == "captured" and not under_backward)):
        raise StudyError(
            f"{where}aggregator {label!r} releases gradients under the backward pass, which step: {step} has "
            "complete before it exchanges them; use step: overlapped, or captured with bucket_mb, or zero1"
        )
    if step == "overlapped" and (on_owners or not aggregator.overlaps):
        raise StudyError(
            f"{where}aggregator {label!r} cannot overlap with the backward pass: it needs the whole gradient "
            "at once, or takes the optimizer step elsewhere than on every replica; use step: eager, or a "
            "part of its own"
        )
    if step != "captured":
        return
    if device != "cuda":
        raise StudyError(f"{where}step: captured is a CUDA graph and needs GPUs; on {device} use step: eager")
    if not aggregator.graph_capturable or on_owners:
        raise StudyError(
            f"{where}aggregator {label!r} cannot be captured in a CUDA graph: its sums or its update are the "
            "processor's or an owner's work; use step: eager, or a part of its own"
        )
