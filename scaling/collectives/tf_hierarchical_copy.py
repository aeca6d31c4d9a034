"""TensorFlow's hierarchical copy: each half of the GPUs sums at one main GPU, the two mains sum, and back.

Made for machines of two groups of GPUs with few links between them: one copy a direction crosses over for
each tensor, and the pair of mains changes from tensor to tensor.

For chunk i with the mains (a, b), b in the other half than a:

1. The other ranks of each half add their chunk into that of their half's main.
2. b adds its sum into a's.
3. a copies the total to b.
4. Each main copies the total to the other ranks of its half.

Steps: 4 (2 and 3 alone with 2 ranks). Bytes sent, all ranks together: 2(n-1) S; where the mains go round, as
they do without `main_pairs` and for even n, 2(n-1)/n S by each. Error: one order of summation, then copies,
so the ranks agree bit for bit.

Reference: tensorflow/benchmarks, `HierarchicalCopyAlgorithm` (scripts/tf_cnn_benchmarks/batch_allreduce.py).
Tensor i takes the mains i mod n and (i + n/2) mod n there on a DGX-1; `GCP_V100_PAIRS` are those for that
machine. Our chunks are equal parts in place of its tensors. TensorFlow drops the last GPU where n is odd: we
put it into the second half.
"""

from __future__ import annotations

from collections.abc import Sequence

from scaling.collectives.composition import mirrored, side_by_side
from scaling.collectives.schedule import Schedule, ScheduleStep, Transfer
from scaling.errors import ScheduleError

GCP_V100_PAIRS = ((0, 5), (2, 7), (5, 0), (7, 2))


def tf_hierarchical_copy(world_size: int, main_pairs: Sequence[tuple[int, int]] | None = None) -> Schedule:
    """The exchange over two halves; chunk i uses the mains `main_pairs[i]`.

    Args:
        world_size: ranks; the first half is ranks 0 to n // 2 - 1.
        main_pairs: (the main that takes the total, the other half's main), one pair a chunk; None lets every
            rank be the main of one chunk.

    Raises:
        ScheduleError: both mains of a pair are in one half, one is no rank, or there is no pair.
    """
    half = world_size // 2
    if main_pairs is None:
        main_pairs = [_round_robin_pair(i, half) for i in range(world_size)] if half else []
    elif not main_pairs:
        raise ScheduleError("tf_hierarchical_copy: no pair of mains; give at least one")
    for a, b in main_pairs:
        if not (0 <= a < world_size and 0 <= b < world_size) or (a < half) == (b < half):
            raise ScheduleError(
                f"tf_hierarchical_copy: mains ({a}, {b}); one must be a rank below {half}, the other one of "
                f"{half} to {world_size - 1}"
            )
    steps = side_by_side(_chunk_steps(world_size, chunk, a, b) for chunk, (a, b) in enumerate(main_pairs))
    return Schedule(
        "tf_hierarchical_copy", world_size, max(len(main_pairs), 1), tuple(step for step in steps if step)
    )


def _round_robin_pair(i: int, half: int) -> tuple[int, int]:
    """Main i and the one opposite it; the odd rank at the end has the last of the first half opposite."""
    return (i, i + half) if i < half else (i, min(i - half, half - 1))


def _chunk_steps(world_size: int, chunk: int, a: int, b: int) -> list[ScheduleStep]:
    half = world_size // 2
    main_of = [a if (rank < half) == (a < half) else b for rank in range(world_size)]
    gather = tuple(
        Transfer(rank, main, chunk, chunk + 1, "add") for rank, main in enumerate(main_of) if rank != main
    )
    cross = (Transfer(b, a, chunk, chunk + 1, "add"),)
    return [gather, cross, *mirrored([gather, cross])]
