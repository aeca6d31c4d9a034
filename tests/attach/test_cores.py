"""How many threads fit on the cores that a rank may use."""

import pytest

from scaling.attach.arms import why_skipped
from scaling.attach.inside.settings import threads_that_fit
from tests.attach.made_marks import EVEN, made_runs


def _places(*masks):
    return [{"host": host, "affinity": list(cores)} for host, cores in masks]


@pytest.mark.parametrize(
    ("places", "threads"),
    [
        (_places(*[("a", range(4))] * 4), 1),
        (_places(*[("a", range(8))] * 2, *[("b", range(8))] * 2), 4),  # of one node's cores
        (_places(*[("a", range(first, first + 4)) for first in (0, 4, 8, 12)]), 4),  # bound by the launcher
        (_places(("a", range(8)), ("a", range(4, 12))), 6),
        (_places(*[("a", range(2))] * 4), 1),
    ],
)
def test_ranks_share_the_cores_of_their_host_that_they_have_in_common(places, threads):
    assert threads_that_fit(places[0], places) == threads


@pytest.mark.parametrize("is_bound", [True, False])
def test_ranks_with_cores_of_their_own_need_no_fewer_threads(is_bound):
    measured, common = made_runs(EVEN), {"host": "a", "device": "cpu", "cores": 4, "threads": 4}
    firsts = [4 * rank * is_bound for rank in range(4)]
    measured.facts["baseline"] = [{**common, "affinity": [*range(at, at + 4)]} for at in firsts]
    reason = "the ranks' threads have cores of their own" if is_bound else None
    assert why_skipped("threads", measured) == reason
