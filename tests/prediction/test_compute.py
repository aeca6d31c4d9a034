"""What a step computes, from cells of its kind or from those that exchange, less their exchange."""

from dataclasses import replace

import pytest

from scaling.errors import PredictionError
from scaling.prediction.compute import ComputeModel
from scaling.prediction.predict import Predictor
from scaling.prediction.sources import Sources, computed_without_exchange
from scaling.prediction.strategy import Machinery
from tests.prediction.conftest import cell, machine, measured, strategy


def alone(local_batch, seconds, **changes):
    return measured(cell(1, "none", local_batch=local_batch, **changes), seconds)


TWO = [alone(1000, 1e-3), alone(3000, 3e-3)]
BOTH = [alone(4096, 4e-3, step="overlapped"), measured(cell(1, step="overlapped"), 5e-3, exchange_s=1e-6)]
LAYERED = [alone(64, 2e-3, step="captured"), alone(64, 1.5e-3, step="captured", bucket_mb=16.0)]
PHASES = {"forward_s": 1.6e-3, "backward_s": 4.7e-3, "update_s": 0.1e-3}
EXCHANGING = replace(measured(cell(2, step="captured", local_batch=64), 9e-3), phases=PHASES)
CAPTURED = [alone(128, 9.4e-3, step="captured"), EXCHANGING]


@pytest.mark.parametrize(("known", "asked", "local_batch", "step_s"), [
    (TWO, cell(2), 2000, 2e-3),  # between two batches
    (BOTH, cell(1, step="overlapped"), 4096, 5e-3),  # DDP's curve, and that of the unwrapped step
    (BOTH, cell(1, "none", step="overlapped"), 4096, 4e-3),
    (LAYERED, cell(2, step="captured", bucket_mb=25.0), 64, 1.5e-3),  # layer by layer, and without layers
    (LAYERED, cell(2, step="captured"), 64, 2e-3),
    (CAPTURED, cell(4, step="captured"), 64, 6.4e-3),  # the profiled computation of one that exchanges
    ([*CAPTURED, alone(64, 6.0e-3, step="captured")], cell(4, step="captured"), 64, 6.0e-3),
])  # fmt: skip
def test_step_takes_what_cells_of_its_own_kind_took(known, asked, local_batch, step_s):
    assert ComputeModel(known).step(asked, local_batch).step_s.value == pytest.approx(step_s)


@pytest.mark.parametrize(("eager", "other", "asked", "local_batch", "step_s", "is_certain", "note"), [
    # Launches bound the eager step.
    ([(64, 18e-3), (128, 16e-3)], alone(128, 17e-3, step="overlapped"), cell(4, "none", step="overlapped"),
     64, 17e-3, True, ""),
    # The processor does.
    ([(128, 18e-3)], alone(128, 9e-3, step="captured"), cell(1), 32, 18e-3, False, "bound by the processor"),
    # A little below proportion is noise.
    ([(2048, 3.9e-3), (4096, 8e-3)], alone(4096, 8e-3, step="captured"), cell(2, step="captured"),
     2048, 4e-3, True, ""),
    ([(2048, 5e-3), (4096, 9e-3)], alone(4096, 8e-3, step="captured"), cell(2, step="captured"),
     2048, 4e-3, True, "eager"),
])  # fmt: skip
def test_step_follows_the_eager_step(eager, other, asked, local_batch, step_s, is_certain, note):
    computed = ComputeModel([*(alone(*one) for one in eager), other]).step(asked, local_batch)
    assert (computed.step_s.value, computed.step_s.relative_sd < 0.2) == (pytest.approx(step_s), is_certain)
    assert note in " ".join(computed.notes)


def test_beyond_the_measured_batches_it_says_so_and_is_less_certain():
    model = ComputeModel(TWO)
    computed = model.step(cell(2), 500)
    assert computed.step_s.value == pytest.approx(0.5e-3)
    assert any("extrapolated to local batch 500" in note for note in computed.notes)
    assert computed.step_s.relative_sd > 2 * model.step(cell(2), 2000).step_s.relative_sd
    assert model.step(cell(2), 2000).notes == ()


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
    model = ComputeModel([*eager, *[alone(batch, seconds, step="captured") for batch, seconds in times]])
    floor_s = (13e-3 * 16e-3 * 15e-3) ** (1 / 3)
    assert [model.step(cell(1), batch).step_s.value for batch in (16, 32, 64)] == pytest.approx([floor_s] * 3)
    assert model.step(cell(1), 128).step_s.value == pytest.approx(16.5e-3)
    # What the GPU bounds is as certain as elsewhere.
    assert model.step(cell(1), 128).step_s.relative_sd < 0.2 < model.step(cell(1), 32).step_s.relative_sd


