"""The schedule's own small parts, its file, and steps built out of steps."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.composition import (
    BufferPart,
    mirrored,
    of_parts,
    pipelined,
    placed,
    side_by_side,
    split_at_reduction,
)
from scaling.collectives.halving_doubling import halving_doubling
from scaling.collectives.host_staging import host_serial
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import assign_owners, sharded_owners, shuffle, star, stripes
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, Transfer, chunk_bounds
from scaling.collectives.schedule_file import read_schedule, to_yaml
from scaling.collectives.tree import tree
from scaling.collectives.verify import verify
from scaling.conformance import check, fixed_cases
from scaling.errors import ScheduleError, StudyError
from tests.collectives.conftest import run_on_tensors


def step_of(index):
    return (Transfer(index, index + 1, 0, 1, "add"),)


def test_lazy_steps_equal_the_tuple_that_they_stand_for_and_can_be_read_twice():
    lazy, eager = LazySteps(3, step_of), tuple(map(step_of, range(3)))
    assert lazy == eager
    assert eager == lazy
    assert hash(lazy) == hash(eager)
    assert lazy != eager[:2]
    assert (lazy[-1], lazy[1:]) == (eager[-1], eager[1:])
    with pytest.raises(IndexError):
        lazy[3]
    assert list(lazy) == list(lazy) == list(eager)
    assert ring(5) == ring(5) == replace(ring(5), steps=tuple(ring(5).steps))


class TestBounds:
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

    def test_explicit_chunks_keep_their_sizes_and_are_of_no_other_buffer(self):
        assert Schedule("s", 1, 3, ()).bounds(10) == [0, 3, 6, 10]
        explicit = Schedule("s", 1, 3, (), chunk_elements=(5, 0, 2))
        assert explicit.bounds(7) == [0, 5, 5, 7]
        with pytest.raises(ScheduleError, match="s: made for tensors of 7 elements together, run on 8"):
            explicit.bounds(8)


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


def test_it_is_a_text_for_people_without_host_memory_and_tensors():
    assert RING.splitlines()[:6] == [
        "# made by hand", "name: ring", "world_size: 3", "num_chunks: 3", "steps:",
        "- 0>1 add 0:1, 1>2 add 1:2, 2>0 add 2:3",
    ]  # fmt: skip
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


def test_file_is_a_collective_by_its_name_for_its_number_of_ranks(path):
    assert schedule(str(path), 3).steps == ring(3).steps
    assert len(schedule(str(path), 1).steps) == 0
    with pytest.raises(
        ScheduleError, match="made for 3 ranks, asked for 4; `scaling synthesize --world-size 4`"
    ):
        schedule(str(path), 4)
    path.unlink()
    with pytest.raises(ScheduleError, match=r"mine\.yaml: "):
        read_schedule(path)


class TestAggregator:
    def test_it_keeps_the_contract_for_its_number_of_ranks_alone(self, path):
        aggregator = create("schedule", {"collective": str(path)})
        for case in fixed_cases(3)[:1]:
            check(aggregator, case.until(7))
        assert aggregator.schedule(3, LAYOUT).num_chunks == 3
        with pytest.raises(ScheduleError, match="made for 3 ranks, asked for 2"):
            aggregator.schedule(2, LAYOUT)

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


UP = [(Transfer(1, 0, 0, 1, "add"), Transfer(3, 2, 0, 1, "add")), (Transfer(2, 0, 0, 1, "add"),)]


def test_mirror_goes_back_in_reverse_as_copies():
    assert mirrored(UP) == [
        (Transfer(0, 2, 0, 1, "copy"),),
        (Transfer(0, 1, 0, 1, "copy"), Transfer(2, 3, 0, 1, "copy")),
    ]


def test_pipeline_runs_level_d_of_chunk_c_in_step_d_plus_c():
    steps = pipelined(UP, 3)
    assert len(steps) == 4
    assert [sorted((t.source, t.start) for t in step) for step in steps] == [
        [(1, 0), (3, 0)],
        [(1, 1), (2, 0), (3, 1)],
        [(1, 2), (2, 1), (3, 2)],
        [(2, 2)],
    ]
    assert pipelined([], 5) == []


def test_side_by_side_lasts_as_long_as_the_longest_and_placed_renames_nodes_and_widens_chunks():
    assert side_by_side([UP, UP[:1]]) == [UP[0] + UP[0], UP[1]]
    assert placed(UP[1:], [7, 8, 9], first_chunk=4, width=2) == [(Transfer(9, 7, 4, 6, "add"),)]


WORLD_SIZES = range(1, 9)
SIZES = (13, 0, 1, 7, 64)


def mixed(world_size, sizes=SIZES):
    kinds = [ring, tree, star, lambda n: shuffle(n, [n - 1]), halving_doubling]
    return of_parts(
        "mixed", world_size, [BufferPart(s, kind(world_size)) for s, kind in zip(sizes, kinds, strict=True)]
    )


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestParts:
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

    def test_every_part_gets_its_sum_and_bytes_are_those_of_the_parts(self, world_size):
        schedule = mixed(world_size)
        verification = verify(schedule)
        assert verification.num_steps == 2 * (world_size - 1)
        expected = [0] * world_size
        for source, _, start, stop, _ in (transfer for step in schedule.steps for transfer in step):
            expected[source] += sum(schedule.chunk_elements[start:stop])
        assert [ratio * sum(SIZES) for ratio in verification.sent_ratio_per_rank] == expected

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
    def test_every_choice_of_owners_delivers_the_sum_and_all_ranks_as_owners_are_stripes(self, world_size):
        for owners in ([0], [world_size - 1], [0] * 3, list(range(world_size))):
            verify(shuffle(world_size, owners))
        ours, stripe = shuffle(world_size, range(world_size)), stripes(world_size)
        assert [set(step) for step in ours.steps] == [set(step) for step in stripe.steps]

    def test_one_owner_sends_to_all_and_the_others_to_it(self, world_size):
        sent = verify(shuffle(world_size, [0])).sent_ratio_per_rank
        assert sent == ([world_size - 1] + [1] * (world_size - 1) if world_size > 1 else [0])


WORLD_SIZES_SPLIT_AT_REDUCTION = [1, 2, 3, 4, 5, 7, 8, 12]
AT_ROOT = ["tree", "star", "caffe_tree"]
AT_OWNERS = ["ring", "xring", "stripes", "halving_doubling", "mxnet_tree", "hierarchical"]


def integers(world_size, num_elements):
    return list(torch.arange(world_size * num_elements).view(world_size, num_elements) ** 2)


@pytest.mark.parametrize("world_size", WORLD_SIZES_SPLIT_AT_REDUCTION)
@pytest.mark.parametrize("name", [*AT_ROOT, *AT_OWNERS])
class TestCut:
    def test_first_half_leaves_each_chunks_sum_at_its_owner(self, name, world_size):
        plan = schedule(name, world_size)
        reduction, _, owners = split_at_reduction(plan)
        inputs = integers(world_size, 3 * plan.num_chunks)
        bounds, total = plan.bounds(3 * plan.num_chunks), torch.stack(inputs).sum(dim=0)
        results = run_on_tensors(reduction, inputs)
        for chunk, owner in enumerate(owners):
            span = slice(bounds[chunk], bounds[chunk + 1])
            assert torch.equal(results[owner][span], total[span]), (chunk, owner)

    def test_second_half_brings_what_owners_hold_to_all_ranks(self, name, world_size):
        plan = schedule(name, world_size)
        _, distribution, owners = split_at_reduction(plan)
        inputs = integers(world_size, 3 * plan.num_chunks)
        bounds = plan.bounds(3 * plan.num_chunks)
        spans = [slice(a, b) for a, b in pairwise(bounds)]
        expected = torch.cat([inputs[owner][span] for owner, span in zip(owners, spans, strict=True)])
        assert all(torch.equal(result, expected) for result in run_on_tensors(distribution, inputs))

    def test_halves_together_are_the_schedule(self, name, world_size):
        plan = schedule(name, world_size)
        reduction, distribution, owners = split_at_reduction(plan)
        assert [*reduction.steps, *distribution.steps] == list(plan.steps)
        assert not [t for step in distribution.steps for t in step if t.operation == "add"]
        assert len(owners) == plan.num_chunks
        for half in (reduction, distribution):
            assert (half.world_size, half.num_chunks) == (world_size, plan.num_chunks)


@pytest.mark.parametrize("world_size", WORLD_SIZES_SPLIT_AT_REDUCTION)
@pytest.mark.parametrize("name", AT_ROOT)
def test_trees_and_stars_end_at_rank_0(name, world_size):
    assert set(split_at_reduction(schedule(name, world_size)).owners) == {0}


def test_owners_are_those_of_the_tensors():
    sizes = (5, 1, 7, 0, 3)
    for world_size in WORLD_SIZES_SPLIT_AT_REDUCTION:
        plan = sharded_owners(world_size, sizes)
        assert split_at_reduction(plan).owners == tuple(assign_owners(sizes, world_size))
        assert split_at_reduction(plan).distribution.chunk_elements == sizes
    assert sorted(split_at_reduction(ring(5)).owners) == [0, 1, 2, 3, 4]
    assert split_at_reduction(schedule("host_serial", 3)).owners == (3,), "host memory"


def test_copies_between_adds_stay_in_the_first_half():
    steps = (
        (Transfer(0, 1, 0, 1, "add"),),
        (Transfer(1, 0, 0, 1, "copy"),),
        (Transfer(2, 1, 0, 1, "add"),),
        (Transfer(1, 0, 0, 1, "copy"), Transfer(1, 2, 0, 1, "copy")),
    )
    reduction, distribution, owners = split_at_reduction(Schedule("made up", 3, 1, steps))
    assert (len(reduction.steps), len(distribution.steps), owners) == (3, 1, (1,))


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_sums_complete_in_several_places_or_nowhere_are_refused_with_the_places(world_size):
    message = "recursive_doubling: after the last add the sum of chunk 0 is complete at rank 0, rank 1"
    with pytest.raises(ScheduleError, match=rf"{message}.*; .* it must be in one place"):
        split_at_reduction(schedule("recursive_doubling", world_size))
    cut_short = Schedule("made up", 3, 1, tuple(list(star(3).steps)[:1]))
    with pytest.raises(ScheduleError, match=r"made up: .* sum of chunk 0 is complete nowhere; "):
        split_at_reduction(cut_short)
