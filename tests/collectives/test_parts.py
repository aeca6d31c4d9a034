"""Collectives side by side, each over its own part of the buffer."""

import pytest
import torch

from scaling.collectives.composition import BufferPart, of_parts, split_at_reduction
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.owners import shuffle, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from tests.collectives.run_on_tensors import run_on_tensors

WORLD_SIZES = range(1, 9)
SIZES = (13, 0, 1, 7, 64)


def mixed(world_size, sizes=SIZES):
    kinds = [ring, tree, star, lambda n: shuffle(n, [n - 1]), halving_doubling]
    return of_parts(
        "mixed", world_size, [BufferPart(s, kind(world_size)) for s, kind in zip(sizes, kinds, strict=True)]
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestParts:
    def test_every_part_gets_its_sum(self, world_size):
        verification = verify(mixed(world_size))
        assert verification.num_steps == 2 * (world_size - 1)

    def test_result_is_that_of_each_collective_alone(self, world_size):
        generator = torch.Generator().manual_seed(world_size)
        buffers = [torch.randn(sum(SIZES), generator=generator) for _ in range(world_size)]
        results = run_on_tensors(mixed(world_size), buffers)
        ends = torch.tensor(SIZES).cumsum(0).tolist()
        alone = run_on_tensors(ring(world_size), [buffer[: SIZES[0]] for buffer in buffers])
        last = [buffer[ends[-2] :] for buffer in buffers]
        for rank, result in enumerate(results):
            assert torch.equal(result[: SIZES[0]], alone[rank])
            assert torch.equal(result[ends[-2] :], run_on_tensors(halving_doubling(world_size), last)[rank])

    def test_bytes_are_those_of_the_parts(self, world_size):
        sent = verify(mixed(world_size)).sent_ratio_per_rank
        expected = [0] * world_size
        for step in mixed(world_size).steps:
            for source, _, start, stop, _ in step:
                expected[source] += sum(mixed(world_size).chunk_elements[start:stop])
        assert [ratio * sum(SIZES) for ratio in sent] == expected

    def test_empty_parts_alone_do_no_harm(self, world_size):
        schedule = mixed(world_size, (0,) * 5)
        verify(schedule)
        assert all(not r.numel() for r in run_on_tensors(schedule, [torch.empty(0)] * world_size))

    def test_part_without_a_collective_is_left_as_it_is(self, world_size):
        schedule = of_parts("partly", world_size, [BufferPart(3, None), BufferPart(5, ring(world_size))])
        buffers = [torch.full((8,), float(rank + 1)) for rank in range(world_size)]
        for rank, result in enumerate(run_on_tensors(schedule, buffers)):
            assert result[:3].tolist() == [rank + 1] * 3
            assert result[3:].tolist() == [world_size * (world_size + 1) / 2] * 5

    def test_sums_with_one_owner_each_can_be_stepped_there(self, world_size):
        parts = [BufferPart(5, shuffle(world_size, [i % world_size])) for i in range(4)]
        _, _, owners = split_at_reduction(of_parts("owners", world_size, parts))
        assert owners == tuple(i % world_size for i in range(4))


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestShuffle:
    def test_every_choice_of_owners_delivers_the_sum(self, world_size):
        for owners in ([0], [world_size - 1], [0] * 3, list(range(world_size))):
            verify(shuffle(world_size, owners))

    def test_all_ranks_as_owners_are_stripes(self, world_size):
        ours, stripe = shuffle(world_size, range(world_size)), stripes(world_size)
        assert [set(step) for step in ours.steps] == [set(step) for step in stripe.steps]

    def test_one_owner_sends_to_all_and_the_others_to_it(self, world_size):
        sent = verify(shuffle(world_size, [0])).sent_ratio_per_rank
        assert sent == ([world_size - 1] + [1] * (world_size - 1) if world_size > 1 else [0])
