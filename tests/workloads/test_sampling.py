"""The global order of samples, and its shards."""

import pytest
import torch

from scaling.errors import StudyError
from scaling.workloads import sampling
from scaling.workloads.sampling import crop_and_flip, epoch_batches, epoch_variations, shard


def test_no_sample_occurs_twice_in_an_epoch():
    batches = epoch_batches(1000, 48, seed=1, epoch=0)
    assert (batches.shape, batches.dtype, len(batches.unique())) == ((20, 48), torch.int64, batches.numel())
    assert 0 <= batches.min() <= batches.max() < 1000
    assert epoch_batches(96, 32, seed=1, epoch=3).flatten().sort().values.tolist() == list(range(96))


def test_incomplete_last_batch_is_dropped_and_differs_between_epochs():
    kept = [set(epoch_batches(10, 4, seed=0, epoch=e).flatten().tolist()) for e in range(20)]
    assert all(len(k) == 8 for k in kept)
    assert set.union(*kept) == set(range(10))


def test_order_depends_on_seed_and_epoch_alone_and_no_two_of_them_share_one():
    first = epoch_batches(100, 10, seed=5, epoch=2)
    torch.manual_seed(99)
    assert torch.equal(epoch_batches(100, 10, seed=5, epoch=2), first)
    assert torch.equal(epoch_batches(100, 20, seed=5, epoch=2).flatten(), first.flatten())
    drawn = [(seed, epoch) for seed in (*range(8), 1 + 2**32) for epoch in range(8)]
    assert len({tuple(epoch_batches(50, 50, *one)[0].tolist()) for one in drawn}) == 72


@pytest.mark.parametrize(("draw", "message"), [
    *((lambda size=size: epoch_batches(100, size, 0, 0), "fit 100 training samples; choose .* of 1 to 100")
      for size in (0, -1, 101)),
    (lambda: sampling.seeded_generator(-1, 0), "seed -1 is negative"),
    (lambda: shard(epoch_batches(100, 24, 0, 0), 0, 7), "24 cannot be shared equally by 7 ranks; .* as 28"),
])  # fmt: skip
def test_what_cannot_be_drawn_or_shared_is_an_error(draw, message):
    with pytest.raises(StudyError, match=message):
        draw()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_shards_side_by_side_are_the_global_batches(world_size):
    batches = epoch_batches(100, 24, seed=0, epoch=0)
    shards = [shard(batches, rank, world_size) for rank in range(world_size)]
    assert all(s.shape == (4, 24 // world_size) for s in shards)
    assert torch.equal(torch.cat(shards, dim=1), batches)


def images_of(count, size=(3, 32, 32)):
    return torch.randn(count, *size, generator=torch.Generator().manual_seed(0))


def one_by_one(image, row, column, mirrored):
    """The same for one image [channels, height, width], pixel by pixel."""
    result = torch.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            source_y, source_x = y + row - sampling.PADDING, x + column - sampling.PADDING
            if 0 <= source_y < height and 0 <= source_x < width:
                result[:, y, width - 1 - x if mirrored else x] = image[:, source_y, source_x]
    return result


class TestVariations:
    def test_offsets_from_0_to_8_and_mirroring_are_uniform_and_independent(self):
        many = epoch_variations(50_000, seed=0, epoch=1)
        assert (many.offsets.shape, many.mirrored.dtype) == ((50_000, 2), torch.bool)
        for axis in range(2):
            shares = many.offsets[:, axis].bincount() / 50_000
            assert shares.tolist() == pytest.approx([1 / 9] * 9, abs=0.006)  # over four standard deviations
        assert many.mirrored.float().mean().item() == pytest.approx(0.5, abs=0.01)
        columns = torch.cat([many.offsets, many.mirrored[:, None]], 1).T.float()
        torch.testing.assert_close(torch.corrcoef(columns), torch.eye(3), atol=0.02, rtol=0)

    def test_depend_on_seed_and_epoch_alone_and_no_two_of_them_share_any(self):
        first = epoch_variations(100, seed=5, epoch=2)
        torch.manual_seed(99)
        again = epoch_variations(100, seed=5, epoch=2)
        assert torch.equal(first.offsets, again.offsets)
        assert torch.equal(first.mirrored, again.mirrored)
        drawn = [epoch_variations(50, seed, epoch) for seed in range(8) for epoch in range(8)]
        assert len({tuple(one.offsets.flatten().tolist()) for one in drawn}) == 64
        assert len({tuple(one.mirrored.tolist()) for one in drawn}) == 64


class TestImages:
    @pytest.mark.parametrize("size", [(3, 32, 32), (1, 5, 9)], ids=str)
    def test_every_image_has_its_own_window(self, size):
        images = images_of(40, size)
        variations = sampling.draw_variations(40, torch.Generator().manual_seed(1))
        drawn = zip(images, variations.offsets.tolist(), variations.mirrored.tolist(), strict=True)
        expected = [one_by_one(image, *offsets, mirrored) for image, offsets, mirrored in drawn]
        assert torch.equal(crop_and_flip(images, variations), torch.stack(expected))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
    def test_type_is_kept_and_input_untouched(self, dtype):
        images = (images_of(8) * 50).to(dtype)
        before = images.clone()
        result = crop_and_flip(images, sampling.draw_variations(8, torch.Generator().manual_seed(0)))
        assert torch.equal(images, before)
        assert (result.dtype, result.shape) == (dtype, images.shape)
        assert result.is_contiguous()
        assert crop_and_flip(images[:0], epoch_variations(0, 0, 0)).shape == (0, 3, 32, 32)


class TestWorldSizes:
    def epoch(self, global_batch, world_size=1, epoch=2):
        """The indices of an epoch, and its augmented samples, every rank doing its share."""
        inputs, batches = images_of(64, (3, 8, 8)), epoch_batches(64, global_batch, 3, epoch)
        result = []
        for rank in range(world_size):
            variations = epoch_variations(len(inputs), 3, epoch)  # each rank draws its own copy
            own = [crop_and_flip(inputs[i], variations[i]) for i in shard(batches, rank, world_size)]
            result.append(torch.stack(own))
        return batches, torch.cat(result, dim=1)

    def by_index(self, global_batch, epoch=2):
        batches, images = self.epoch(global_batch, epoch=epoch)
        return images.flatten(0, 1)[batches.flatten().argsort()]

    @pytest.mark.parametrize("world_size", [2, 4])
    def test_global_batches_are_the_same_at_every_world_size(self, world_size):
        assert torch.equal(self.epoch(16, world_size)[1], self.epoch(16)[1])

    def test_sample_is_augmented_alike_in_every_batch_size_and_otherwise_in_another_epoch(self):
        assert torch.equal(self.by_index(8), self.by_index(32))
        assert not torch.equal(self.by_index(16, epoch=1), self.by_index(16))


@pytest.mark.gpu
def test_device_gives_what_the_host_gives():
    images, variations = images_of(256), epoch_variations(256, 0, 1)
    device = torch.device("cuda")
    on_device = crop_and_flip(images.to(device), variations.to(device))
    assert on_device.is_cuda
    assert torch.equal(on_device.cpu(), crop_and_flip(images, variations))
