"""How large a batch job a study needs, found without the machine that will run it."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.errors import StudyError
from scaling.study.places import sizes_of
from scaling.study.schema import Study


@dataclass(frozen=True)
class JobShape:
    """A job's nodes. `world_sizes`: what it will run, ascending; `workers_per_node`: at most, on each;
    `gpus_per_node`: 0 for a study on CPUs."""

    world_sizes: list[int]
    nodes: int
    workers_per_node: int
    gpus_per_node: int


def job_shape(study: Study, nodes: int | None = None, gpus_per_node: int | None = None) -> JobShape:
    """The shape that holds a study's largest world size, or all that it may without those it may drop.

    `nodes`: what the user asks for (None: as few as do); `gpus_per_node`: the same; None: the largest world
    size's share of a node, 0 for `device: cpu`. Raises StudyError: a part needs GPUs and none are asked for,
    or no size is left.
    """
    num_gpus = (nodes or 1) * (gpus_per_node or 0)
    wanted = [(part, sizes_of(part, num_gpus)) for part in study.parts]
    largest = max(size for _, counts in wanted for size in counts)
    on_cpus = all(part.device == "cpu" for part in study.parts)
    per_node = gpus_per_node or -(-largest // (nodes or 1))
    gpus = gpus_per_node if gpus_per_node is not None else (0 if on_cpus else per_node)
    nodes = nodes or -(-largest // per_node)
    if not gpus and any(part.device == "cuda" for part in study.parts):
        raise StudyError(f"study {study.name!r} has device: cuda; give --gpus-per-node, or use device=cpu")
    sizes = {
        size
        for part, counts in wanted
        for size in counts
        if size <= nodes * per_node
        or not (part.missing_devices == "drop" and part.device != "cpu" and gpus > 0)
    }
    if not sizes:
        raise StudyError(f"no world size of study {study.name!r} fits on {nodes} x {per_node} GPUs")
    return JobShape(sorted(sizes), nodes, per_node, gpus)
