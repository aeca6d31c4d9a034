"""What an aggregation is predicted as: the exchanges with host memory move what they say."""

import pytest

from scaling.aggregators.prediction import copies_to_ranks, gathered_by_all, rows_from_host, rows_to_host

NUM_ELEMENTS = 1000


def moved(exchange):
    """(source, target) -> the elements of its transfers, all of one step."""
    (step,) = exchange.schedule.steps
    bounds = exchange.schedule.bounds(exchange.num_elements)
    return {(one.source, one.target): (bounds[one.start], bounds[one.stop]) for one in step}


@pytest.mark.parametrize("world_size", [1, 2, 5])
class TestHostMemory:
    def rows(self, world_size):
        return [(NUM_ELEMENTS * rank, NUM_ELEMENTS * (rank + 1)) for rank in range(world_size)]

    def test_every_rank_writes_a_row_of_its_own(self, world_size):
        expected = {(rank, world_size): row for rank, row in enumerate(self.rows(world_size))}
        assert moved(rows_to_host(NUM_ELEMENTS, world_size)) == expected

    def test_every_rank_reads_a_row_of_its_own(self, world_size):
        expected = {(world_size, rank): row for rank, row in enumerate(self.rows(world_size))}
        assert moved(rows_from_host(NUM_ELEMENTS, world_size)) == expected

    def test_every_rank_reads_the_one_buffer(self, world_size):
        expected = {(world_size, rank): (0, NUM_ELEMENTS) for rank in range(world_size)}
        assert moved(copies_to_ranks(NUM_ELEMENTS, world_size)) == expected

    def test_every_rank_sends_its_own_to_all_others(self, world_size):
        rows = self.rows(world_size)
        expected = {(a, b): rows[a] for a in range(world_size) for b in range(world_size) if a != b}
        assert moved(gathered_by_all(NUM_ELEMENTS, world_size)) == expected
