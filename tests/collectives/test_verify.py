"""What the verifier counts, and that it catches broken schedules with a message that says where."""

from dataclasses import replace
from fractions import Fraction

import pytest

from scaling.collectives.host_staging import host_serial
from scaling.collectives.owners import star
from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError

SWAP = (Transfer(0, 1, 0, 1, "add"), Transfer(1, 0, 0, 1, "add"))


def made_of(*steps, world_size=2, num_chunks=1, num_hosts=0, chunk_elements=None):
    return Schedule("broken", world_size, num_chunks, steps, num_hosts, chunk_elements)


def assert_refused(message, *steps, **fields):
    with pytest.raises(ScheduleError) as error:
        verify(made_of(*steps, **fields))
    assert str(error.value) == f"broken: {message}"


class TestCounts:
    def test_swap_reads_the_values_from_before_the_step(self):
        verification = verify(made_of(SWAP))
        assert verification.num_steps == 1
        assert verification.messages_per_rank == [1, 1]
        assert verification.sent_ratio_per_rank == [1, 1]
        assert verification.num_messages == 2

    def test_transfers_between_the_same_two_nodes_in_a_step_are_one_message(self):
        halves = tuple(t._replace(start=c, stop=c + 1) for t in SWAP for c in range(2))
        verification = verify(made_of(halves, num_chunks=2))
        assert verification.messages_per_rank == [1, 1]
        assert verification.sent_ratio_per_rank == [1, 1]

    def test_hosts_are_counted_by_themselves(self):
        verification = verify(host_serial(3))
        assert verification.messages_per_rank == [1, 1, 1]
        assert verification.messages_per_host == [3]
        assert verification.sent_ratio_per_host == [3]
        assert verification.num_messages == 6

    def test_bytes_are_weighted_by_the_chunks_sizes(self):
        gather = [Transfer(r, c, c, c + 1, "add") for c in (0, 1) for r in range(3) if r != c]
        spread = [Transfer(c, r, c, c + 1, "copy") for c in (0, 1) for r in range(3) if r != c]
        verification = verify(
            made_of(tuple(gather), tuple(spread), world_size=3, num_chunks=2, chunk_elements=(3, 1))
        )
        assert verification.sent_ratio_per_rank == [Fraction(7, 4), Fraction(5, 4), 1]

    def test_many_ranks_contributions_fit_into_a_place(self):
        assert verify(star(200)).messages_per_rank == [199] + [1] * 199


class TestMalformed:
    def test_node_out_of_range(self):
        assert_refused(
            "step 1: copy from rank 0 to node 2: node 2 is out of range; "
            "there are 2 ranks, 0 hosts and 1 chunks",
            SWAP,
            (Transfer(0, 2, 0, 1, "copy"),),
        )

    def test_negative_node(self):
        with pytest.raises(
            ScheduleError, match="step 0: add from node -1 to rank 0: node -1 is out of range"
        ):
            verify(made_of((Transfer(-1, 0, 0, 1, "add"),)))

    @pytest.mark.parametrize(("start", "stop", "chunk"), [(0, 2, 1), (-1, 1, -1), (7, 8, 7)])
    def test_chunk_out_of_range(self, start, stop, chunk):
        assert_refused(
            f"step 0: add from rank 0 to rank 1: chunk {chunk} is out of range; "
            "there are 2 ranks, 0 hosts and 1 chunks",
            (Transfer(0, 1, start, stop, "add"),),
        )

    def test_empty_range(self):
        with pytest.raises(ScheduleError, match="range from chunk 1 to before chunk 1 is empty"):
            verify(made_of((Transfer(0, 1, 1, 1, "add"),), num_chunks=2))

    def test_transfer_to_itself(self):
        with pytest.raises(ScheduleError, match="step 0: add from rank 1 to rank 1: a node sends to itself"):
            verify(made_of((Transfer(1, 1, 0, 1, "add"),)))

    def test_chunk_sizes_of_another_number_of_chunks(self):
        with pytest.raises(ScheduleError, match="2 chunk sizes for 1 chunks"):
            verify(made_of(SWAP, chunk_elements=(1, 2)))


class TestConflicts:
    def test_two_copies_into_one_place(self):
        assert_refused(
            "step 0: copy from rank 1 to rank 2: chunk 0 gets two copies in this step",
            (Transfer(0, 2, 0, 1, "copy"), Transfer(1, 2, 0, 1, "copy")),
            world_size=3,
        )

    def test_overlapping_ranges_count_as_one_place(self):
        with pytest.raises(ScheduleError, match="copy from rank 1 to rank 2: chunk 1 gets two copies"):
            verify(
                made_of(
                    (Transfer(0, 2, 0, 2, "copy"), Transfer(1, 2, 1, 3, "copy")), world_size=3, num_chunks=3
                )
            )

    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_copy_and_add_into_one_place(self, order):
        both = (Transfer(0, 2, 0, 1, "copy"), Transfer(1, 2, 0, 1, "add"))
        assert_refused(
            "step 0: copy from rank 0 to rank 2: chunk 0 gets a copy and an add in this step",
            tuple(both[i] for i in order),
            world_size=3,
        )

    def test_copies_into_different_chunks_are_allowed(self):
        copies = (Transfer(0, 2, 0, 1, "copy"), Transfer(1, 2, 1, 2, "copy"))
        with pytest.raises(ScheduleError, match="after the last step"):
            verify(made_of(copies, world_size=3, num_chunks=2))


