"""Combinations of precision, wire, clipping, accumulation and DDP's arguments that cannot be."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import nn

from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError
from scaling.study.parts import TrainingPart
from scaling.study.variants import OF_DDP, can_be_local, wraps_in_ddp
from scaling.study.workloads import ChosenWorkload
from scaling.training.batch_norm import has_batch_norm
from scaling.training.compute import checkpointed_layers
from scaling.training.ddp import TAKES_SIZES
from scaling.training.gradients import WIRES
from scaling.training.outer_updates import WITHOUT_MOMENTUM


def check_step_keys(part: TrainingPart, aggregators: Sequence[Aggregator[Any]]) -> None:
    """Checks what the part's keys demand of each other. Raises StudyError: naming the rule and a way out."""
    ddp = [key for key in OF_DDP if getattr(part, key) is not None]
    if ddp and not any(wraps_in_ddp(step, aggregator) for step in part.step for aggregator in aggregators):
        raise StudyError(
            f"{ddp[0]} is an argument of torch's DDP, which step: overlapped uses, and no aggregator "
            "of this part does; leave it out"
        )
    _check_bucket_sizes(part, aggregators)
    _check_local_updates(part, aggregators)
    if True in part.compile and "captured" in part.step:
        raise StudyError(
            "compile: true goes with step: eager and overlapped; a captured step is a CUDA graph "
            "already: use a part of its own"
        )
    for aggregator in aggregators:
        _check_scaling(aggregator, part)
        _check_wire(aggregator, part)
        if True in part.compile and aggregator.ddp_path() == "fully_sharded":
            raise StudyError(f"compile: true does not go with {aggregator.label()}; use compile: false")
        if max(part.accumulate) > 1 and aggregator.ddp_path() == "optimizer" and "overlapped" in part.step:
            raise StudyError(
                f"accumulate: {max(part.accumulate)}: aggregator {aggregator.label()!r} exchanges in "
                "every backward pass; use horovod, or all_reduce, or accumulate: 1"
            )


def _check_local_updates(part: TrainingPart, aggregators: Sequence[Aggregator[Any]]) -> None:
    """Local updates go with eager steps and with means that every rank can have the same of."""
    names = part.outer_update or []
    for key in ("outer_momentum", "outer_learning_rate"):
        if getattr(part, key) is not None and not set(names) - set(WITHOUT_MOMENTUM):
            raise StudyError(
                f"{key} belongs to outer_update: block_momentum, nesterov or cntk_block_momentum; "
                "leave it out"
            )
    if not names and max(part.sync_every) == 1:
        return
    what = f"outer_update: {names[0]}" if names else f"sync_every: {max(part.sync_every)}"
    if "fp16" in (part.precision or ()):
        raise StudyError(
            f"{what}: with precision: fp16 the ranks would skip different steps and scale their losses "
            "differently; use bf16, or wire: fp16"
        )
    if "sync" in part.batch_norm:
        raise StudyError(
            f"{what}: batch_norm: sync exchanges statistics in every step, of models that differ inside a "
            "block; use batch_norm: replica"
        )
    pairs = [(step, aggregator) for aggregator in aggregators for step in part.step if aggregator.exchanges]
    refused = [pair for pair in pairs if not can_be_local(*pair)]
    is_measured_without = not names and 1 in part.sync_every and len(refused) < len(pairs)
    if refused and not is_measured_without:
        step, aggregator = refused[0]
        why = f"aggregator {aggregator.label()!r} encodes what it sends with a loss; models need their mean"
        if step != "eager":
            how = "under its backward pass or in its graph, not whole models"
            why = f"step: {step} exchanges each gradient {how}"
        raise StudyError(
            f"{what}: {why}; use step: eager and an exact aggregator, bf16 or fp16, in a part of its own if "
            "need be, or add 1 to sync_every without outer_update, with which it is measured"
        )
    if not pairs:
        raise StudyError(f"{what}: no aggregator of this part exchanges anything; leave it out")


def _check_bucket_sizes(part: TrainingPart, aggregators: Sequence[Aggregator[Any]]) -> None:
    sizes = next((size for size in part.bucket_mb or () if isinstance(size, list)), None)
    if sizes is None:
        return
    what = f"bucket_mb: {sizes} gives the sizes of DDP's buckets one by one"
    if part.step != ["overlapped"] or any(aggregator.ddp_path() == "layered" for aggregator in aggregators):
        raise StudyError(f"{what}, which step: overlapped alone has; use a part of its own, or one size")
    if part.first_bucket_mb is not None or True in (part.find_unused_parameters or ()):
        raise StudyError(
            f"{what}, the first one too, in the order of the gradients; leave first_bucket_mb and "
            "find_unused_parameters out"
        )
    if not TAKES_SIZES and max(len(size) for size in part.bucket_mb or () if isinstance(size, list)) > 2:
        raise StudyError(f"{what}, and this torch takes two, of the first bucket and of the others")


