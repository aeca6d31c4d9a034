"""The cells of a part that trains a network: one for each combination of its variables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from scaling.aggregators.base import Aggregator
from scaling.aggregators.registry import create as create_aggregator
from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.dtypes import check_dtypes
from scaling.study.memory_format import memory_formats
from scaling.study.parts import SIZE_WORDS, TrainingPart
from scaling.study.places import default_threads, device_of, world_sizes_on
from scaling.study.rules import check_part
from scaling.study.sharing import check_sharing, notes_on_sharing, workers_a_gpu
from scaling.study.step_rules import check_accumulation, check_workload
from scaling.study.variants import check_optimizer_keys, optimizers_of, precisions, variants
from scaling.study.workloads import ChosenWorkload, choose

NamedAggregator = tuple[str, Aggregator[Any]]


class TrainsCells(Protocol):
    """What a kind says of its cells (`scaling.study.kinds.training.TrainingKind`)."""

    def check(
        self, part: Any, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], device: str, where: str
    ) -> None: ...

    def input_placements(self, part: Any) -> Sequence[str]: ...

    def extent(self, workload: ChosenWorkload, part: Any, device: str, placement: str) -> dict[str, Any]: ...


def training_cells(
    kind: TrainsCells, part: TrainingPart, machine: AvailableMachine, where: str, notes: list[str]
) -> Iterator[Cell]:
    """All combinations of a part on that machine.

    Args:
        kind: of the part.
        part: of the study.
        machine: where it is to run.
        where: the part, for messages.
        notes: takes what was decided for the user.

    Raises:
        StudyError: a name or parameter is unknown, a combination cannot be, or GPUs are missing.
    """
    device = device_of(part, machine, notes)
    sizes = world_sizes_on(part, device, machine, where, notes)
    if part.world_sizes in SIZE_WORDS:
        sizes = [size for size in sizes if _divides(part, size, where, notes)]
    if not sizes:
        return
    shares = {size: workers_a_gpu(size, device, machine.num_gpus * machine.num_nodes) for size in sizes}
    notes += notes_on_sharing(part, shares, device)
    most = max(share or 1 for share in shares.values())
    threads = part.threads or default_threads(device, machine, most)
    aggregators = [(spec.name, create_aggregator(spec.name, spec.parameters)) for spec in part.aggregators]
    created = [aggregator for _, aggregator in aggregators]
    check_part(part, created, sizes, device, where)
    kind.check(part, created, sizes, device, where)
    check_sharing(part, created, [size for size in sizes if shares[size]], machine.num_gpus, where)
    for choice in part.workloads:
        workload = choose(choice, device, notes.append)
        check_dtypes(workload, created, where)
        check_workload(workload, part, created, where)
        for fields in _combinations(kind, part, workload, aggregators, shares, device, where):
            yield Cell(kind=part.kind, device=device, scaling=part.scaling, threads=threads, **fields)


def _divides(part: TrainingPart, size: int, where: str, notes: list[str]) -> bool:
    """Whether every worker can have the same share of all global batches; a note where it cannot."""
    choices = [keys for choice in part.workloads for keys in getattr(choice, "first_available", [choice])]
    batches = [keys.global_batch for keys in choices if isinstance(keys.global_batch, list)]
    uneven = [batch for of_ranks in batches for batch in of_ranks if batch % size]
    if uneven and part.scaling == "strong":
        notes.append(f"{where}world size {size} left out: it does not divide a global batch of {uneven[0]}")
        return False
    return True


def _combinations(
    kind: TrainsCells,
    part: TrainingPart,
    workload: ChosenWorkload,
    aggregators: Sequence[NamedAggregator],
    shares: Mapping[int, int | None],
    device: str,
    where: str,
) -> Iterator[dict[str, Any]]:
    """The fields of `Cell` in which the cells of a workload differ, with those that all of them have."""
    peer_access = part.peer_access if device == "cuda" else [None]
    placements = kind.input_placements(part)
    extents = {placement: kind.extent(workload, part, device, placement) for placement in placements}
    check_optimizer_keys(workload.keys, part, where)
    optimizers = optimizers_of(workload.keys, part)
    formats, named = memory_formats(workload, part, where), workload.fields()
    axes = itertools.product(
        *(workload.batches(device), shares, aggregators, part.step, peer_access, precisions(part, device)),
        *(part.seed, placements, part.batch_norm, formats),
    )
    for batch, size, (name, aggregator), step, peer, precision, seed, placement, norm, memory_format in axes:
        local, total = _batch_sizes(part, batch, size, where)
        workload.require_samples(total, where)
        if shares[size] and peer is not peer_access[0]:
            continue  # no GPU of sharing workers accesses another, whatever may be
        for variant in variants(part, optimizers, step, aggregator):
            check_accumulation(variant["accumulate"], local, where)
            yield {
                **named,
                **variant,
                **precision,
                "aggregator": name,
                "aggregator_parameters": aggregator.parameters(),
                "aggregator_label": aggregator.label(),
                "exchanges": aggregator.exchanges,
                "lossy": aggregator.lossy or variant["wire"] is not None,
                "step": step,
                "world_size": size,
                "local_batch": local,
                "global_batch": total,
                "peer_access": peer,
                "seed": seed,
                "input_placement": placement,
                "batch_norm": norm,
                "workers_per_gpu": shares[size],
                "memory_format": memory_format,
                **extents[placement],
            }


def _batch_sizes(part: TrainingPart, batch: int, world_size: int, where: str) -> tuple[int, int]:
    if part.scaling == "weak":
        return batch, batch * world_size
    if batch % world_size:
        raise StudyError(
            f"{where}global_batch {batch} does not divide by world size {world_size}; every worker takes "
            f"the same share: use a multiple of {world_size}, or leave that size out"
        )
    return batch // world_size, batch
