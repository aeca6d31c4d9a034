"""What the verifier counts; every broken schedule is one ScheduleError that says where."""

import math
import re
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scaling.collectives.host_staging import host_serial
from scaling.collectives.listing import COLLECTIVES
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import LazySteps, Schedule, Transfer, chunk_bounds
from scaling.collectives.verify import Verification, verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import add, copy, made_of

NOT_WHOLE = st.one_of(
    st.floats(), st.booleans(), st.none(), st.text(max_size=3), st.just([1]), st.just(Fraction(1, 2)),
    st.integers(0, 3).map(float), st.just(np.float64(1)), st.just(np.bool_(True)), st.just(1 + 0j),
)  # fmt: skip
NOT_A_SEQUENCE = st.one_of(st.none(), st.integers(), st.just(iter(())), st.just({1, 2}), st.floats())
NUMBERS = ("source", "target", "start", "stop")


@st.composite
def valid(draw):
    make = COLLECTIVES[draw(st.sampled_from(sorted(COLLECTIVES)))].schedule
    schedule = make(draw(st.integers(2, 8)))
    verify(schedule)
    return replace(schedule, steps=tuple(tuple(step) for step in schedule.steps))


@st.composite
def places(draw):
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


SWAP = (add(0, 1), add(1, 0))
LACKS = "after the last step rank 0 lacks the contribution of rank"
ADD = "step 0: add from rank 0 to rank 1"
COPY_OF_HOST = "step 0: copy from host 0 to rank 1: chunk 0 is empty at the source"
HOLDS = "already holds the contribution of rank"
THERE_ARE = "; there are 2 ranks, 0 hosts and 1 chunks"


COUNTED = {
    "a swap reads the values from before the step": (made_of(SWAP), Verification(1, [1, 1], [1, 1], [], [])),
    "transfers between two nodes in a step are one message": (
        made_of((add(0, 1), add(0, 1, 1, 2), add(1, 0), add(1, 0, 1, 2)), num_chunks=2),
        Verification(1, [1, 1], [1, 1], [], []),
    ),
    "hosts are counted by themselves": (host_serial(3), Verification(2, [1] * 3, [1] * 3, [3], [3])),
    "bytes are weighted by the chunks' sizes": (
        made_of(
            tuple(add(rank, c, c, c + 1) for c in (0, 1) for rank in range(3) if rank != c),
            tuple(copy(c, rank, c, c + 1) for c in (0, 1) for rank in range(3) if rank != c),
            **{"world_size": 3, "num_chunks": 2, "chunk_elements": (3, 1)},
        ),
        Verification(2, [3, 3, 2], [Fraction(7, 4), Fraction(5, 4), 1], [], []),
    ),
    "many ranks' contributions fit into a place": (
        star(200), Verification(398, [199] + [1] * 199, [199] + [1] * 199, [], []),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "expected"), COUNTED.values(), ids=COUNTED)
