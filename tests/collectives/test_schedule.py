"""The schedule's own small parts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, Transfer, chunk_bounds
from scaling.errors import ScheduleError


def step_of(index):
    return (Transfer(index, index + 1, 0, 1, "add"),)


class TestLazySteps:
    STEPS = LazySteps(3, step_of)

    def test_equal_the_tuple_that_they_stand_for(self):
        lazy, eager = LazySteps(3, step_of), tuple(map(step_of, range(3)))
        assert lazy == eager
        assert eager == lazy
        assert hash(lazy) == hash(eager)
        assert lazy != eager[:2]

    def test_index_and_slice_like_a_tuple(self):
        assert self.STEPS[-1] == step_of(2)
        assert self.STEPS[1:] == (step_of(1), step_of(2))
        with pytest.raises(IndexError):
            self.STEPS[3]

    def test_can_be_read_twice(self):
        assert list(self.STEPS) == list(self.STEPS)

    def test_schedules_compare_by_their_steps(self):
        assert ring(5) == ring(5)
        assert replace(ring(5), steps=tuple(ring(5).steps)) == ring(5)


class TestBounds:
    def test_equal_chunks_differ_by_one_element_at_most(self):
        assert Schedule("s", 1, 3, ()).bounds(10) == [0, 3, 6, 10]

    @pytest.mark.parametrize("num_chunks", [1, 2, 3, 7, 64])
    @pytest.mark.parametrize("more", [0, 1, 63, 100_003])
    def test_chunks_of_large_buffers_begin_at_64_elements_and_differ_by_a_hundredth(self, num_chunks, more):
        num_elements = 6400 * num_chunks + more
        bounds = chunk_bounds(num_elements, num_chunks)
        assert (bounds[0], bounds[-1], len(bounds)) == (0, num_elements, num_chunks + 1)
        assert all(bound % 64 == 0 for bound in bounds[:-1])
        sizes = [stop - start for start, stop in pairwise(bounds)]
        assert all(abs(size - num_elements / num_chunks) <= num_elements / num_chunks / 100 for size in sizes)

    @pytest.mark.parametrize("num_chunks", [2, 3, 7, 64])
    def test_chunks_of_smaller_buffers_differ_by_one_element_at_most(self, num_chunks):
        for num_elements in (6400 * num_chunks - 1, 6399, num_chunks + 1, 1, 0):
            sizes = [stop - start for start, stop in pairwise(chunk_bounds(num_elements, num_chunks))]
            assert sum(sizes) == num_elements
            assert max(sizes) - min(sizes) <= 1

    def test_explicit_chunks_keep_their_sizes(self):
        assert Schedule("s", 1, 3, (), chunk_elements=(5, 0, 2)).bounds(7) == [0, 5, 5, 7]

    def test_explicit_chunks_of_another_buffer_are_refused(self):
        with pytest.raises(ScheduleError, match="s: made for tensors of 7 elements together, run on 8"):
            Schedule("s", 1, 3, (), chunk_elements=(5, 0, 2)).bounds(8)
