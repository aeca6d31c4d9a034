"""What a schedule must be made of: every corruption of a valid one is one ScheduleError that says where."""

import math
import re
from dataclasses import dataclass, fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling.collectives.listing import COLLECTIVES
from scaling.collectives.schedule import LazySteps, Schedule, Transfer, chunk_bounds
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError

NOT_WHOLE = st.one_of(
    st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]), st.just(Fraction(1, 2)),
    st.integers(0, 3).map(float), st.just(np.float64(1)), st.just(np.bool_(True)), st.just(1 + 0j),
)  # fmt: skip
NOT_A_SEQUENCE = st.one_of(st.none(), st.integers(), st.just(iter(())), st.just({1, 2}), st.floats())
NUMBERS = ("source", "target", "start", "stop")


@st.composite
def valid(draw):
    """A collective of the catalogue."""
    make = COLLECTIVES[draw(st.sampled_from(sorted(COLLECTIVES)))].schedule
    schedule = make(draw(st.integers(2, 8)))
    verify(schedule)
    return replace(schedule, steps=tuple(tuple(step) for step in schedule.steps))


@st.composite
def places(draw):
    """A valid schedule, and the step and number of one of its transfers."""
    schedule = draw(valid())
    index = draw(st.sampled_from([index for index, step in enumerate(schedule.steps) if step]))
    return schedule, index, draw(st.integers(0, len(schedule.steps[index]) - 1))


def with_transfer(schedule, index, number, transfer):
    steps = [list(step) for step in schedule.steps]
    steps[index][number] = transfer
    return replace(schedule, steps=tuple(map(tuple, steps)))


def refusal(schedule):
    """What is said of the schedule: one sentence in one line."""
    with pytest.raises(ScheduleError) as error:
        verify(schedule)
    text = str(error.value)
    assert text.startswith(f"{schedule.name}: ")
    assert "\n" not in text
    assert len(text) < 400
    return text


class TestTransfers:
    @given(places(), st.sampled_from(NUMBERS), NOT_WHOLE)
    def test_what_is_no_whole_number_is_refused_by_its_type(self, place, field, value):
        schedule, index, number = place
        transfer = schedule.steps[index][number]._replace(**{field: value})
        text = refusal(with_transfer(schedule, index, number, transfer))
        assert f"step {index}: transfer {number}, from " in text
        assert f"{field} is " in text
        assert text.endswith(f"({type(value).__name__}); allowed is a whole number")

    @given(places(), st.sampled_from(NUMBERS), st.data())
    def test_node_or_chunk_that_does_not_exist_is_refused_with_its_step(self, place, field, data):
        schedule, index, number = place
        most = schedule.num_nodes - 1 if field in ("source", "target") else schedule.num_chunks
        value = data.draw(st.integers(max_value=-1) | st.integers(min_value=most + 1))
        transfer = schedule.steps[index][number]._replace(**{field: value})
        text = refusal(with_transfer(schedule, index, number, transfer))
        assert f"step {index}: {transfer.operation} from " in text
        assert "is out of range" in text or "is empty" in text

    @given(places())
    def test_transfer_to_itself_is_refused(self, place):
        schedule, index, number = place
        transfer = schedule.steps[index][number]
        text = refusal(with_transfer(schedule, index, number, transfer._replace(target=transfer.source)))
        assert f"step {index}: " in text
        assert text.partition(": a node sends to itself")[1]

    @given(places(), st.integers(0, 3))
    def test_range_without_chunks_is_refused(self, place, fewer):
        schedule, index, number = place
        transfer = schedule.steps[index][number]
        text = refusal(with_transfer(schedule, index, number, transfer._replace(stop=transfer.start - fewer)))
        assert f"step {index}: " in text
        assert re.search(r"the range from chunk \d+ to before chunk -?\d+ is empty", text)

    @given(places(), st.one_of(st.text(), st.none(), st.booleans(), st.integers(), st.just(["add"])))
    def test_operation_is_add_or_copy(self, place, operation):
        assume(operation not in ("add", "copy"))
        schedule, index, number = place
        transfer = schedule.steps[index][number]._replace(operation=operation)
        with pytest.raises(ScheduleError, match=f"step {index}: ") as error:
            verify(with_transfer(schedule, index, number, transfer))
        assert str(error.value).endswith("add, copy")

    @given(places(), st.one_of(st.none(), st.integers(), st.just((0, 1, 0, 1, "add")), st.text(max_size=5)))
    def test_step_holds_transfers_alone(self, place, other):
        schedule, index, number = place
        text = refusal(with_transfer(schedule, index, number, other))
        assert f"step {index}: transfer {number}: is " in text
        assert text.endswith(f"({type(other).__name__}); allowed is a Transfer")

    @given(places(), NOT_A_SEQUENCE)
    def test_step_is_a_sequence(self, place, step):
        schedule, index, _ = place
        steps = (*schedule.steps[:index], step, *schedule.steps[index + 1 :])
        assert f"step {index} is " in refusal(replace(schedule, steps=steps))

    def test_steps_that_are_made_when_they_are_read_are_checked_too(self):
        steps = LazySteps(2, lambda index: (Transfer(index, 1 - index, 0, 1.0, "add"),))
        assert refusal(Schedule("lazy", 2, 1, steps)) == (
            "lazy: step 0: transfer 0, from 0 to 1: stop is 1.0 (float); allowed is a whole number"
        )

    @given(places())
    def test_whole_numbers_of_numpy_are_allowed(self, place):
        schedule, index, number = place
        transfer = schedule.steps[index][number]
        changed = transfer._replace(**{field: np.int64(getattr(transfer, field)) for field in NUMBERS})
        assert verify(with_transfer(schedule, index, number, changed)) == verify(schedule)


