"""Steps wait for the slowest of their ranks, by the spread of one."""

import numpy as np
import pytest

from scaling.prediction.compute import ComputeModel
from scaling.prediction.predict import Predictor
from scaling.prediction.rows import row_of
from scaling.prediction.strategy import Machinery
from scaling.prediction.unseen import MACHINE_SD, Unseen, largest_of, slowest_of, waiting_ratio
from tests.prediction.conftest import cell, machine, measured, strategy


@pytest.mark.parametrize("number", [1, 2, 8, 64, 512])
def test_largest_of_some_values_is_the_mean_of_drawn_maxima(number):
    drawn = np.random.default_rng(1).standard_normal((4000, number)).max(axis=1).mean()
    assert largest_of(number) == pytest.approx(drawn, abs=0.06)


def test_as_many_ranks_as_were_measured_wait_no_longer():
    assert (waiting_ratio(0.05, [8], [8]), waiting_ratio(0.05, [4], [8])) == (0, 0)


def test_wait_grows_with_ranks_by_the_spread_of_one_and_with_nodes_by_that_of_machines():
    of_steps = [waiting_ratio(0.05, on, [1]) for on in ([2], [8], [8] * 512)]
    assert (of_steps, of_steps[1]) == (sorted(of_steps), pytest.approx(0.05 * largest_of(8)))
    assert waiting_ratio(None, [8] * 512, [1]) == pytest.approx(MACHINE_SD * largest_of(512))


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
