"""Tables that begin with several GPUs: what their step leaves without its exchange is the computation."""

import pytest

from scaling.prediction.compute import ComputeModel
from scaling.prediction.predict import Predictor
from scaling.prediction.sources import Sources, computed_without_exchange
from scaling.prediction.strategy import Machinery
from tests.prediction.conftest import cell, machine, measured, strategy

STEP_S = 0.02


def weak(world_size, aggregator="all_reduce", step="overlapped"):
    batches = {"scaling": "weak", "local_batch": 64, "global_batch": 64 * world_size}
    return cell(world_size, aggregator, step=step, **batches)


@pytest.mark.parametrize("step", ["eager", "overlapped"])
@pytest.mark.parametrize("compute_s", [0.001, STEP_S])
def test_computation_is_found_whether_the_exchange_is_hidden_or_not(step, compute_s):
    there, values = Machinery(machine(8)), weak(8, step=step)
    compute = ComputeModel([measured(weak(1, "none", step), compute_s)])
    iteration_s = Predictor(there, compute).predict(strategy(values)).iteration.value
    known = [(measured(values, iteration_s), strategy(values))]
    said = []
    (found,) = computed_without_exchange(known, ComputeModel([]), there, said.append)
    assert not said
    assert found.iteration_s == pytest.approx(compute_s, rel=0.03)
    assert found.exchanges_nothing
    assert found.relative_sd > 0.01


def test_cells_whose_computation_was_measured_are_left_alone():
    compute = ComputeModel([measured(weak(1, "none"), STEP_S)])
    known = [(measured(weak(8), STEP_S), strategy(weak(8)))]
    assert not computed_without_exchange(known, compute, Machinery(machine(8)), pytest.fail)


def test_an_exchange_that_takes_more_than_the_step_is_said_and_leaves_all_of_it_inside():
    there, values, said = Machinery(machine(8)), weak(8, step="eager"), []
    known = [(measured(values, STEP_S), strategy(values, 10**9))]
    (found,) = computed_without_exchange(known, ComputeModel([]), there, said.append)
    low, high = ComputeModel([found]).step(found.cell, 64).step_s.interval
    assert (found.iteration_s, low < found.iteration_s) == (pytest.approx(0.1 * STEP_S), True)
    assert high >= STEP_S
    assert "leaves less than 10% of the measured step, 20 ms" in said[0]


def test_8_gpus_alone_predict_64_and_say_where_the_computation_is_from():
    topology, said = machine(8, nodes=8), []
    sources = Sources([measured(weak(8), STEP_S)], [], topology)
    predictor, _ = sources.predictor(topology, lambda values, _: strategy(dict(values)), said.append)
    more = [predictor.predict(strategy(weak(size))).iteration for size in (8, 64)]
    assert more[0].value == pytest.approx(STEP_S, rel=0.01)
    assert more[1].value > STEP_S
    assert more[1].relative_sd > more[0].relative_sd
    assert said == ["no step without exchange: the computation is what 8 ranks took, less their exchange"]
