import pytest

from scaling.errors import PredictionError
from scaling.prediction.compute import ComputeModel
from tests.prediction.conftest import cell, measured


def alone(local_batch, seconds, **changes):
    return measured(cell(1, "none", local_batch=local_batch, **changes), seconds)


def test_between_two_local_batches_time_is_interpolated_and_nothing_is_said():
    model = ComputeModel([alone(1000, 1e-3), alone(3000, 3e-3)])
    computed = model.step(cell(2), 2000)
    assert computed.step_s.value == pytest.approx(2e-3)
    assert computed.notes == ()


def test_beyond_the_measured_batches_it_says_so_and_is_less_certain():
    model = ComputeModel([alone(1000, 1e-3), alone(3000, 3e-3)])
    computed = model.step(cell(2), 500)
    assert computed.step_s.value == pytest.approx(0.5e-3)
    assert any("extrapolated to local batch 500" in note for note in computed.notes)
    assert computed.step_s.relative_sd > 2 * model.step(cell(2), 2000).step_s.relative_sd


def test_one_batch_alone_is_taken_in_proportion_with_room_for_no_change():
    computed = ComputeModel([alone(4096, 4e-3)]).step(cell(2), 2048)
    assert computed.step_s.value == pytest.approx(2e-3)
    assert computed.step_s.interval[1] >= 3.8e-3


def test_a_step_measured_once_follows_the_eager_step():
    eager = [alone(2048, 5e-3), alone(4096, 9e-3)]
    model = ComputeModel([*eager, alone(4096, 8e-3, step="captured")])
    computed = model.step(cell(2, step="captured"), 2048)
    assert computed.step_s.value == pytest.approx(4e-3)
    assert any("eager" in note for note in computed.notes)


def test_cells_that_exchange_tell_nothing_of_the_computation():
    model = ComputeModel([measured(cell(2), 5e-3, exchange_s=1e-3)])
    with pytest.raises(PredictionError, match="--from"):
        model.step(cell(2), 2048)


def test_an_unwrapped_overlapped_step_is_another_curve_than_ddp():
    model = ComputeModel(
        [alone(4096, 4e-3, step="overlapped"), measured(cell(1, step="overlapped"), 5e-3, exchange_s=1e-6)]
    )
    assert model.step(cell(1, step="overlapped"), 4096).step_s.value == pytest.approx(5e-3)
    assert model.step(cell(1, "none", step="overlapped"), 4096).step_s.value == pytest.approx(4e-3)


def test_spread_of_equal_cells_is_part_of_the_uncertainty():
    model = ComputeModel([alone(4096, 4e-3), alone(4096, 6e-3)])
    assert model.step(cell(1), 4096).step_s.relative_sd > 0.2


def test_several_processes_on_a_cpu_are_no_single_one():
    model = ComputeModel([measured(cell(2, "none", device="cpu"), 5e-3)])
    assert not model.has(cell(2, "none", device="cpu"))
