"""On which device a part runs here, at which world sizes, with how many threads a worker."""

from __future__ import annotations

from scaling.errors import StudyError
from scaling.study.cell import AvailableMachine
from scaling.study.parts import SIZE_WORDS, AnyPart, Part
from scaling.study.sharing import most_workers_a_gpu, way_out


def default_threads(device: str, machine: AvailableMachine, workers_per_gpu: int = 1) -> int:
    """CPU threads of a worker: one for a CPU process, else its share of three quarters of its GPU's cores.

    The rest is left to the driver, the library's own threads and the loader: sums in host memory that take
    every core wait for the one that something else runs on. The same at every world size of a part, so that
    they are compared, and, unless its workers share GPUs, whatever other sizes the study has.
    `workers_per_gpu`: the most that share a GPU in the part.
    """
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


CPU_WORKERS = 4
"""Of `world_sizes: auto` where there is no GPU: 1, 2 and 4 processes; of `all` as many as cores."""


def sizes_of(part: AnyPart, num_gpus: int, num_cores: int = CPU_WORKERS) -> list[int]:
    """The part's world sizes, with `auto` (1, 2, 4, ... and all GPUs) and `all` as numbers. `num_gpus`: of
    all nodes; 0 on CPUs, where it is CPU_WORKERS processes; `num_cores`: of all nodes. `all` has no more
    processes than that on CPUs."""
    if isinstance(part.world_sizes, list):
        return part.world_sizes
    most = num_gpus or CPU_WORKERS
    if part.world_sizes == "all":
        return [num_gpus or min(CPU_WORKERS, 2 ** (num_cores.bit_length() - 1))]
    return sorted({most, *(2**power for power in range(most.bit_length()))})


def world_sizes_on(
    part: Part, device: str, machine: AvailableMachine, where: str, notes: list[str]
) -> list[int]:
    """The part's world sizes for which there are GPUs; all of them on the CPU. Raises StudyError: there are
    too few, and the part does not drop what is missing."""
    available = machine.num_gpus * machine.num_nodes
    wanted = sizes_of(part, 0 if device == "cpu" else available, machine.num_cores * machine.num_nodes)
    if len(set(wanted)) != len(wanted):
        raise StudyError(f"{where}world_sizes {wanted} holds a size twice")
    if device == "cpu":
        crowded = [str(size) for size in wanted if size > machine.num_cores * machine.num_nodes]
        if part.world_sizes in SIZE_WORDS and crowded:
            notes.append(
                f"{' and '.join(crowded)} workers share {machine.num_cores} CPU cores here: more workers "
                "than cores cannot show a speedup"
            )
        return wanted
    most = most_workers_a_gpu(part, machine.num_nodes) if available else 1
    missing = [size for size in wanted if size > available * most]
    sizes = [size for size in wanted if size <= available * most]
    each = f" for {most} workers each at most" if most > 1 else ""
    if missing and (part.missing_devices == "error" or not available):
        share = way_out(part, max(missing), machine.num_gpus, machine.num_nodes)
        raise StudyError(
            f"{where}world size {min(missing)} needs {-(-min(missing) // most)} GPUs{each} and {available} "
            f"can be used; use {share}"
            + (f"world_sizes={sizes}, missing_devices=drop, or device=cpu" if sizes else "device=cpu")
        )
    if missing:
        notes.append(f"world sizes {missing} dropped: {available} GPUs here{each}")
    return sizes
