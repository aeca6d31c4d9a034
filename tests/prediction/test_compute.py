from dataclasses import replace

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


def test_one_batch_alone_is_taken_as_the_middle_between_proportion_and_no_change():
    known = alone(4096, 4e-3)
    computed = ComputeModel([replace(known, phases={**known.phases, "update_s": 0.8e-3})]).step(cell(2), 1024)
    in_proportion = 0.8e-3 + 3.2e-3 / 4  # the update takes as long at any batch
    assert computed.step_s.value == pytest.approx((4e-3 * in_proportion) ** 0.5)
    assert any("middle" in note and "4 ms" in note for note in computed.notes)


@pytest.mark.parametrize("local_batch", [2048, 1024, 512, 64, 8192, 65536])
def test_interval_from_one_batch_holds_a_step_that_latency_bounds(local_batch):
    known = replace(alone(4096, 4e-3), phases={})
    low, high = ComputeModel([known]).step(cell(2), local_batch).step_s.interval
    assert low <= 4e-3 <= high
    assert low <= 4e-3 * local_batch / 4096 <= high


def test_captured_step_does_not_follow_an_eager_step_that_launches_bound():
    eager = [alone(64, 18e-3), alone(128, 16e-3)]
    captured = replace(alone(128, 15e-3, step="captured"), phases={})
    computed = ComputeModel([*eager, captured]).step(cell(4, step="captured"), 32)
    low, high = computed.step_s.interval
    assert computed.step_s.value == pytest.approx(15e-3 / 2)
    assert low < 5e-3 < high  # as measured
    assert high >= 15e-3
    assert any("tells nothing" in note for note in computed.notes)


def test_overlapped_step_follows_an_eager_step_that_launches_bound():
    eager = [alone(64, 18e-3), alone(128, 16e-3)]
    model = ComputeModel([*eager, alone(128, 17e-3, step="overlapped")])
    computed = model.step(cell(4, "none", step="overlapped"), 64)
    assert computed.step_s.value == pytest.approx(17e-3)
    assert computed.step_s.relative_sd < 0.2


def test_step_bound_by_the_processor_does_not_shrink_with_the_batch():
    model = ComputeModel([alone(128, 18e-3), alone(128, 9e-3, step="captured")])
    computed = model.step(cell(1), 32)
    assert computed.step_s.value == pytest.approx(18e-3)
    assert computed.step_s.relative_sd >= 0.2
    assert any("bound by the processor" in note for note in computed.notes)


def test_of_several_ranks_that_the_processor_bounds_each_step_takes_the_slowest():
    model = ComputeModel([alone(128, 18e-3), alone(128, 9e-3, step="captured")])
    one, two, four = (model.step(cell(n), 128).step_s.value for n in (1, 2, 4))
    assert one == pytest.approx(18e-3)
    assert 1.05 * one < two < four < 1.15 * one
    measured_on_two = measured(cell(2, "none", local_batch=128), 18e-3)
    model = ComputeModel([measured_on_two, alone(128, 9e-3, step="captured")])
    assert model.step(cell(2), 128).step_s.value == pytest.approx(18e-3)


def test_whatever_the_processor_bounds_tells_one_time_for_all_batches():
    eager = [alone(16, 13e-3), alone(32, 16e-3), alone(64, 15e-3), alone(128, 16.5e-3)]
    times = ((16, 4e-3), (64, 8e-3), (128, 15e-3))
    captured = [alone(batch, seconds, step="captured") for batch, seconds in times]
    model = ComputeModel([*eager, *captured])
    floor_s = (13e-3 * 16e-3 * 15e-3) ** (1 / 3)
    assert [model.step(cell(1), batch).step_s.value for batch in (16, 32, 64)] == pytest.approx([floor_s] * 3)
    assert model.step(cell(1), 128).step_s.value == pytest.approx(16.5e-3)
    # What the GPU bounds is as certain as elsewhere.
    assert model.step(cell(1), 128).step_s.relative_sd < 0.2 < model.step(cell(1), 32).step_s.relative_sd


def test_more_samples_take_no_less_time():
    model = ComputeModel([alone(32, 16e-3), alone(64, 20e-3), alone(128, 14e-3)])
    assert model.step(cell(1, "none"), 64).step_s.value == pytest.approx((20e-3 + 14e-3) / 2)
    assert model.step(cell(1, "none"), 128).step_s.relative_sd > 0.2