class TestShape:
    @given(valid(), st.sampled_from(("world_size", "num_chunks", "num_hosts")), NOT_WHOLE)
    def test_counts_are_whole_numbers(self, schedule, field, value):
        text = refusal(replace(schedule, **{field: value}))
        assert text.startswith(f"{schedule.name}: {field} is ")
        assert "; allowed are whole numbers from " in text

    @given(valid(), st.sampled_from(("world_size", "num_chunks")), st.integers(max_value=0))
    def test_there_is_a_rank_and_a_chunk(self, schedule, field, value):
        text = refusal(replace(schedule, **{field: value}))
        assert text.endswith(f"{field} is {value} (int); allowed are whole numbers from 1")

    @given(valid(), st.integers(max_value=-1))
    def test_hosts_are_not_negative(self, schedule, value):
        assert "num_hosts is " in refusal(replace(schedule, num_hosts=value))

    @given(valid(), NOT_A_SEQUENCE)
    def test_steps_are_a_sequence(self, schedule, steps):
        assert "steps is " in refusal(replace(schedule, steps=steps))

    @given(valid(), st.data(), NOT_WHOLE | st.integers(max_value=-1))
    def test_chunk_sizes_are_whole_numbers_and_not_negative(self, schedule, data, value):
        sizes = list(range(schedule.num_chunks))
        chunk = data.draw(st.integers(0, schedule.num_chunks - 1))
        sizes[chunk] = value
        text = refusal(replace(schedule, chunk_elements=tuple(sizes)))
        assert f"chunk {chunk} has " in text
        assert text.endswith(f"({type(value).__name__}) elements; allowed are whole numbers from 0")

    @given(valid(), st.lists(st.integers(0, 9)) | NOT_A_SEQUENCE.filter(lambda value: value is not None))
    def test_chunk_sizes_are_as_many_as_chunks(self, schedule, sizes):
        assume(not isinstance(sizes, list) or len(sizes) != schedule.num_chunks)
        assert "chunk" in refusal(replace(schedule, chunk_elements=sizes))

    @given(valid(), st.data())
    def test_chunks_of_no_elements_are_allowed(self, schedule, data):
        sizes = data.draw(st.lists(st.integers(0, 9), min_size=(n := schedule.num_chunks), max_size=n))
        verify(replace(schedule, chunk_elements=tuple(sizes)))


@dataclass(frozen=True)
class OtherBounds(Schedule):
    """Bounds that are changed in one place."""

    change: object = None

    def bounds(self, num_elements):
        return self.change(super().bounds(num_elements))


@given(valid(), st.data())
def test_bounds_that_overlap_or_leave_something_out_are_refused(schedule, data):
    changes = {
        "cover": st.sampled_from((lambda b: [b[0] + 1, *b[1:]], lambda b: [*b[:-1], b[-1] + 1])),
        "for": st.sampled_from((lambda b: b[:-1], lambda b: [*b, b[-1]])),
        "bound 0 is 0.0 (float)": st.just(lambda b: list(map(float, b))),
        "before that": st.just(lambda b: [*b[:-2], b[-1] + 1, b[-1]]),
        "(NoneType)": st.just(lambda b: None),
    }
    said = data.draw(st.sampled_from(sorted(changes)))
    assume(schedule.num_chunks > 1 or said != "before that")
    given_fields = {field.name: getattr(schedule, field.name) for field in fields(Schedule)}
    text = refusal(OtherBounds(**given_fields, change=data.draw(changes[said])))
    assert re.match(rf"{schedule.name}: bounds of \d+ elements: ", text)
    assert said in text or said == "cover"


@given(st.integers(0, 10**7), st.integers(1, 2000))
def test_chunks_of_any_buffer_follow_one_another_and_are_about_equal(num_elements, num_chunks):
    bounds = chunk_bounds(num_elements, num_chunks)
    assert (len(bounds), bounds[0], bounds[-1]) == (num_chunks + 1, 0, num_elements)
    lengths = np.diff(bounds)
    assert lengths.min() >= 0
    assert lengths.max() - lengths.min() <= max(1, math.ceil(0.02 * num_elements / num_chunks))
