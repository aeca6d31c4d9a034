"""The global order of samples, and its shards."""

import pytest
import torch

from scaling.errors import StudyError
from scaling.workloads.sampling import (
    PADDING,
    Variations,
    crop_and_flip,
    draw_variations,
    epoch_batches,
    epoch_variations,
    seeded_generator,
    shard,
)


def test_no_sample_occurs_twice_in_an_epoch():
    batches = epoch_batches(1000, 48, seed=1, epoch=0)
    assert batches.shape == (20, 48)
    assert batches.dtype == torch.int64
    assert len(batches.unique()) == batches.numel()
    assert 0 <= batches.min() <= batches.max() < 1000


def test_all_samples_occur_when_the_batch_divides_them():
    assert epoch_batches(96, 32, seed=1, epoch=3).flatten().sort().values.tolist() == list(range(96))


def test_incomplete_last_batch_is_dropped_and_differs_between_epochs():
    kept = [set(epoch_batches(10, 4, seed=0, epoch=e).flatten().tolist()) for e in range(20)]
    assert all(len(k) == 8 for k in kept)
    assert set.union(*kept) == set(range(10))


def test_order_depends_on_seed_and_epoch_alone():
    first = epoch_batches(100, 10, seed=5, epoch=2)
    torch.manual_seed(99)
    assert torch.equal(epoch_batches(100, 10, seed=5, epoch=2), first)
    assert torch.equal(epoch_batches(100, 20, seed=5, epoch=2).flatten(), first.flatten())


def test_no_two_seeds_and_epochs_share_an_order():
    orders = {
        tuple(epoch_batches(50, 50, seed, epoch)[0].tolist()) for seed in range(8) for epoch in range(8)
    }
    assert len(orders) == 64


def test_seed_beyond_32_bits_gives_another_order():
    first, second = (epoch_batches(50, 50, seed, 0) for seed in (1, 1 + 2**32))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("global_batch", [0, -1, 101])
def test_global_batch_that_does_not_fit_is_an_error(global_batch):
    with pytest.raises(
        StudyError, match=r"does not fit 100 training samples; choose a global batch of 1 to 100"
    ):
        epoch_batches(100, global_batch, 0, 0)


