"""The schedule's own small parts."""

from dataclasses import replace
from itertools import pairwise

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.host_staging import host_serial
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, Transfer, chunk_bounds
from scaling.collectives.schedule_file import read_schedule, to_yaml
from scaling.conformance import check, fixed_cases
from scaling.errors import ScheduleError, StudyError


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


RING = to_yaml(ring(3), ["made by hand"])
LAYOUT = BucketLayout.of([("values", (10,))])


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RING)
    return path


@pytest.mark.parametrize("name", ["ring", "tree", "stripes", "double_binary_tree", "hierarchical"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_what_is_written_is_read(path, name, world_size):
    made = COLLECTIVES[name].schedule(world_size)
    path.write_text(to_yaml(made, ["a: comment", "- another"]))
    read, _ = read_schedule(path)
    assert (read.name, read.num_chunks, read.steps) == (made.name, made.num_chunks, made.steps)


def test_it_is_a_text_for_people():
    assert RING.splitlines()[:6] == [
        "# made by hand", "name: ring", "world_size: 3", "num_chunks: 3", "steps:",
        "- 0>1 add 0:1, 1>2 add 1:2, 2>0 add 2:3",
    ]  # fmt: skip


def test_host_memory_and_tensors_are_not_written():
    for made in (host_serial(2), sharded_owners(2, (3, 4))):
        with pytest.raises(ScheduleError, match="equal chunks and ranks alone"):
            to_yaml(made)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("0>1 add 0:1, ", "", "after the last step rank 0 lacks the contribution of rank 0 in chunk 0"),
    ("0>1 add 0:1", "0>1 add 0:9", "chunk 8 is out of range"),
    ("0>1 add 0:1", "0>7 add 0:1", "node 7 is out of range"),
    ("0>1 add 0:1", "0>1 sum 0:1", "step 0 is '0>1 sum 0:1, 1>2"),
    ("0>1 add 0:1", "0>1 add 0:1,", "allowed is 'source>target add start:stop'"),
    ("- 0>1 add 0:1, 1>2 add 1:2, 2>0 add 2:3", "- [1]", "step 0 is [1]"),
    ("world_size: 3", "world_size: 3.0", "world_size is 3.0 (float)"),
    ("world_size: 3", "world_size: 3\nhosts: 1", "it has the keys name, world_size, num_chunks, steps"),
    ("name: ring", "name: 3", "'name' is a text"), ("steps:", "steps: {", "no valid YAML"),
])  # fmt: skip
def test_anything_else_is_refused_with_the_place(path, old, new, message):
    assert RING.count(old) == 1
    path.write_text(RING.replace(old, new))
    with pytest.raises(ScheduleError) as error:
        read_schedule(path)
    assert message in str(error.value)


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ScheduleError, match=r"none\.yaml: "):
        read_schedule(tmp_path / "none.yaml")


def test_file_is_a_collective_by_its_name_for_its_number_of_ranks(path):
    assert schedule(str(path), 3).steps == ring(3).steps
    assert len(schedule(str(path), 1).steps) == 0
    with pytest.raises(
        ScheduleError, match="made for 3 ranks, asked for 4; `scaling synthesize --world-size 4`"
    ):
        schedule(str(path), 4)


class TestAggregator:
    def test_it_keeps_the_contract(self, path):
        aggregator = create("schedule", {"collective": str(path)})
        for case in fixed_cases(3)[:1]:
            check(aggregator, case.until(7))

    def test_label_names_the_file_and_parameters_have_its_digest(self, path):
        aggregator = create("schedule", {"collective": str(path)})
        assert aggregator.label() == f"schedule(collective={path})"
        assert aggregator.parameters()["sha256"] == read_schedule(path)[1]
        assert create("schedule", aggregator.parameters()) == aggregator

    def test_file_that_has_changed_is_refused(self, path):
        recorded = create("schedule", {"collective": str(path)}).parameters()
        path.write_text(RING.replace("made by hand", "made again"))
        with pytest.raises((ScheduleError, StudyError), match="has changed since the study was read"):
            create("schedule", recorded)

    def test_of_a_built_in_collective_nothing_is_added(self):
        assert "sha256" not in create("schedule").parameters()
        with pytest.raises((ScheduleError, StudyError), match="is no file"):
            create("schedule", {"sha256": "00"})

    def test_it_runs_for_its_number_of_ranks_alone(self, path):
        aggregator = create("schedule", {"collective": str(path)})
        assert aggregator.schedule(3, LAYOUT).num_chunks == 3
        with pytest.raises(ScheduleError, match="made for 3 ranks, asked for 2"):
            aggregator.schedule(2, LAYOUT)
