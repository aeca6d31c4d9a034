"""Workers that share a GPU, where a study of accuracy has more workers than the machine has GPUs.

`workers_per_gpu` is the most that may share one. A world size that has a GPU a worker is run so; of a larger
one as few as possible share a GPU, neighbours in rank: local rank r has GPU r // workers. What they learn is
what as many GPUs would; their seconds and joules are not, so reports leave these out, and no timed cell may
share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scaling.aggregators.base import Aggregator
from scaling.errors import StudyError
from scaling.study.parts import AnyPart, TrainingPart


def most_workers_a_gpu(part: AnyPart, num_nodes: int) -> int:
    """How many workers may share a GPU: one, but for trainings on one node."""
    return _most_allowed(part) or 1 if num_nodes == 1 else 1


def _most_allowed(part: AnyPart) -> int | None:
    """What the study says; None for the kinds whose workers never share."""
    return getattr(part, "workers_per_gpu", None)


def workers_a_gpu(world_size: int, device: str, num_gpus: int) -> int | None:
    """How many workers share a GPU at that world size; None where none do."""
    if device != "cuda" or world_size <= num_gpus:
        return None
    return -(-world_size // num_gpus)


def num_gpus_used(world_size: int, workers: int) -> int:
    """GPUs that so many workers on each take."""
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
    if _most_allowed(part) is None or not num_gpus or num_nodes > 1:
        return ""
    share = f"workers_per_gpu={-(-world_size // num_gpus)}"
    return f"{share} (workers share GPUs: the accuracy holds, seconds do not) or "


def check_sharing(
    part: TrainingPart,
    aggregators: Sequence[Aggregator[Any]],
    sizes: Sequence[int],
    num_gpus: int,
    where: str,
) -> None:
    """Refuses what workers that share a GPU cannot do. Raises StudyError: naming the combination, the rule
    and a way out."""
    if not sizes:
        return
    which = f"world size {min(sizes)} on {_gpus(num_gpus)}"
    if "captured" in part.step:
        raise StudyError(
            f"{where}step: captured needs a GPU a worker: at {which} workers share one (workers_per_gpu), "
            "their messages go through host memory, and a CUDA graph holds none of these; use step: eager"
        )
    for aggregator in aggregators:
        if (reason := _why_not(aggregator)) is not None:
            raise StudyError(
                f"{where}aggregator {aggregator.label()!r} needs a GPU a worker, and at {which} "
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
