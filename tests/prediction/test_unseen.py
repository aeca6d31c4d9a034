"""Steps on unseen machines and on more ranks than were measured claim no more than machines differ by."""

import math

import pytest

from scaling.prediction.estimate import PredictedValue
from scaling.prediction.unseen import CAPTURED_SD, DOUBLING_SD, LAUNCHED_SD, LINK_SD, Unseen, links_of
from topologies.schema import load

STEP = PredictedValue.of(1e-3, "compute", 0.01)


def widened(unseen, world_size, *, captured=False, through_host=False, step=STEP):
    return unseen.widened(step, world_size, captured=captured, through_host=through_host)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_up_to_one_doubling_on_the_measured_machine_nothing_widens(world_size):
    assert widened(Unseen(False, 4), world_size) == (STEP, None)


def test_another_machine_widens_to_what_machines_differ_by_and_says_so():
    launched, why = widened(Unseen(True, 4), 4)
    assert (launched.value, launched.relative_sd) == (STEP.value, pytest.approx(LAUNCHED_SD))
    assert why == "another machine than was measured: at least 23% in the interval"
    assert widened(Unseen(True, 4), 4, captured=True)[0].relative_sd == pytest.approx(CAPTURED_SD)


def test_each_doubling_widens_and_more_through_host_memory():
    sds = [widened(Unseen(False, 1), 2**k)[0].relative_sd for k in range(6)]
    assert sds[0] == sds[1] == pytest.approx(STEP.relative_sd)
    assert sds[2:] == pytest.approx([DOUBLING_SD * math.sqrt(k) for k in range(1, 5)])
    assert widened(Unseen(False, 1), 4, through_host=True)[0].relative_sd > sds[2]
    both, why = widened(Unseen(True, 4), 8)
    assert both.relative_sd == pytest.approx(math.hypot(LAUNCHED_SD, DOUBLING_SD))
    assert "another machine than was measured, 8 ranks, 4 measured" in why


def test_what_is_less_certain_already_stays():
    wide = PredictedValue.of(1e-3, "compute", 0.5)
    assert widened(Unseen(True, 1), 8, step=wide) == (wide, None)
    assert widened(Unseen(True, None), 8) == (STEP, None)


def test_exchange_over_a_link_that_was_not_measured_is_less_certain():
    nodes = load("hgx-h200-x16-infiniband")
    used = ((8, False), (8, True), (16, False))
    kinds = [links_of(nodes, size, host_only=host_only) for size, host_only in used]
    assert kinds == [{"nvlink"}, {"host memory"}, {"nvlink", "InfiniBand NDR"}]
    known = Unseen(links=kinds[0])
    assert known.of_exchange(STEP, kinds[0]) == STEP
    assert [known.of_exchange(STEP, other).relative_sd for other in kinds[1:]] == [pytest.approx(LINK_SD)] * 2
    assert Unseen().of_exchange(STEP, kinds[2]) == STEP


def test_pcie_is_another_link_than_nvlink_and_processes_have_none():
    assert links_of(load("pcie-8"), 2, host_only=False) == {"pcie"}
    assert not links_of(load("pcie-8"), 1, host_only=False)
    assert not links_of(load("cpu-2"), 2, host_only=False)


@pytest.mark.parametrize(("started", "sd"), [(True, 0.35), (None, 0.35), (False, 0.0)])
def test_a_step_of_which_nothing_tells_what_bounds_it_is_taken_as_bound_by_the_processor(started, sd):
    arguments = {"started": started, "by_host": True, "hooks": False, "shards": False}
    assert (Unseen(other_host=True).of_strategy(**arguments), Unseen().of_strategy(**arguments)) == (sd, 0)
