"""The cells of a part that trains a network: one for each combination of its variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import StudyError
from scaling.study import places
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.parts import SIZE_WORDS, TrainingPart
from scaling.study.step_rules import check_accumulation, check_step_keys, check_workload
from scaling.study.variants import check_optimizer_keys, optimizer_fields, optimizers_of, precisions, variants
from scaling.study.workloads import ChosenWorkload, choose
from scaling.training.outer_updates import WITHOUT_MOMENTUM, outer_fields
from scaling.training.replica import require_dtypes
from scaling.workloads.registry import BUILT_IN_MODELS


class TrainsCells(Protocol):
    """What a kind says of its cells (`scaling.study.kinds.training.TrainingKind`)."""

    def check(
        self, part: Any, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str
    ) -> None: ...

    def extents(self, workload: ChosenWorkload, part: Any, device: str) -> list[dict[str, Any]]: ...


def training_cells(
    kind: TrainsCells, part: TrainingPart, machine: AvailableMachine, notes: list[str]
) -> list[Cell]:
    """All combinations of a part; `notes` takes what was decided. Raises StudyError: one cannot be."""
    device = places.device_of(part, machine, notes)
    sizes = places.world_sizes_on(part, device, machine, notes)
    if part.world_sizes in SIZE_WORDS:
        sizes = [size for size in sizes if _divides(part, size, notes)]
    if not sizes:
        return []
    shares = {
        size: places.workers_a_gpu(size, device, machine.num_gpus * machine.num_nodes) for size in sizes
    }
    notes += places.notes_on_sharing(part, shares, device)
    most = max(share or 1 for share in shares.values())
    threads = part.threads or places.default_threads(device, machine, most)
    aggregators = [(spec.name, create_aggregator(spec.name, spec.parameters)) for spec in part.aggregators]
    created = [aggregator for _, aggregator in aggregators]
    check_part(part, created, sizes, device)
    kind.check(part, created, sizes, device)
    places.check_sharing(part, created, [size for size in sizes if shares[size]], machine.num_gpus)
    cells: list[Cell] = []
    for choice in part.workloads:
        workload = choose(choice, device, notes.append)
        check_dtypes(workload, created)
        check_workload(workload, part, created)
        same: dict[str, Any] = {
            "kind": part.kind,
            "device": device,
            "scaling": part.scaling,
            "threads": threads,
        }
        for fields in _combinations(kind, part, workload, aggregators, shares, device):
            cells.append(Cell(**same, **fields))
    return cells


def _divides(part: TrainingPart, size: int, notes: list[str]) -> bool:
    """Whether every worker can have the same share of all global batches; a note where it cannot."""
    choices = [keys for choice in part.workloads for keys in getattr(choice, "first_available", [choice])]
    batches = [keys.global_batch for keys in choices if isinstance(keys.global_batch, list)]
    uneven = [batch for of_ranks in batches for batch in of_ranks if batch % size]
    if uneven and part.scaling == "strong":
        notes.append(f"world size {size} left out: it does not divide a global batch of {uneven[0]}")
        return False
    return True


def _combinations(
    kind: TrainsCells,
    part: TrainingPart,
    workload: ChosenWorkload,
    aggregators: Sequence[tuple[str, Aggregator[Any]]],
    shares: Mapping[int, int | None],
    device: str,
) -> Iterator[dict[str, Any]]:
    """The fields of `Cell` in which the cells of a workload differ, with those that all of them have."""
    peer_access = part.peer_access if device == "cuda" else [None]
    extents = kind.extents(workload, part, device)
    check_optimizer_keys(workload.keys, part)
    optimizers = optimizers_of(workload.keys, part)
    if "channels_last" in part.memory_format:
        _check_convolutions(workload)
    formats = [None if name == "contiguous" else name for name in part.memory_format]
    named = workload.fields()
    sizes = [
        (size, *_batch_sizes(part, batch, size)) for batch in workload.batches(device) for size in shares
    ]
    workload.require_samples(max(total for _, _, total in sizes))
    check_accumulation(part.accumulate, [local for _, local, _ in sizes])
    steps = [
        (name, aggregator, step, variants(part, optimizers, step, aggregator))
        for (name, aggregator), step in itertools.product(aggregators, part.step)
    ]
    precision_fields = precisions(part, device)
    axes = itertools.product(
        *(sizes, steps, peer_access, precision_fields, part.seed, extents, part.batch_norm, formats)
    )
    for batches, exchange, peer, precision, seed, extent, norm, memory_format in axes:
        (size, local, total), (name, aggregator, step, of_step) = batches, exchange
        if shares[size] and peer is not peer_access[0]:
            continue  # no GPU of sharing workers accesses another, whatever may be
        for variant in of_step:
            yield {
                **named,
                **variant,
                **outer_fields(variant, size),
                **precision,
                "aggregator": name,
                "aggregator_parameters": aggregator.parameters(),
                "aggregator_label": aggregator.label(),
                "exchanges": aggregator.exchanges,
                "lossy": aggregator.lossy
                or variant["wire"] is not None
                or not _is_todays_step(variant, size),
                "step": step,
                "world_size": size,
                "local_batch": local,
                "global_batch": total,
                "peer_access": peer,
                "seed": seed,
                "batch_norm": norm,
                "workers_per_gpu": shares[size],
                "memory_format": memory_format,
                **extent,
            }


def _is_todays_step(variant: Mapping[str, Any], world_size: int) -> bool:
    """Whether local updates, if any, train as without them: a mean of one SGD step each, unclipped."""
    is_linear = variant["sync_every"] == 1 and variant["optimizer"] == "sgd" and variant["clip_norm"] is None
    is_mean = variant["outer_update"] in WITHOUT_MOMENTUM
    return variant["outer_update"] is None or (is_mean and (world_size == 1 or is_linear))


def _batch_sizes(part: TrainingPart, batch: int, world_size: int) -> tuple[int, int]:
    if part.scaling == "weak":
        return batch, batch * world_size
    if batch % world_size:
        raise StudyError(
            f"global_batch {batch} does not divide by world size {world_size}; every worker takes "
            f"the same share: use a multiple of {world_size}, or leave that size out"
        )
    return batch // world_size, batch


def check_dtypes(workload: ChosenWorkload, aggregators: Sequence[Aggregator[Any]]) -> None:
    """Checks the dtypes of a user's model, built without values if it can be. Raises StudyError."""
    name = workload.keys.model.name
    if name in BUILT_IN_MODELS:
        return  # float32 throughout
    try:
        module = workload.module
    except Exception:  # noqa: BLE001 (of the user's code, which may want values)
        return
    for aggregator in aggregators:
        try:
            require_dtypes(module, aggregator)
        except StudyError as error:
            raise StudyError(f"model {name!r}: {error}") from error


