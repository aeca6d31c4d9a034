"""The global order of samples, and its shards."""

import pytest
import torch

from scaling.errors import StudyError
from scaling.workloads.sampling import epoch_batches, seeded_generator, shard


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