class TestContributions:
    def test_added_twice(self):
        assert_refused(
            "step 1: add from rank 0 to rank 1: chunk 0 already holds the contribution of ranks 0-1 "
            "at the target",
            SWAP,
            SWAP[:1],
        )

    def test_added_twice_within_one_step(self):
        assert_refused(
            "step 0: add from rank 0 to rank 1: chunk 0 already holds the contribution of rank 0 "
            "at the target",
            SWAP[:1] * 2,
        )

    def test_message_names_the_chunk_within_the_range(self):
        first = (Transfer(0, 1, 2, 3, "add"),)
        with pytest.raises(ScheduleError, match="step 1: add from rank 0 to rank 1: chunk 2 already holds"):
            verify(made_of(first, (Transfer(0, 1, 0, 4, "add"),), num_chunks=4))

    @pytest.mark.parametrize("operation", ["copy", "add"])
    def test_from_an_empty_host(self, operation):
        assert_refused(
            f"step 0: {operation} from host 0 to rank 1: chunk 0 is empty at the source",
            (Transfer(2, 1, 0, 1, operation),),
            num_hosts=1,
        )

    def test_from_a_host_that_is_filled_in_the_same_step(self):
        with pytest.raises(ScheduleError, match="copy from host 0 to rank 1: chunk 0 is empty"):
            verify(made_of((Transfer(0, 2, 0, 1, "add"), Transfer(2, 1, 0, 1, "copy")), num_hosts=1))

    def test_lost_at_the_end(self):
        assert_refused("after the last step rank 0 lacks the contribution of rank 1 in chunk 0", SWAP[:1])

    def test_overwritten_by_a_copy(self):
        copies = (Transfer(0, 1, 0, 1, "copy"),)
        with pytest.raises(ScheduleError, match="rank 0 lacks the contribution of rank 1 in chunk 0"):
            verify(made_of(copies))

    def test_many_lost_ones_are_listed_as_runs(self):
        with pytest.raises(ScheduleError, match="rank 0 lacks the contribution of ranks 1-9 in chunk 0"):
            verify(made_of(world_size=10))

    @pytest.mark.parametrize(("world_size", "end"), [(17, ""), (19, ", ...")])
    def test_the_first_eight_runs_of_lost_ones_are_listed(self, world_size, end):
        arriving = tuple(Transfer(rank, 0, 0, 1, "add") for rank in range(1, world_size, 2))
        listed = r"2, 4, 6, 8, 10, 12, 14, 16" + end
        with pytest.raises(ScheduleError, match=rf"lacks the contribution of ranks {listed} in chunk 0"):
            verify(made_of(arriving, world_size=world_size))


class TestBrokenRing:
    """Every single-transfer damage to a correct schedule is caught."""

    STEPS = tuple(ring(4).steps)
    PLACES = [(t, i) for t in range(len(STEPS)) for i in range(4)]

    def damaged(self, place, change):
        t, i = place
        step = list(self.STEPS[t])
        step[i : i + 1] = change(step[i])
        return replace(ring(4), steps=(*self.STEPS[:t], tuple(step), *self.STEPS[t + 1 :]))

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize(
        "change",
        [
            lambda transfer: [],
            lambda transfer: [transfer, transfer],
            lambda transfer: [
                transfer._replace(start=(transfer.start + 1) % 4, stop=(transfer.start + 1) % 4 + 1)
            ],
            lambda transfer: [transfer._replace(operation="add" if transfer.operation == "copy" else "copy")],
        ],
        ids=["dropped", "doubled", "wrong chunk", "wrong operation"],
    )
    def test_is_refused(self, place, change):
        with pytest.raises(ScheduleError, match=r"^ring: "):
            verify(self.damaged(place, change))

    @pytest.mark.parametrize("place", [place for place in PLACES if place[0] > 1])
    def test_wrong_target_is_refused(self, place):
        # In steps 0 and 1 another target is only another order: its sum passes that rank on its way.
        with pytest.raises(ScheduleError, match=r"^ring: "):
            verify(
                self.damaged(place, lambda transfer: [transfer._replace(target=(transfer.target + 1) % 4)])
            )

    def test_dropped_transfer_names_who_lacks_what(self):
        with pytest.raises(
            ScheduleError, match="after the last step rank 0 lacks the contribution of rank 0 in chunk 0"
        ):
            verify(self.damaged((0, 0), lambda transfer: []))


def test_unknown_operation_is_refused():
    schedule = Schedule("mine", 2, 1, ((Transfer(0, 1, 0, 1, "sum"),),))
    with pytest.raises(ScheduleError, match="mine: step 0: sum from rank 0 to rank 1: unknown operation"):
        verify(schedule)
