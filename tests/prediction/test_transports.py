import pytest

from scaling.collectives.ring import ring
from scaling.collectives.schedule import Schedule, Transfer
from scaling.collectives.simulate import simulate
from scaling.prediction.measured import MeasuredTransfer
from scaling.prediction.transports import HostSends, for_host_sends, in_turns, measured_host_sends, moves
from tests.prediction.conftest import machine

SIZE = 100_000_000


def seconds(topology, operation, ranks):
    return simulate(moves(operation, ranks), topology.without_latency, SIZE, peer_access=False).seconds


def test_rates_that_a_probe_would_measure_are_found_again():
    slower = for_host_sends(machine(2), HostSends(one_way=0.7, both_ways=0.45))
    times = {operation: seconds(slower, operation, 2) for operation in ("send", "swap", "shift")}
    probed = [MeasuredTransfer(operation, 2, SIZE, True, own, 0.01) for operation, own in times.items()]
    found = measured_host_sends(machine(2), probed)
    assert found is not None
    assert (found.one_way, found.both_ways) == (pytest.approx(0.7), pytest.approx(0.45))


def test_one_way_and_both_ways_have_their_own_rates():
    slower = for_host_sends(machine(4), HostSends(one_way=0.7, both_ways=0.45))
    assert seconds(slower, "send", 4) == pytest.approx(SIZE / (0.7 * 25e9))
    assert seconds(slower, "shift", 4) == pytest.approx(SIZE / (0.45 * 25e9))


def test_without_a_probe_the_machine_stays_as_it_is():
    assert measured_host_sends(machine(2), []) is None
    assert for_host_sends(machine(2), None) == machine(2)


def test_partners_of_a_rank_take_turns_and_share_the_link_of_one_that_all_turn_to():
    step = tuple(Transfer(rank, o, o, o + 1, "add") for o in (0, 1) for rank in range(4) if rank != o)
    owners = Schedule("owners", 4, 2, (step,))
    turns = in_turns(owners)
    assert [sorted({t.source for t in step}) for step in turns.steps] == [[0, 1], [2], [3]]
    bare = machine(4).without_latency
    together, following = (simulate(each, bare, SIZE).seconds for each in (owners, turns))
    assert following > 1.3 * together


def test_a_schedule_of_one_partner_a_step_has_no_turns():
    assert in_turns(ring(4)).steps == ring(4).steps