def test_ddps_step_follows_the_one_without_it_over_other_batches():
    plain = [alone(batch, batch * 1e-6 + 1e-3, step="overlapped") for batch in (512, 1024, 2048)]
    ddp = measured(cell(1, step="overlapped", local_batch=2048), 3.5e-3, exchange_s=1e-6)
    computed = ComputeModel([*plain, ddp]).step(cell(4, step="overlapped"), 512)
    assert computed.step_s.value == pytest.approx(512e-6 + 1e-3 + 0.452e-3)
    assert not computed.without_ddp
    assert ComputeModel(plain).step(cell(4, step="overlapped"), 512).without_ddp


def test_gpus_differ_by_one_deviation_however_many_ranks_there_are():
    model = ComputeModel([replace(alone(4096, 4e-3), relative_sd=0.006)])
    one, several = (model.step(cell(n, "none"), 4096).step_s for n in (1, 4))
    assert several == one
    assert one.relative_sd == pytest.approx(0.01)  # what launches scattered by is a part of it


def test_of_a_curve_that_is_followed_its_change_alone_adds_to_the_interval():
    plain = [replace(alone(batch, 4e-3, step="overlapped"), relative_sd=0.2) for batch in (1024, 2048)]
    ddp = measured(cell(1, step="overlapped", local_batch=2048), 4e-3, exchange_s=1e-6)
    followed = ComputeModel([*plain, ddp]).step(cell(4, step="overlapped"), 1024).step_s
    assert followed.value == pytest.approx(4e-3)
    assert followed.relative_sd < 0.02


def test_a_batch_between_two_is_less_certain_than_a_measured_one_and_more_than_one_beyond():
    model = ComputeModel([alone(batch, 1e-6 * batch) for batch in (1024, 2048)])
    at, between, beyond = (model.step(cell(1, "none"), b).step_s.relative_sd for b in (2048, 1536, 4096))
    assert at < between < beyond


@pytest.mark.parametrize(("folders", "sd"), [(("a", "a"), 0.2 * 1.7**0.5), (("a", "b"), 0.2)])
def test_one_folder_does_not_tell_how_far_off_its_machine_is(folders, sd):
    eager = [replace(alone(64, 3e-3), source=folder) for folder in folders]
    model = ComputeModel([*eager, alone(64, 1e-3, step="captured")])
    assert model.step(cell(1, "none"), 64).step_s.relative_sd == pytest.approx(sd, rel=0.01)


def test_eager_step_a_little_below_proportion_is_noise_and_is_followed():
    eager = [alone(2048, 3.9e-3), alone(4096, 8e-3)]
    model = ComputeModel([*eager, alone(4096, 8e-3, step="captured")])
    computed = model.step(cell(2, step="captured"), 2048)
    assert computed.step_s.value == pytest.approx(4e-3)
    assert computed.step_s.relative_sd < 0.2


@pytest.mark.parametrize("local_batch", [16, 32, 256])
def test_step_that_follows_a_flat_eager_step_has_an_interval_down_to_proportion(local_batch):
    eager = [alone(32, 2.7e-3), alone(64, 3.0e-3), alone(128, 3.6e-3)]
    model = ComputeModel([*eager, alone(64, 2.6e-3, step="captured")])
    low, high = model.step(cell(4, step="captured"), local_batch).step_s.interval
    assert low <= 2.6e-3 * local_batch / 64 <= high * (1 + 1e-9)


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


def test_a_curve_of_one_memory_format_does_not_price_the_other():
    contiguous = [alone(1000, 1e-3), alone(3000, 3e-3)]
    last = cell(2, memory_format="channels_last")
    with pytest.raises(PredictionError, match="no measured cell"):
        ComputeModel(contiguous).step(last, 1000)
    both = ComputeModel([*contiguous, alone(2000, 9e-3, memory_format="channels_last")])
    assert both.step(last, 2000).step_s.value == pytest.approx(9e-3)
    assert both.step(cell(2, memory_format=None), 2000).step_s.value == pytest.approx(2e-3)


