"""Schedules as files: what was written is read, proven, and nothing else passes."""

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.host_staging import host_serial
from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.ring import ring
from scaling.collectives.schedule_file import read_schedule, to_yaml
from scaling.conformance import check, fixed_cases
from scaling.errors import ScheduleError, StudyError

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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0>1 add 0:1, ", "", "after the last step rank 0 lacks the contribution of rank 0 in chunk 0"),
        ("0>1 add 0:1", "0>1 add 0:9", "chunk 8 is out of range"),
        ("0>1 add 0:1", "0>7 add 0:1", "node 7 is out of range"),
        ("0>1 add 0:1", "0>1 sum 0:1", "step 0 is '0>1 sum 0:1, 1>2"),
        ("0>1 add 0:1", "0>1 add 0:1,", "allowed is 'source>target add start:stop'"),
        ("- 0>1 add 0:1, 1>2 add 1:2, 2>0 add 2:3", "- [1]", "step 0 is [1]"),
        ("world_size: 3", "world_size: 3.0", "world_size is 3.0 (float)"),
        ("world_size: 3", "world_size: 3\nhosts: 1", "it has the keys name, world_size, num_chunks, steps"),
        ("name: ring", "name: 3", "'name' is a text"),
        ("steps:", "steps: {", "no valid YAML"),
    ],
)
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
