"""On which device a part runs, at which world sizes, with how many threads a worker, and who shares a GPU.

`workers_per_gpu` is the most that may share one: as few as possible do, neighbours in rank, and only where
there are too few GPUs. They learn what as many GPUs would; their seconds and joules are left out of reports,
and no timed cell may share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine
from scaling.study.parts import SIZE_WORDS, AnyPart, Part, TrainingPart


def default_threads(device: str, machine: AvailableMachine, workers_per_gpu: int = 1) -> int:
    """CPU threads of a worker: 1 on CPUs, else its share of 3/4 of its GPU's cores: the driver, the library
    and the loader need some. The same at all sizes of a part, of which `workers_per_gpu` is the most."""
    if device != "cuda" or not machine.num_gpus:
        return 1
    return max(1, 3 * (machine.num_cores // machine.num_gpus) // 4 // workers_per_gpu)


def device_of(part: Part, machine: AvailableMachine, notes: list[str]) -> str:
    """ "cpu" or "cuda", with a note where it was found out."""
    if part.device != "auto":
        return part.device
    if machine.num_gpus:
        notes.append(f"device: {machine.num_gpus} GPU{'s' if machine.num_gpus > 1 else ''} found, NCCL")
        return "cuda"
    notes.append("device: no GPU found, CPU processes over Gloo")
    return "cpu"


CPU_WORKERS = 4  # at most, of `world_sizes: auto` (1, 2 and 4) and `all` where there is no GPU


def sizes_of(part: AnyPart, num_gpus: int, num_cores: int = CPU_WORKERS) -> list[int]:
    """World sizes with `auto` and `all` as numbers, for all nodes' GPUs (0: CPU_WORKERS workers) and cores"""
    if isinstance(part.world_sizes, list):
        return part.world_sizes
    most = num_gpus or CPU_WORKERS
    if part.world_sizes == "all":
        return [num_gpus or min(CPU_WORKERS, 2 ** (num_cores.bit_length() - 1))]
    return sorted({most, *(2**power for power in range(most.bit_length()))})


def world_sizes_on(part: Part, device: str, machine: AvailableMachine, notes: list[str]) -> list[int]:
    """The part's world sizes for which there are devices. Raises StudyError: there are too few."""
    available = machine.num_gpus * machine.num_nodes
    wanted = sizes_of(part, 0 if device == "cpu" else available, machine.num_cores * machine.num_nodes)
    if len(set(wanted)) != len(wanted):
        raise StudyError(f"world_sizes {wanted} holds a size twice")
    if device == "cpu":
        crowded = [size for size in wanted if size > machine.num_cores * machine.num_nodes]
        if part.world_sizes not in SIZE_WORDS or not crowded:
            return wanted
        dropped = [size for size in crowded if size > 2 and part.missing_devices == "drop"]
        shared = [size for size in crowded if size not in dropped]
        for sizes, what in ((dropped, "left out: more than the"), (shared, "share")):
            if sizes:
                notes.append(
                    f"{' and '.join(map(str, sizes))} workers {what} {machine.num_cores} CPU "
                    f"core{'s' * (machine.num_cores > 1)} here: more workers than cores cannot show a speedup"
                )
        return [size for size in wanted if size not in dropped]
    most = most_workers_a_gpu(part, machine.num_nodes) if available else 1
    missing = [size for size in wanted if size > available * most]
    sizes = [size for size in wanted if size <= available * most]
    each = f" for {most} workers each at most" if most > 1 else ""
    if missing and (part.missing_devices == "error" or not available):
        share = way_out(part, max(missing), machine.num_gpus, machine.num_nodes)
        raise StudyError(
            f"world size {min(missing)} needs {-(-min(missing) // most)} GPUs{each} and {available} "
            f"can be used; use {share}"
            + (f"world_sizes={sizes}, missing_devices=drop, or device=cpu" if sizes else "device=cpu")
        )
    if missing:
        notes.append(f"world sizes {missing} dropped: {available} GPUs here{each}")
    return sizes