def test_a_step_with_another_input_stands_for_one_that_was_not_measured_and_says_so():
    plain = [alone(1000, 1e-3), alone(3000, 3e-3)]
    augmented = cell(2, augmentation="standard")
    known = ComputeModel(plain).step(cell(2), 2000)
    for changes in (
        {"augmentation": "standard"},
        {"input_placement": "pinned"},
        {"input_placement": "loader"},
    ):
        computed = ComputeModel(plain).step(cell(2, **changes), 2000)
        assert computed.step_s.value == known.step_s.value
        assert computed.step_s.relative_sd >= 0.1 > known.step_s.relative_sd
        assert any("another input" in note for note in computed.notes)
        assert computed.without_input == ("input_placement" in changes)
    other = alone(2000, 9e-3, augmentation="standard")
    both = ComputeModel([*plain, other])
    assert both.step(augmented, 2000).step_s.value == pytest.approx(9e-3)
    for said in ({}, {"augmentation": None}, {"augmentation": "none"}):  # trainings say none
        assert both.step(cell(2, **said), 2000).step_s.value == pytest.approx(2e-3)


def test_spread_of_equal_cells_is_part_of_the_uncertainty():
    model = ComputeModel([alone(4096, 4e-3), alone(4096, 6e-3)])
    assert model.step(cell(1), 4096).step_s.relative_sd > 0.2


def test_several_processes_on_a_cpu_are_no_single_one():
    model = ComputeModel([measured(cell(2, "none", device="cpu"), 5e-3)])
    with pytest.raises(PredictionError, match="no measured cell"):
        model.step(cell(2, "none", device="cpu"), 1000)


class TestLayerByLayer:
    def test_its_own_cells_count_and_those_without_layers_do_not(self):
        layered = alone(64, 1.5e-3, step="captured", bucket_mb=16.0)
        model = ComputeModel([alone(64, 2e-3, step="captured"), layered])
        assert model.step(cell(2, step="captured", bucket_mb=25.0), 64).step_s.value == pytest.approx(1.5e-3)
        assert model.step(cell(2, step="captured"), 64).step_s.value == pytest.approx(2e-3)

    def test_without_them_it_hides_half_of_the_update_and_may_hide_none_or_all(self):
        plain = replace(alone(64, 2e-3, step="captured"), phases={"update_s": 0.6e-3})
        computed = ComputeModel([plain]).step(cell(2, step="captured", bucket_mb=16.0), 64)
        low, high = computed.step_s.interval
        assert computed.step_s.value == pytest.approx(1.7e-3)
        assert low <= 1.4e-3 < 2e-3 <= high
        assert any("half of its update of 0.6 ms" in note for note in computed.notes)
        assert ComputeModel([plain]).step(cell(2, step="captured"), 64).notes == ()


def test_captured_step_that_exchanges_tells_its_profiled_computation():
    phases = {"forward_s": 1.6e-3, "backward_s": 4.7e-3, "update_s": 0.1e-3}
    exchanging = replace(measured(cell(2, step="captured", local_batch=64), 9e-3), phases=phases)
    model = ComputeModel([alone(128, 9.4e-3, step="captured"), exchanging])
    assert model.step(cell(4, step="captured"), 64).step_s.value == pytest.approx(6.4e-3)
    own = alone(64, 6.0e-3, step="captured")
    again = ComputeModel([alone(128, 9.4e-3, step="captured"), own, exchanging])
    assert again.step(cell(4, step="captured"), 64).step_s.value == pytest.approx(6.0e-3)


def test_a_noisy_point_makes_its_own_batch_uncertain_alone():
    noisy = replace(alone(256, 1.0e-3), relative_sd=0.3)
    model = ComputeModel([noisy, alone(1024, 2.0e-3), alone(2048, 4.0e-3)])
    assert model.step(cell(2), 256).step_s.relative_sd > 0.25
    assert model.step(cell(2), 1024).step_s.relative_sd < 0.05


def test_what_bounds_a_step_is_known_where_the_captured_one_was_measured():
    eager, captured = alone(64, 3e-3), alone(64, 1e-3, step="captured")
    assert ComputeModel([eager]).step(cell(2), 64).by_processor is None
    both = ComputeModel([eager, captured])
    assert both.step(cell(2), 64).by_processor is True
    assert both.step(cell(2, step="captured"), 64).by_processor is False
    slower = ComputeModel([eager, replace(captured, iteration_s=2.9e-3)])
    assert slower.step(cell(2), 64).by_processor is False


def test_ranks_that_meet_after_a_block_wait_less_for_the_slowest():
    model = ComputeModel([alone(64, 3e-3), alone(64, 1e-3, step="captured")])
    every_step, block = (model.step(cell(4, sync_every=n), 64).step_s.value / 3e-3 - 1 for n in (1, 16))
    assert block == pytest.approx(every_step / 4)
