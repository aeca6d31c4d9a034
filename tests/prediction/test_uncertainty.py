"""How certain predictions are: by their inputs, on unseen machines, with more ranks; what narrows them."""

import math

import numpy as np
import pytest

from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import PredictedValue, total
from scaling.prediction.narrowing import next_measurement
from scaling.prediction.predict import Prediction, Predictor
from scaling.prediction.rows import row_of
from scaling.prediction.strategy import Machinery
from scaling.prediction.unseen import (
    CAPTURED_SD,
    DOUBLING_SD,
    LAUNCHED_SD,
    LINK_SD,
    MACHINE_SD,
    Unseen,
    largest_of,
    links_of,
    slowest_of,
    waiting_ratio,
)
from tests.prediction.conftest import cell, machine, measured, strategy
from topologies.schema import load


def test_independent_inputs_add_as_squares_and_one_that_both_share_counts_as_one():
    assert (PredictedValue.of(3.0, "a", 1.0) + PredictedValue.of(4.0, "b", 1.0)).sd == pytest.approx(5.0)
    assert total([PredictedValue.of(3.0, "a", 0.1)] * 2).sd == pytest.approx(0.6)
    one = PredictedValue.of(2.0, "a", 0.3)
    assert one.times(5).over(one).value == pytest.approx(5)
    assert one.times(5).over(one).sd == pytest.approx(0, abs=1e-12), "a ratio of the same input is certain"
    assert PredictedValue(1.0, {"rate": 3e200, "latency": 4e200}).sd == pytest.approx(5e200), "no overflow"


def test_interval_holds_95_percent_of_a_log_normal_input():
    draws = np.exp(np.random.default_rng(0).normal(0, 0.2, 20_000))
    low, high = PredictedValue.of(1.0, "a", math.sqrt(math.expm1(0.2**2))).interval
    assert ((low < draws) & (draws < high)).mean() == pytest.approx(0.95, abs=0.01)
    low, high = PredictedValue.of(1.0, "a", 2.0).interval
    assert 0 < low < 1 < high, "it never reaches zero"


STEP = PredictedValue.of(1e-3, "compute", 0.01)


def widened(unseen, world_size, *, captured=False, through_host=False, step=STEP):
    return unseen.widened(step, world_size, captured=captured, through_host=through_host)


@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_up_to_one_doubling_on_the_measured_machine_nothing_widens(world_size):
    assert widened(Unseen(False, 4), world_size) == (STEP, None)
    assert widened(Unseen(True, None), world_size) == (STEP, None)
    wide = PredictedValue.of(1e-3, "compute", 0.5)  # what is less certain already stays
    assert widened(Unseen(True, 1), world_size, step=wide) == (wide, None)


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


def test_exchange_over_a_link_that_was_not_measured_is_less_certain():
    nodes = load("hgx-h200-x16-infiniband")
    used = ((8, False), (8, True), (16, False))
    kinds = [links_of(nodes, size, host_only=host_only) for size, host_only in used]
    assert kinds == [{"nvlink"}, {"host memory"}, {"nvlink", "InfiniBand NDR"}]
    known = Unseen(links=kinds[0])
    assert known.of_exchange(STEP, kinds[0]) == STEP
    assert [known.of_exchange(STEP, other).relative_sd for other in kinds[1:]] == [pytest.approx(LINK_SD)] * 2
    assert Unseen().of_exchange(STEP, kinds[2]) == STEP
    assert links_of(load("pcie-8"), 2, host_only=False) == {"pcie"}, "and processes have none"
    assert not any(links_of(load(name), n, host_only=False) for name, n in (("pcie-8", 1), ("cpu-2", 2)))


@pytest.mark.parametrize(("started", "sd"), [(True, 0.35), (None, 0.35), (False, 0.0)])
def test_a_step_of_which_nothing_tells_what_bounds_it_is_taken_as_bound_by_the_processor(started, sd):
    arguments = {"started": started, "by_host": True, "hooks": False, "shards": False}
    assert (Unseen(other_host=True).of_strategy(**arguments), Unseen().of_strategy(**arguments)) == (sd, 0)