def test_negative_seed_is_an_error():
    with pytest.raises(StudyError, match="seed -1 is negative"):
        seeded_generator(-1, 0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_shards_side_by_side_are_the_global_batches(world_size):
    batches = epoch_batches(100, 24, seed=0, epoch=0)
    shards = [shard(batches, rank, world_size) for rank in range(world_size)]
    assert all(s.shape == (4, 24 // world_size) for s in shards)
    assert torch.equal(torch.cat(shards, dim=1), batches)


def test_world_size_that_does_not_divide_the_batch_is_an_error():
    with pytest.raises(StudyError, match=r"24 cannot be shared equally by 7 ranks; .* such as 28"):
        shard(epoch_batches(100, 24, 0, 0), 0, 7)


def images_of(count, size=(3, 32, 32)):
    return torch.randn(count, *size, generator=torch.Generator().manual_seed(0))


def variation(row, column, mirrored):
    return Variations(torch.tensor([[row, column]]), torch.tensor([mirrored]))


def one_by_one(image, row, column, mirrored):
    """The same for one image [channels, height, width], pixel by pixel."""
    result = torch.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            source_y, source_x = y + row - PADDING, x + column - PADDING
            if 0 <= source_y < height and 0 <= source_x < width:
                result[:, y, width - 1 - x if mirrored else x] = image[:, source_y, source_x]
    return result


@pytest.fixture(scope="module")
def many():
    return epoch_variations(50_000, seed=0, epoch=1)


class TestVariations:
    def test_all_offsets_from_0_to_8_occur_equally_often(self, many):
        assert many.offsets.shape == (50_000, 2)
        for axis in range(2):
            shares = many.offsets[:, axis].bincount() / 50_000
            assert shares.tolist() == pytest.approx([1 / 9] * 9, abs=0.006)  # over four standard deviations

    def test_half_are_mirrored(self, many):
        assert many.mirrored.dtype == torch.bool
        assert many.mirrored.float().mean().item() == pytest.approx(0.5, abs=0.01)

    def test_rows_columns_and_mirroring_are_independent(self, many):
        columns = torch.cat([many.offsets, many.mirrored[:, None]], 1).T.float()
        torch.testing.assert_close(torch.corrcoef(columns), torch.eye(3), atol=0.02, rtol=0)

    def test_depend_on_seed_and_epoch_alone(self):
        first = epoch_variations(100, seed=5, epoch=2)
        torch.manual_seed(99)
        again = epoch_variations(100, seed=5, epoch=2)
        assert torch.equal(first.offsets, again.offsets)
        assert torch.equal(first.mirrored, again.mirrored)

    def test_no_two_seeds_and_epochs_share_them(self):
        drawn = [epoch_variations(50, seed, epoch) for seed in range(8) for epoch in range(8)]
        assert len({tuple(one.offsets.flatten().tolist()) for one in drawn}) == 64
        assert len({tuple(one.mirrored.tolist()) for one in drawn}) == 64

    def test_negative_seed_is_an_error(self):
        with pytest.raises(StudyError, match="seed -1 is negative"):
            epoch_variations(10, -1, 0)


class TestImages:
    def test_middle_window_is_the_image(self):
        images = images_of(1)
        assert torch.equal(crop_and_flip(images, variation(PADDING, PADDING, False)), images)

    def test_mirrored_middle_window_is_the_mirrored_image(self):
        images = images_of(1)
        assert torch.equal(crop_and_flip(images, variation(PADDING, PADDING, True)), images.flip(3))

    def test_first_window_begins_with_four_rows_and_columns_of_zeros(self):
        images = images_of(1)
        result = crop_and_flip(images, variation(0, 0, False))
        assert not result[:, :, :PADDING].any()
        assert not result[:, :, :, :PADDING].any()
        assert torch.equal(result[:, :, PADDING:, PADDING:], images[:, :, :-PADDING, :-PADDING])

    @pytest.mark.parametrize("size", [(3, 32, 32), (1, 5, 9)], ids=str)
    def test_every_image_has_its_own_window(self, size):
        images = images_of(40, size)
        variations = draw_variations(40, torch.Generator().manual_seed(1))
        expected = [
            one_by_one(image, *offsets, mirrored)
            for image, offsets, mirrored in zip(
                images, variations.offsets.tolist(), variations.mirrored.tolist(), strict=True
            )
        ]
        assert torch.equal(crop_and_flip(images, variations), torch.stack(expected))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
    def test_type_is_kept_and_input_untouched(self, dtype):
        images = (images_of(8) * 50).to(dtype)
        before = images.clone()
        result = crop_and_flip(images, draw_variations(8, torch.Generator().manual_seed(0)))
        assert torch.equal(images, before)
        assert result.dtype == dtype
        assert result.shape == images.shape
        assert result.is_contiguous()

    def test_no_images_give_no_images(self):
        assert crop_and_flip(images_of(0), epoch_variations(0, 0, 0)).shape == (0, 3, 32, 32)


class TestWorldSizes:
    def epoch(self, inputs, global_batch, world_size, seed=3, epoch=2):
        """All augmented samples of an epoch as {index: image}, every rank doing its share."""
        batches = epoch_batches(len(inputs), global_batch, seed, epoch)
        result = []
        for rank in range(world_size):
            variations = epoch_variations(len(inputs), seed, epoch)  # each rank draws its own copy
            own = shard(batches, rank, world_size)
            result.append(
                torch.stack([crop_and_flip(inputs[samples], variations[samples]) for samples in own])
            )
        return batches, torch.cat(result, dim=1)

    @pytest.mark.parametrize("world_size", [2, 4])
    def test_global_batches_are_the_same_at_every_world_size(self, world_size):
        inputs = images_of(64, (3, 8, 8))
        _, alone = self.epoch(inputs, 16, 1)
        _, shared = self.epoch(inputs, 16, world_size)
        assert torch.equal(shared, alone)

    def test_sample_is_augmented_alike_in_every_batch_size(self):
        inputs = images_of(64, (3, 8, 8))
        by_index = []
        for global_batch in (8, 32):
            batches, images = self.epoch(inputs, global_batch, 1)
            by_index.append(images.flatten(0, 1)[batches.flatten().argsort()])
        assert torch.equal(*by_index)

    def test_epochs_differ(self):
        inputs = images_of(64, (3, 8, 8))
        by_index = []
        for epoch in (1, 2):
            batches, images = self.epoch(inputs, 16, 1, epoch=epoch)
            by_index.append(images.flatten(0, 1)[batches.flatten().argsort()])
        assert not torch.equal(*by_index)


@pytest.mark.gpu
def test_device_gives_what_the_host_gives():
    images, variations = images_of(256), epoch_variations(256, 0, 1)
    device = torch.device("cuda")
    on_device = crop_and_flip(images.to(device), variations.to(device))
    assert on_device.is_cuda
    assert torch.equal(on_device.cpu(), crop_and_flip(images, variations))
