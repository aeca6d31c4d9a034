"""Sums in host memory."""

from dataclasses import replace
from fractions import Fraction

import pytest

from scaling.collectives.host_staging import host_parallel, host_serial
from scaling.collectives.simulate import simulate
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from topologies.schema import load

BOTH = pytest.mark.parametrize("collective", [host_serial, host_parallel])


@BOTH
@pytest.mark.parametrize("per_host", [1, 3, 4, 64, None])
def test_counts_are_those_of_the_docstring(collective, per_host):
    for n in (1, 2, 3, 4, 7, 12, 64):
        g = per_host or n
        num_hosts = -(-n // g)
        verification = verify(collective(n, per_host))
        assert verification.num_steps == 2 + 2 * (num_hosts - 1)
        assert verification.messages_per_rank == [1] * n
        assert verification.sent_ratio_per_rank == [1] * n
        ranks_of = [min(g, n - host * g) for host in range(num_hosts)]
        assert verification.messages_per_host == [ranks + 2 * (num_hosts - 1) for ranks in ranks_of]
        ring = Fraction(2 * (num_hosts - 1), num_hosts)
        assert verification.sent_ratio_per_host == [ranks + ring for ranks in ranks_of]


@BOTH
def test_one_step_there_and_one_back_on_one_machine(collective, verified):
    for n in range(1, 65):
        assert verified(collective.__name__, n).num_steps == 2


def test_serial_adds_the_whole_buffer_rank_by_rank():
    gather = host_serial(4).steps[0]
    assert [(t.source, t.target, t.start, t.stop) for t in gather] == [(r, 4, 0, 1) for r in range(4)]


def test_parallel_adds_every_piece_in_rank_order():
    schedule = host_parallel(4)
    assert schedule.num_chunks == 4
    for piece in range(4):
        assert [t.source for t in schedule.steps[0] if t.start == piece] == [0, 1, 2, 3]


def test_hosts_hold_only_their_own_ranks_sums_before_the_exchange():
    gather = host_serial(5, ranks_per_host=2).steps[0]
    assert [t.target for t in gather] == [5, 5, 6, 6, 7]


@BOTH
def test_no_ranks_per_host_are_refused(collective):
    with pytest.raises(ScheduleError, match="0 ranks per host"):
        collective(4, 0)


@BOTH
@pytest.mark.parametrize("num_chunks", [1, 2, 5])
def test_steps_of_one_kind_take_as_long_as_when_each_is_priced(collective, num_chunks):
    schedule, machine = collective(4, num_chunks=num_chunks), load("hgx-h200-4")
    alike = simulate(schedule, machine, 1e6)
    each = simulate(replace(schedule, steps=tuple(schedule.steps)), machine, 1e6)
    assert alike.step_seconds == each.step_seconds
    assert len(alike.step_seconds) == num_chunks + 1
