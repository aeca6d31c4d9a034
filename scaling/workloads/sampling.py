"""Which samples a rank trains on in which step: one global order, cut into batches, cut into ranks.

The global order depends on seed and epoch alone, so that world sizes and aggregators are compared on the same
sequence of global batches:

1. shuffle all samples with a generator seeded from (seed, epoch);
2. cut the order into global batches; the last incomplete one is dropped;
3. rank r of n trains on the r-th of n equal contiguous slices of every global batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scaling.errors import StudyError


def seeded_generator(seed: int, *stream: int) -> torch.Generator:
    """A CPU generator for one purpose: unrelated to that of any other (seed, *stream).

    Its seed is the first 32-bit word of `numpy.random.SeedSequence(seed, spawn_key=stream)`: with a mere sum
    seed + epoch, epoch 1 of seed 0 would be epoch 0 of seed 1.

    Args:
        seed: of the study, 0 or more.
        stream: what the numbers are for; numbers of 0 or more.

    Raises:
        StudyError: the seed is negative.
    """
    if seed < 0:
        raise StudyError(f"seed {seed} is negative; choose 0 or more")
    # One word: torch's CPU generator, a Mersenne twister, uses the low 32 bits of its seed only.
    word = np.random.SeedSequence(seed, spawn_key=stream).generate_state(1, np.uint32)[0]
    return torch.Generator().manual_seed(int(word))


def epoch_batches(num_samples: int, global_batch: int, seed: int, epoch: int) -> Tensor:
    """The global batches of one epoch, in order.

    Args:
        num_samples: of the training split.
        global_batch: samples that all ranks together use in one step.
        seed: of the study, 0 or more.
        epoch: counted from 0.

    Returns:
        Sample indices [num_samples // global_batch, global_batch], int64, on the host. None occurs twice; the
        num_samples % global_batch samples that are left over differ from epoch to epoch.

    Raises:
        StudyError: the global batch is not between 1 and `num_samples`, or the seed is negative.
    """
    if not 1 <= global_batch <= num_samples:
        raise StudyError(
            f"global batch {global_batch} does not fit {num_samples} training samples; "
            f"choose a global batch of 1 to {num_samples}, or more samples"
        )
    order = torch.randperm(num_samples, generator=seeded_generator(seed, epoch))
    num_batches = num_samples // global_batch
    return order[: num_batches * global_batch].view(num_batches, global_batch)


def shard(batches: Tensor, rank: int, world_size: int) -> Tensor:
    """The part of every global batch that one rank trains on.

    Args:
        batches: indices [num_batches, global_batch], from `epoch_batches`.
        rank: 0 to world_size - 1.
        world_size: number of ranks.

    Returns:
        A view [num_batches, global_batch / world_size] of `batches`; side by side in the order of ranks, the
        shards are `batches`.

    Raises:
        StudyError: the world size does not divide the global batch.
    """
    assert 0 <= rank < world_size
    global_batch = batches.shape[1]
    if global_batch % world_size:
        raise StudyError(
            f"global batch {global_batch} cannot be shared equally by {world_size} ranks; "
            f"choose a multiple of {world_size}, such as {-(-global_batch // world_size) * world_size}"
        )
    local_batch = global_batch // world_size
    return batches[:, rank * local_batch : (rank + 1) * local_batch]