def test_what_is_sent_is_counted(schedule, expected):
    assert verify(schedule) == expected
    assert expected.num_messages == sum((*expected.messages_per_rank, *expected.messages_per_host))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (made_of(SWAP, (copy(0, 2),)),
         f"step 1: copy from rank 0 to node 2: node 2 is out of range{THERE_ARE}"),
        (made_of((add(-1, 0),)), f"step 0: add from node -1 to rank 0: node -1 is out of range{THERE_ARE}"),
        *((made_of((add(0, 1, start, stop),)), f"{ADD}: chunk {chunk} is out of range{THERE_ARE}")
          for start, stop, chunk in ((0, 2, 1), (-1, 1, -1), (7, 8, 7))),
        (made_of((add(0, 1, 0, 0),)),
         f"{ADD}: the range from chunk 0 to before chunk 0 is empty{THERE_ARE}"),
        (made_of((add(1, 1),)), f"step 0: add from rank 1 to rank 1: a node sends to itself{THERE_ARE}"),
        (made_of(SWAP, chunk_elements=(1, 2)), "2 chunk sizes for 1 chunks"),
        (made_of((add(0, 1)._replace(operation="sum"),)),
         "step 0: sum from rank 0 to rank 1: unknown operation; allowed: add, copy"),
        (made_of((copy(0, 2), copy(1, 2)), world_size=3),
         "step 0: copy from rank 1 to rank 2: chunk 0 gets two copies in this step"),
        (made_of((copy(0, 2, 0, 2), copy(1, 2, 1, 3)), world_size=3, num_chunks=3),
         "step 0: copy from rank 1 to rank 2: chunk 1 gets two copies in this step"),
        *((made_of((copy(0, 2), add(1, 2))[::order], world_size=3),
           "step 0: copy from rank 0 to rank 2: chunk 0 gets a copy and an add in this step")
          for order in (1, -1)),
        (made_of((copy(0, 2), copy(1, 2, 1, 2)), world_size=3, num_chunks=2), f"{LACKS}s 1-2 in chunk 0"),
        (made_of(SWAP, SWAP[:1]), f"{ADD.replace('0', '1', 1)}: chunk 0 {HOLDS}s 0-1 at the target"),
        (made_of(SWAP[:1] * 2), f"{ADD}: chunk 0 {HOLDS} 0 at the target"),
        (made_of((add(0, 1, 2, 3),), (add(0, 1, 0, 4),), num_chunks=4),
         f"{ADD.replace('0', '1', 1)}: chunk 2 {HOLDS} 0 at the target"),
        (made_of((copy(2, 1),), num_hosts=1), COPY_OF_HOST),
        (made_of((add(2, 1),), num_hosts=1), COPY_OF_HOST.replace("copy", "add")),
        (made_of((add(0, 2), copy(2, 1)), num_hosts=1), COPY_OF_HOST),  # filled in the same step
        (made_of(SWAP[:1]), f"{LACKS} 1 in chunk 0"),
        (made_of((copy(0, 1),)), f"{LACKS} 1 in chunk 0"),
        (made_of(world_size=10), f"{LACKS}s 1-9 in chunk 0"),
        *((made_of(tuple(add(rank, 0) for rank in range(1, size, 2)), world_size=size),
           f"{LACKS}s 2, 4, 6, 8, 10, 12, 14, 16{more} in chunk 0")
          for size, more in ((17, ""), (19, ", ..."))),
    ],
)  # fmt: skip
def test_what_is_broken_is_refused_with_the_place(schedule, message):
    assert refusal(schedule) == f"made: {message}"


class TestBrokenRing:
    """Every single-transfer damage to a correct schedule is caught."""

    STEPS = tuple(ring(4).steps)
    PLACES = [(t, i) for t in range(len(STEPS)) for i in range(4)]
    CHANGES = {
        "dropped": lambda transfer: [],
        "doubled": lambda transfer: [transfer, transfer],
        "wrong chunk": lambda transfer: [
            transfer._replace(start=(transfer.start + 1) % 4, stop=(transfer.start + 1) % 4 + 1)
        ],
        "wrong operation": lambda transfer: [
            transfer._replace(operation="add" if transfer.operation == "copy" else "copy")
        ],
        "wrong target": lambda transfer: [transfer._replace(target=(transfer.target + 1) % 4)],
    }

    @pytest.mark.parametrize(
        ("change", "place"),
        # In steps 0 and 1 another target is only another order: its sum passes that rank on its way.
        [one for one in product(CHANGES, PLACES) if one[0] != "wrong target" or one[1][0] > 1],
    )
    def test_is_refused(self, change, place):
        t, i = place
        step = list(self.STEPS[t])
        step[i : i + 1] = self.CHANGES[change](step[i])
        said = refusal(replace(ring(4), steps=(*self.STEPS[:t], tuple(step), *self.STEPS[t + 1 :])))
        assert said.startswith("ring: ")
        if (change, place) == ("dropped", (0, 0)):
            assert said == f"ring: {LACKS} 0 in chunk 0"


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

    @given(places(), st.integers(0, 3))
    def test_transfer_to_itself_and_range_without_chunks_are_refused(self, place, fewer):
        schedule, index, number = place
        transfer = schedule.steps[index][number]
        for change, said in (
            ({"target": transfer.source}, ": a node sends to itself"),
            ({"stop": transfer.start - fewer}, r"the range from chunk \d+ to before chunk -?\d+ is empty"),
        ):
            text = refusal(with_transfer(schedule, index, number, transfer._replace(**change)))
            assert re.search(rf"step {index}: .*{said}", text)

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
    def test_there_is_a_rank_and_a_chunk_and_hosts_are_not_negative(self, schedule, field, value):
        text = refusal(replace(schedule, **{field: value}))
        assert text.endswith(f"{field} is {value} (int); allowed are whole numbers from 1")
        assert value == 0 or "num_hosts is " in refusal(replace(schedule, num_hosts=value))

    @given(places(), NOT_A_SEQUENCE)
    def test_steps_are_a_sequence_of_sequences(self, place, other):
        schedule, index, _ = place
        assert "steps is " in refusal(replace(schedule, steps=other))
        steps = (*schedule.steps[:index], other, *schedule.steps[index + 1 :])
        assert f"step {index} is " in refusal(replace(schedule, steps=steps))

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
