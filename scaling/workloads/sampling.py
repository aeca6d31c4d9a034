"""Which samples a rank trains on in which step, and how they are augmented: functions of seed and epoch
alone.

Rank r of n trains on the r-th of n equal contiguous slices of every global batch. Images get 4 pixels of
zeros on each side, are cut to their old size at one of 9 x 9 places, all equally likely, and mirrored with
probability 1/2. Numbers for every sample are drawn on the host once an epoch: what happens to a sample does
not depend on the batch, the rank or the world size. Images are normalised before, so that the zeros are the
mean colour.

Reference: K. He et al., "Deep residual learning for image recognition", arXiv 1512.03385, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from scaling.errors import StudyError


def seeded_generator(seed: int, *stream: int) -> torch.Generator:
    """A CPU generator for one purpose: unrelated to that of any other (seed, *stream), all 0 or more: with a
    mere sum seed + epoch, epoch 1 of seed 0 would be epoch 0 of seed 1. StudyError: the seed is negative."""
    if seed < 0:
        raise StudyError(f"seed {seed} is negative; choose 0 or more")
    # One word: torch's CPU generator, a Mersenne twister, uses the low 32 bits of its seed only.
    word = np.random.SeedSequence(seed, spawn_key=stream).generate_state(1, np.uint32)[0]
    return torch.Generator().manual_seed(int(word))


def epoch_batches(num_samples: int, global_batch: int, seed: int, epoch: int) -> Tensor:
    """Sample indices [num_samples // global_batch, global_batch] of one epoch (from 0), int64, on the host.
    StudyError: the global batch is not between 1 and `num_samples`, or the seed is negative."""
    if not 1 <= global_batch <= num_samples:
        raise StudyError(
            f"global batch {global_batch} does not fit {num_samples} training samples; "
            f"choose a global batch of 1 to {num_samples}, or more samples"
        )
    order = torch.randperm(num_samples, generator=seeded_generator(seed, epoch))
    num_batches = num_samples // global_batch
    return order[: num_batches * global_batch].view(num_batches, global_batch)


def shard(batches: Tensor, rank: int, world_size: int) -> Tensor:
    """One rank's part of every global batch: a view [num_batches, global_batch / world_size]. StudyError: the
    world size does not divide the global batch."""
    assert 0 <= rank < world_size
    global_batch = batches.shape[1]
    if global_batch % world_size:
        raise StudyError(
            f"global batch {global_batch} cannot be shared equally by {world_size} ranks; "
            f"choose a multiple of {world_size}, such as {-(-global_batch // world_size) * world_size}"
        )
    local_batch = global_batch // world_size
    return batches[:, rank * local_batch : (rank + 1) * local_batch]


PADDING = 4
# Unrelated to the orders of the epochs (stream: the epoch) and to synthetic data (0, 0).
STREAM = 1


@dataclass(frozen=True)
class Variations:
    """What happens to each of n samples. `offsets`: [n, 2] int64, 0 to 2 * PADDING: first row and column of
    the window in the padded image (PADDING is where the image was); `mirrored`: [n] bool."""

    offsets: Tensor
    mirrored: Tensor

    def __len__(self) -> int:
        return len(self.mirrored)

    def __getitem__(self, samples: Tensor) -> Variations:
        return Variations(self.offsets[samples], self.mirrored[samples])

    def to(self, device: torch.device) -> Variations:
        return Variations(self.offsets.to(device), self.mirrored.to(device))


def draw_variations(num_samples: int, generator: torch.Generator) -> Variations:
    """Independent, uniform variations for `num_samples` samples, where the generator is."""
    device = generator.device
    offsets = torch.randint(2 * PADDING + 1, (num_samples, 2), generator=generator, device=device)
    return Variations(offsets, torch.randint(2, (num_samples,), generator=generator, device=device).bool())


def epoch_variations(num_samples: int, seed: int, epoch: int) -> Variations:
    """Those of one epoch (from 0) for a whole training split, on the host; the same in every process.
    StudyError: the seed is negative."""
    return draw_variations(num_samples, seeded_generator(seed, STREAM, epoch))


def crop_and_flip(images: Tensor, variations: Variations) -> Tensor:
    """Images, [n, channels, height, width] of any type, cropped and mirrored as `variations` say, which are
    on their device; in a new tensor, without a wait for the device."""
    num_images, channels, height, width = images.shape
    assert len(variations) == num_images

    def positions(size: int) -> Tensor:
        return torch.arange(size, device=images.device)

    rows = variations.offsets[:, :1] + positions(height)
    columns = variations.offsets[:, 1:] + positions(width)
    columns = torch.where(variations.mirrored[:, None], columns.flip(1), columns)
    padded = nn.functional.pad(images, (PADDING,) * 4)
    # One index an axis, all of them broadcast to [n, channels, height, width].
    return padded[
        positions(num_images)[:, None, None, None],
        positions(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