def _check_convolutions(workload: ChosenWorkload) -> None:
    """A convolution of images has a weight [channels out, channels in, height, width]."""
    shape = workload.shape
    what = f"samples of shape {list(shape.input_shape)}"
    if not shape.tokens and len(shape.input_shape) == 3:
        if any(parameter.dim() == 4 for parameter in workload.module.parameters()):
            return
        what = "no convolution"
    raise StudyError(
        f"memory_format: channels_last is an order of the images [channels, height, width] that a "
        f"network convolves; {workload.keys.model.name} on {workload.keys.dataset.name} has {what}; use "
        "memory_format: contiguous, in a part of its own if need be"
    )


def check_part(
    part: TrainingPart, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str
) -> None:
    """Checks what the parts of a combination demand. Raises StudyError: naming the rule and a way out."""
    if part.bucket_mb is not None and not {"overlapped", "captured"} & set(part.step):
        raise StudyError(
            "bucket_mb is the size of the buckets that are exchanged under the backward pass, which "
            "only step: overlapped and captured do; leave it out"
        )
    check_step_keys(part, aggregators)
    for aggregator in aggregators:
        _check_worlds(aggregator, sizes)
        _check_momentum(aggregator, part)
        for step in part.step:
            _check_step(aggregator, step, device, under_backward=part.bucket_mb is not None)


def _check_worlds(aggregator: Aggregator[Any], sizes: Sequence[int]) -> None:
    if min(sizes) < aggregator.min_world_size:
        raise StudyError(
            f"aggregator {aggregator.label()!r} needs a world size of {aggregator.min_world_size} at "
            f"least, world_sizes has {min(sizes)}"
        )
    for size in sizes:
        aggregator.require_size(size)


def _check_momentum(aggregator: Aggregator[Any], part: TrainingPart) -> None:
    workloads = [keys for choice in part.workloads for keys in getattr(choice, "first_available", [choice])]
    if not aggregator.own_momentum():
        return
    what = f"aggregator {aggregator.label()!r} applies a momentum of {aggregator.own_momentum()} itself"
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


def _check_step(aggregator: Aggregator[Any], step: str, device: str, *, under_backward: bool) -> None:
    label = aggregator.label()
    if aggregator.overlapped_only and step != "overlapped":
        raise StudyError(
            f"aggregator {label!r} is for step: overlapped alone; for step: {step} use "
            f"{'zero1' if aggregator.exchanges else 'none'}, or a part of its own"
        )
    path = aggregator.ddp_path()
    on_owners = aggregator.update_site != "replica" and path != "layered"
    if aggregator.releases_gradients and (step == "eager" or (step == "captured" and not under_backward)):
        raise StudyError(
            f"aggregator {label!r} releases gradients under the backward pass, which step: {step} has "
            "complete before it exchanges them; use step: overlapped, or captured with bucket_mb, or zero1"
        )
    if step == "overlapped" and ((on_owners and path != "by_tensor") or not aggregator.overlaps):
        raise StudyError(
            f"aggregator {label!r} cannot overlap with the backward pass: it needs the whole gradient "
            "at once, or takes the optimizer step elsewhere than on every replica; use step: eager, or a "
            "part of its own"
        )
    if step != "captured":
        return
    if device != "cuda":
        raise StudyError(f"step: captured is a CUDA graph and needs GPUs; on {device} use step: eager")
    if not aggregator.graph_capturable or on_owners:
        raise StudyError(
            f"aggregator {label!r} cannot be captured in a CUDA graph: its sums or its update are the "
            "processor's or an owner's work; use step: eager, or a part of its own"
        )