@pytest.mark.parametrize("number", [1, 2, 8, 64, 512])
def test_largest_of_some_values_is_the_mean_of_drawn_maxima(number):
    drawn = np.random.default_rng(1).standard_normal((4000, number)).max(axis=1).mean()
    assert largest_of(number) == pytest.approx(drawn, abs=0.06)


def test_wait_grows_with_ranks_by_the_spread_of_one_and_with_nodes_by_that_of_machines():
    of_steps = [waiting_ratio(0.05, on, [1]) for on in ([2], [8], [8] * 512)]
    assert (of_steps, of_steps[1]) == (sorted(of_steps), pytest.approx(0.05 * largest_of(8)))
    assert waiting_ratio(None, [8] * 512, [1]) == pytest.approx(MACHINE_SD * largest_of(512))
    assert (waiting_ratio(0.05, [8], [8]), waiting_ratio(0.05, [4], [8])) == (0, 0), "as were measured"


def test_over_a_block_of_steps_their_scatter_evens_out_and_what_nodes_differ_by_does_not():
    assert waiting_ratio(0.05, [8], [1], 16) == pytest.approx(waiting_ratio(0.05, [8], [1]) / 4)
    assert waiting_ratio(None, [8] * 4, [1], 16) == waiting_ratio(None, [8] * 4, [1])
    assert slowest_of(8, 16) - 1 == pytest.approx((slowest_of(8) - 1) / 4)


def predicted(step_sd):
    alone = measured(cell(1, "none", scaling="weak", local_batch=64, global_batch=64), 0.01)
    known = ComputeModel([type(alone)(**{**vars(alone), "step_sd": step_sd})])
    predictor = Predictor(Machinery(machine(nodes=4)), known, unseen=Unseen(largest_world_size=1))
    values = cell(16, "all_reduce", scaling="weak", local_batch=64, global_batch=1024)
    return predictor.predict(strategy(values)), known


def test_step_of_more_ranks_has_the_wait_and_names_its_largest_terms():
    (steady, _), (scattered, compute) = predicted(0.0), predicted(0.05)
    waited_s = scattered.iteration.value - steady.iteration.value
    assert waited_s == pytest.approx(scattered.waiting.value - steady.waiting.value)
    assert scattered.waiting.value == pytest.approx(0.01 * waiting_ratio(0.05, [4] * 4, [1]))
    assert scattered.waiting.sd > steady.waiting.sd > 0
    parts = row_of(scattered, compute)["largest_terms"]
    names = [part["name"] for part in parts]
    assert names == ["computation", "bytes of all_reduce", "the slowest of the ranks"]
    assert sum(part["seconds"] for part in parts) <= scattered.iteration.value


def prediction(values, of_compute, of_exchange):
    iteration = PredictedValue(10.0, {"compute of net, eager": of_compute, "flow of native": of_exchange})
    return Prediction(values, "box", iteration, None, PredictedValue(4.0), PredictedValue(4.0))


def test_uncertain_exchange_asks_for_half_of_the_workers():
    found = next_measurement([prediction(cell(8, "all_reduce", peer_access=False), 0.1, 3.0)])
    assert (found.changes["world_size"], found.changes["global_batch"]) == (4, 4 * found.cell["local_batch"])
    assert "all_reduce of net" in found.text
    assert "on 4 workers without peer access" in found.text
    assert found.before > 0.5
    assert found.after == pytest.approx(0.084, abs=0.002)  # 4 s of exchange at 10%, and 0.1 s


def test_uncertain_computation_asks_for_one_worker_without_exchange_and_certain_ones_for_nothing():
    found = next_measurement([prediction(cell(8, "ring"), 3.0, 0.1)])
    assert "measure none of net" in found.text
    assert "on 1 worker:" in found.text
    assert next_measurement([prediction(cell(1, "none"), 0.0, 0.0)]) is None


def test_one_measurement_that_serves_many_cells_wins():
    widest = prediction(cell(8, "all_reduce"), 0.1, 3.0)
    several = [prediction(cell(8, name, local_batch=64), 2.5, 0.1) for name in ("ring", "tree", "star")]
    found = next_measurement([widest, *several])
    assert found.num_cells == 3
    assert "and of 2 more" in found.text