def test_more_samples_take_no_less_time_and_the_spread_of_equal_cells_is_part_of_the_uncertainty():
    model = ComputeModel([alone(32, 16e-3), alone(64, 20e-3), alone(128, 14e-3)])
    assert model.step(cell(1, "none"), 64).step_s.value == pytest.approx((20e-3 + 14e-3) / 2)
    assert model.step(cell(1, "none"), 128).step_s.relative_sd > 0.2
    assert ComputeModel([alone(4096, 4e-3), alone(4096, 6e-3)]).step(cell(1), 4096).step_s.relative_sd > 0.2


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


@pytest.mark.parametrize(("folders", "sd"), [(("a", "a"), 0.2 * 1.7**0.5), (("a", "b"), 0.2)])
def test_one_folder_does_not_tell_how_far_off_its_machine_is(folders, sd):
    eager = [replace(alone(64, 3e-3), source=folder) for folder in folders]
    model = ComputeModel([*eager, alone(64, 1e-3, step="captured")])
    assert model.step(cell(1, "none"), 64).step_s.relative_sd == pytest.approx(sd, rel=0.01)


@pytest.mark.parametrize("local_batch", [16, 32, 256])
def test_step_that_follows_a_flat_eager_step_has_an_interval_down_to_proportion(local_batch):
    eager = [alone(32, 2.7e-3), alone(64, 3.0e-3), alone(128, 3.6e-3)]
    model = ComputeModel([*eager, alone(64, 2.6e-3, step="captured")])
    low, high = model.step(cell(4, step="captured"), local_batch).step_s.interval
    assert low <= 2.6e-3 * local_batch / 64 <= high * (1 + 1e-9)


def test_a_curve_of_one_memory_format_does_not_price_the_other():
    both = ComputeModel([*TWO, alone(2000, 9e-3, memory_format="channels_last")])
    for memory_format, step_s in (("channels_last", 9e-3), (None, 2e-3)):
        computed = both.step(cell(2, memory_format=memory_format), 2000)
        assert computed.step_s.value == pytest.approx(step_s)


def test_a_step_with_another_input_stands_for_one_that_was_not_measured_and_says_so():
    known = ComputeModel(TWO).step(cell(2), 2000)
    placements = ({"input_placement": value} for value in ("pinned", "loader"))
    for changes in ({"augmentation": "standard"}, *placements):
        computed = ComputeModel(TWO).step(cell(2, **changes), 2000)
        assert computed.step_s.value == known.step_s.value
        assert computed.step_s.relative_sd >= 0.1 > known.step_s.relative_sd
        assert any("another input" in note for note in computed.notes)
        assert computed.without_input == ("input_placement" in changes)
    both = ComputeModel([*TWO, alone(2000, 9e-3, augmentation="standard")])
    for said, step_s in (("standard", 9e-3), (None, 2e-3), ("none", 2e-3)):  # trainings say none
        assert both.step(cell(2, augmentation=said), 2000).step_s.value == pytest.approx(step_s)
    assert both.step(cell(2), 2000).step_s.value == pytest.approx(2e-3)


@pytest.mark.parametrize(("known", "asked"), [
    (measured(cell(2), 5e-3, exchange_s=1e-3), cell(2)),
    (measured(cell(2, "none", device="cpu"), 5e-3), cell(2, "none", device="cpu")),
    (alone(1000, 1e-3), cell(2, memory_format="channels_last")),
], ids=["it exchanges", "several processes", "another memory format"])  # fmt: skip
def test_what_tells_nothing_of_the_computation_is_not_used(known, asked):
    with pytest.raises(PredictionError, match=r"no measured cell.*--from"):
        ComputeModel([known]).step(asked, 1000)


def test_without_steps_layer_by_layer_one_hides_half_of_the_update_and_may_hide_none_or_all():
    plain = replace(alone(64, 2e-3, step="captured"), phases={"update_s": 0.6e-3})
    computed = ComputeModel([plain]).step(cell(2, step="captured", bucket_mb=16.0), 64)
    low, high = computed.step_s.interval
    assert computed.step_s.value == pytest.approx(1.7e-3)
    assert low <= 1.4e-3 < 2e-3 <= high
    assert any("half of its update of 0.6 ms" in note for note in computed.notes)
    assert ComputeModel([plain]).step(cell(2, step="captured"), 64).notes == ()


def test_a_noisy_point_makes_its_own_batch_uncertain_alone_and_one_between_two_is_less_certain_than_they():
    noisy = replace(alone(256, 1.0e-3), relative_sd=0.3)
    model = ComputeModel([noisy, alone(1024, 2.0e-3), alone(2048, 4.0e-3)])
    assert model.step(cell(2), 256).step_s.relative_sd > 0.25
    assert model.step(cell(2), 1024).step_s.relative_sd < 0.05
    model = ComputeModel([alone(batch, 1e-6 * batch) for batch in (1024, 2048)])
    at, between, beyond = (model.step(cell(1, "none"), b).step_s.relative_sd for b in (2048, 1536, 4096))
    assert at < between < beyond


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
