"""What the verifier counts, and that it catches broken schedules with a message that says where."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from scaling.collectives.host_staging import host_serial
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.collectives.verify import Verification, verify
from scaling.errors import ScheduleError
from tests.collectives.conftest import add, copy, made_of

SWAP = (add(0, 1), add(1, 0))
LACKS = "after the last step rank 0 lacks the contribution of rank"
ADD = "step 0: add from rank 0 to rank 1"
COPY_OF_HOST = "step 0: copy from host 0 to rank 1: chunk 0 is empty at the source"
HOLDS = "already holds the contribution of rank"
THERE_ARE = "; there are 2 ranks, 0 hosts and 1 chunks"


def refusal(schedule):
    with pytest.raises(ScheduleError) as error:
        verify(schedule)
    return str(error.value)


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