def _check_scaling(aggregator: Aggregator[Any], part: TrainingPart) -> None:
    """With fp16 every rank has to find the infinities of the mean, and no state may keep scaled values."""
    if "fp16" not in (part.precision or ()) or not aggregator.exchanges:
        return
    what = f"precision: fp16 needs its loss scaled, and aggregator {aggregator.label()!r}"
    way_out = "use precision: bf16, or all_reduce, in a part of its own if need be"
    if aggregator.shards_optimizer or aggregator.ddp_path() == "fully_sharded":
        raise StudyError(f"{what} has its optimizer sharded by torch; {way_out}")
    if aggregator.update_site != "replica":
        raise StudyError(
            f"{what} leaves the mean at {aggregator.update_site}, so that not every rank sees whether it is "
            f"finite; {way_out}"
        )
    if aggregator.lossy:
        raise StudyError(
            f"{what} encodes gradients: what it keeps would be of another scale than the next ones, and "
            f"infinities, which scaling makes on purpose, cannot be encoded; {way_out}, or wire: fp16"
        )


def _check_wire(aggregator: Aggregator[Any], part: TrainingPart) -> None:
    narrow = [name for name in part.wire if name in WIRES]
    if not narrow or not aggregator.exchanges:
        return
    what = f"wire: {narrow[0]}: aggregator {aggregator.label()!r}"
    if aggregator.lossy:
        if narrow == part.wire:
            raise StudyError(
                f"{what} has an encoding of its own; add float32 to wire, with which it is measured, or use "
                "a part of its own"
            )
        return
    if any(WIRES[name] not in aggregator.dtypes for name in narrow):
        raise StudyError(f"{what} does not take gradients of that dtype; use wire: float32, or all_reduce")
    sends_parameters = aggregator.shards_optimizer or aggregator.update_site in ("root", "owner")
    if sends_parameters or aggregator.ddp_path() in ("optimizer", "fully_sharded"):
        raise StudyError(
            f"{what} sends parameters too, or the gradients as they are; use wire: float32, in a part of its "
            "own, or an aggregator that takes the step on every replica, such as all_reduce"
        )


def check_workload(
    workload: ChosenWorkload, part: TrainingPart, aggregators: Sequence[Aggregator[Any]]
) -> None:
    """Checks what a workload's keys and network demand. Raises StudyError: naming the rule and a way out."""
    keys = workload.keys
    clip_norm = keys.clip_norm or part.clip_norm
    which = keys.clip_gradient or part.clip_gradient
    if which and clip_norm is None:
        raise StudyError("clip_gradient says which gradient clip_norm clips; set clip_norm, or leave it out")
    if clip_norm is not None:
        _check_clipping(which, part, aggregators)
    if True in part.checkpoint_activations:
        _check_layers(workload.module, f"checkpoint_activations: true: model {keys.model.name!r}")


def _check_clipping(which: str | None, part: TrainingPart, aggregators: Sequence[Aggregator[Any]]) -> None:
    for aggregator in aggregators:
        if aggregator.lossy and which is None:
            raise StudyError(
                f"clip_norm: the mean of aggregator {aggregator.label()!r} is not that of the "
                "gradients: say which is clipped, clip_gradient: mean (what was decoded) or local (each "
                "worker's own, before it is encoded)"
            )
        if aggregator.own_momentum() and which != "local":
            raise StudyError(
                f"clip_norm: aggregator {aggregator.label()!r} delivers a momentum, not a gradient; "
                "use clip_gradient: local, or another aggregator"
            )
    under_backward = "overlapped" in part.step or ("captured" in part.step and part.bucket_mb)
    if which == "local" and under_backward:
        raise StudyError(
            f"clip_gradient: local needs a worker's whole gradient before the exchange, which step: "
            f"{'overlapped' if 'overlapped' in part.step else 'captured with bucket_mb'} begins under the "
            "backward pass; use step: eager, or clip_gradient: mean"
        )


def _check_layers(module: nn.Module, what: str) -> None:
    if not checkpointed_layers(module):
        raise StudyError(
            f"{what} has no layers to compute again: none of its children is a list or sequence of blocks; "
            "leave it out"
        )
    if has_batch_norm(module):
        raise StudyError(f"{what} has batch normalisation, which would see each batch twice; leave it out")
    if any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in module.modules()):
        raise StudyError(f"{what} has dropout, which would drop others the second time; leave it out")


def check_accumulation(counts: Sequence[int], local_batches: Sequence[int]) -> None:
    """Raises StudyError where micro-batches would differ in size."""
    for local_batch, count in itertools.product(local_batches, counts):
        if local_batch % count:
            raise StudyError(
                f"accumulate: {count} does not divide the local batch of {local_batch}: all "
                "micro-batches are of one size; use a batch that is a multiple"
            )