def most_workers_a_gpu(part: AnyPart, num_nodes: int) -> int:
    """How many workers may share a GPU: one, but for trainings on one node."""
    return getattr(part, "workers_per_gpu", 1) if num_nodes == 1 else 1


def workers_a_gpu(world_size: int, device: str, num_gpus: int) -> int | None:
    """How many workers share a GPU at that world size; None where none do."""
    if device != "cuda" or world_size <= num_gpus:
        return None
    return -(-world_size // num_gpus)


def num_gpus_used(world_size: int, workers: int) -> int:
    return -(-world_size // workers)


def gpu_of(local_rank: int, workers: int | None) -> int:
    """Index of the GPU that a local rank has, where so many share one (None: none do)."""
    return local_rank // (workers or 1)


def described(cell: Mapping[str, Any]) -> str:
    """`4 workers on 2 GPUs`, for a cell with workers that share GPUs."""
    size = cell["world_size"]
    return f"{size} workers on {_gpus(num_gpus_used(size, cell['workers_per_gpu']))}"


def sharing_note(cell: Mapping[str, Any]) -> str:
    return (
        f"{described(cell)}: messages went through host memory over Gloo; the accuracy is that of "
        f"{cell['world_size']} workers, seconds and joules are not those of {cell['world_size']} GPUs"
    )


def notes_on_sharing(part: AnyPart, shares: Mapping[int, int | None], device: str) -> Iterator[str]:
    """What was decided for the user. `shares`: world size -> workers that share a GPU."""
    if device == "cpu" and most_workers_a_gpu(part, 1) > 1:
        yield "workers_per_gpu changes nothing on the CPU: each worker is a process of its own"
    for size, share in shares.items():
        if share is not None:
            yield (
                f"world size {size} on {_gpus(num_gpus_used(size, share))}: up to {share} workers share one; "
                "their accuracy is kept, seconds and joules are left out"
            )


def way_out(part: AnyPart, world_size: int, num_gpus: int, num_nodes: int) -> str:
    """What to say where so many workers find no place; empty where sharing would not help."""
    if not hasattr(part, "workers_per_gpu") or not num_gpus or num_nodes > 1:
        return ""
    share = f"workers_per_gpu={-(-world_size // num_gpus)}"
    return f"{share} (workers share GPUs: the accuracy holds, seconds do not) or "


def check_sharing(
    part: TrainingPart, aggregators: Sequence[Aggregator[Any]], sizes: Sequence[int], num_gpus: int
) -> None:
    """Refuses what workers that share a GPU cannot do. Raises StudyError: naming the rule and a way out."""
    if not sizes:
        return
    which = f"world size {min(sizes)} on {_gpus(num_gpus)}"
    if "captured" in part.step:
        raise StudyError(
            f"step: captured needs a GPU a worker: at {which} workers share one (workers_per_gpu), "
            "their messages go through host memory, and a CUDA graph holds none of these; use step: eager"
        )
    for aggregator in aggregators:
        if (reason := _why_not(aggregator)) is not None:
            raise StudyError(
                f"aggregator {aggregator.label()!r} needs a GPU a worker, and at {which} "
                f"workers share one (workers_per_gpu): {reason}"
            )


def _why_not(aggregator: Aggregator[Any]) -> str | None:
    parameters = aggregator.parameters()
    if aggregator.needs_peer_access or parameters.get("transport") in ("peer_memory", "one_kernel"):
        return "it reads other GPUs' memory; use transport: auto or sends, or leave it out"
    if parameters.get("transport") == "host_memory":
        return "its kernels wait for each other; use transport: sends, or leave it out"
    if parameters.get("captured") is True:
        return "a CUDA graph holds no message through host memory; leave captured out"
    if aggregator.library == "horovod":
        return "Horovod hands GPU tensors to NCCL, which refuses two ranks on one GPU; leave it out"
    return None


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number > 1 else ''}"
