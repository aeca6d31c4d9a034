"""Every collective of the catalogue, at every world size up to 64."""

import pytest

from scaling.collectives.listing import COLLECTIVES, schedule
from scaling.errors import ScheduleError


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_rank_gets_each_contribution_exactly_once_from_1_to_64_ranks(name, verified):
    for world_size in range(1, 65):
        assert len(verified(name, world_size).messages_per_rank) == world_size


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_rank_alone_sends_to_no_other_rank(name):
    steps = schedule(name, 1).steps
    assert all({transfer.source, transfer.target} == {0, 1} for step in steps for transfer in step)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_description_is_one_short_line(name):
    description = COLLECTIVES[name].description
    assert description
    assert len(description) < 80
    assert "\n" not in description


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ScheduleError, match=r"unknown collective 'rign'; known: ring, ring_both_ways, xring"):
        schedule("rign", 4)


def test_world_size_below_one_is_refused():
    with pytest.raises(ScheduleError, match="ring: 0 ranks"):
        schedule("ring", 0)
