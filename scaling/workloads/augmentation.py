"""The usual augmentation of small images: cut out at random from a frame of zeros, and mirrored at random.

What happens to a sample in an epoch depends on (seed, epoch, index of the sample) alone: not on the batch,
the rank or the world size.

1. once an epoch, numbers for every sample of the training split are drawn on the host (`epoch_variations`);
2. they are moved to the device and indexed like the samples (`variations[samples]`);
3. every image gets 4 pixels of zeros on each side, a window of its old size is cut out of that at one of 9 x
   9 places, all equally likely, and mirrored left to right with probability 1/2 (`crop_and_flip`).

Images are normalised before, so that the zeros are the mean colour.

    variations = epoch_variations(len(train), seed, epoch).to(device)
    inputs = crop_and_flip(train.inputs[samples], variations[samples])

Reference: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition" (2015),
arXiv 1512.03385, section 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scaling.workloads.sampling import seeded_generator

PADDING = 4
# Unrelated to the orders of the epochs (stream: the epoch) and to synthetic data (0, 0).
STREAM = 1


@dataclass(frozen=True)
class Variations:
    """What happens to each of n samples.

    Attributes:
        offsets: [n, 2] int64, 0 to 2 * PADDING: first row and first column of the window in the padded image;
            PADDING is where the image was.
        mirrored: [n] bool: whether left and right are exchanged.
    """

    offsets: Tensor
    mirrored: Tensor

    def __len__(self) -> int:
        return len(self.mirrored)

    def __getitem__(self, samples: Tensor) -> Variations:
        """Those of some samples: indices on the same device."""
        return Variations(self.offsets[samples], self.mirrored[samples])

    def to(self, device: torch.device) -> Variations:
        """The same on another device."""
        return Variations(self.offsets.to(device), self.mirrored.to(device))


def draw_variations(num_samples: int, generator: torch.Generator) -> Variations:
    """Independent, uniform variations for `num_samples` samples, where the generator is."""
    device = generator.device
    offsets = torch.randint(2 * PADDING + 1, (num_samples, 2), generator=generator, device=device)
    return Variations(offsets, torch.randint(2, (num_samples,), generator=generator, device=device).bool())


def epoch_variations(num_samples: int, seed: int, epoch: int) -> Variations:
    """Those of one epoch for a whole training split, on the host; the same in every process.

    Args:
        num_samples: of the training split, so that indices of `epoch_batches` index them.
        seed: of the study, 0 or more.
        epoch: 0 or more.

    Raises:
        StudyError: the seed is negative.
    """
    return draw_variations(num_samples, seeded_generator(seed, STREAM, epoch))


def crop_and_flip(images: Tensor, variations: Variations) -> Tensor:
    """Images cropped and mirrored as `variations` say. A pure function, without a wait for the device.

    Args:
        images: [n, channels, height, width] of any type; not changed.
        variations: of these n images, on their device.

    Returns:
        A new tensor of the shape, type and device of `images`.
    """
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
