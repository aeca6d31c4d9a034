"""What a step takes on a machine, and what a table of such predictions says of itself."""

from dataclasses import replace

import pytest

from scaling.bucket import BucketLayout
from scaling.prediction.calibration import Calibration
from scaling.prediction.compute import ComputeModel
from scaling.prediction.estimate import PredictedValue
from scaling.prediction.measured import measured_cells
from scaling.prediction.overlap_fit import ddp_buckets, exposed
from scaling.prediction.predict import Predictor
from scaling.prediction.rows import NOTHING_MEASURED, reason_row, row_of, text_table
from scaling.prediction.sources import Sources
from scaling.prediction.strategy import Machinery, Strategy, strategy_key
from scaling.prediction.unseen import HOOKED_SD, Unseen
from scaling.prediction.what_if import what_if
from tests.prediction.conftest import NUM_ELEMENTS, cell, machine, measured, strategy


def model():
    return ComputeModel([measured(cell(1, "none", local_batch=b), 1e-6 * b) for b in (64, 1024, 2048, 4096)])


def told(sources, topology, values):
    return sources.predictor(topology, lambda own, _: strategy(own))[0].predict(strategy(values))


def predicted(values, *changes, topology=None):
    return Predictor(Machinery(what_if(topology or machine(), changes)), model()).predict(strategy(values))


@pytest.mark.parametrize(("values", "change"), [
    (cell(4), "nvlink-type.bandwidth=0.5x"),
    (cell(4), "nvlink-type.latency=1e-3"),
    (cell(4), "peer_access=off"),
    (cell(4, "all_reduce"), "nvlink-type.bandwidth=0.5x"),
    (cell(4, peer_access=False), "pcie-type.bandwidth=0.5x"),
    (cell(4, "all_reduce", peer_access=False), "pcie-type.bandwidth=0.5x"),
    # These links are not used.
    (cell(4), "pcie-type.bandwidth=0.01x"), (cell(4, peer_access=False), "nvlink-type.bandwidth=0.01x"),
    (cell(1), "nvlink-type.bandwidth=0.01x"), (cell(4, "none"), "nvlink-type.bandwidth=0.01x"),
])  # fmt: skip
def test_changing_a_used_link_changes_the_prediction_and_another_nothing(values, change):
    before, after = predicted(values), predicted(values, change)
    assert change in after.topology
    if "0.01x" in change:
        assert after.iteration.value == before.iteration.value
    else:
        assert after.exchange.value > 1.2 * before.exchange.value
        assert after.iteration.value > before.iteration.value


def test_the_network_counts_between_nodes_alone():
    nodes = machine(4, nodes=4)
    for values, changes in ((cell(16, "all_reduce"), True), (cell(4, "all_reduce"), False)):
        before = predicted(values, topology=nodes).exchange.value
        after = predicted(values, "network.bandwidth=0.1x", topology=nodes).exchange.value
        assert (after > 2 * before) == changes


def test_one_rank_takes_what_it_computes_and_without_computation_the_exchange_is_told_alone():
    prediction = predicted(cell(1))
    assert (prediction.iteration.value, prediction.exchange.value) == (pytest.approx(4096e-6), 0)
    alone = Predictor(Machinery(machine())).predict(strategy(cell(4)))
    assert alone.iteration is None
    assert alone.exchange.value > 0


def test_an_exchange_hides_in_the_wait_for_a_loader():
    fed = {"input_placement": "loader", "loader_workers": 2, "local_batch": 1024}
    alone = measured(cell(1, "none", **fed), 10e-3)

    def steps(input_s):
        known = replace(alone, phases={**alone.phases, "input_s": input_s})
        machinery = Machinery(what_if(machine(), []))
        return Predictor(machinery, ComputeModel([known])).predict(strategy(cell(4, **fed)))

    exchange_s = predicted(cell(4)).exchange.value
    hidden, partly = steps(exchange_s * 2), steps(exchange_s / 2)
    afterwards_s = hidden.iteration.value - 10e-3  # the division
    assert afterwards_s < 0.4 * exchange_s
    assert any("loader" in note for note in hidden.notes)
    assert partly.iteration.value == pytest.approx(10e-3 + exchange_s / 2)


def test_every_row_says_that_it_is_simulated():
    row = row_of(predicted(cell(4)), model(), "abc")
    assert row["simulated"] is True
    assert row["iteration_s_low"] < row["iteration_s"] < row["iteration_s_high"]
    assert row["busiest_link"].startswith("node0/gpu")
    assert reason_row(cell(4), "example", "no data")["simulated"] is True
    assert "no data" in text_table([row, reason_row(cell(4), "example", "no data")])


def test_the_table_tells_memory_formats_precisions_and_augmentation_apart():
    tf32, last = {"tf32": True}, {"memory_format": "channels_last"}
    changes = [{}, tf32, last, {"peer_access": False, **last, **tf32}, {"augmentation": "standard"}]
    cells = [cell(4, **{"memory_format": None, **own}) for own in changes]
    names = ["ring", "ring, tf32", "ring, channels_last", "ring, host-only, channels_last, tf32"]
    names.append("ring, augmented")
    for rows in (
        [row_of(Predictor(Machinery(machine())).predict(strategy(values)), None) for values in cells],
        [reason_row(values, "example", "no data") for values in cells],
    ):
        lines = text_table(rows).splitlines()
        assert [line.split("  ")[0] for line in lines[2:7]] == names


def test_speedup_is_over_one_rank_without_exchange():
    row = row_of(predicted(cell(4)), model())
    assert row["speedup"] == pytest.approx(4096e-6 / row["iteration_s"])
    assert row_of(predicted(cell(1)), model())["speedup"] == pytest.approx(1)
    weak_row = row_of(predicted(cell(4, scaling="weak", local_batch=1024, global_batch=4096)), model())
    assert weak_row["speedup"] == pytest.approx(4 * 1024e-6 / weak_row["iteration_s"])


def test_ddp_closes_a_bucket_when_it_is_full_beginning_with_the_last_tensors():
    mib = 2**18  # float32 elements
    layout = BucketLayout.of([("a", (30 * mib,)), ("b", (3 * mib,)), ("c", (mib // 2,)), ("d", (mib // 2,))])
    assert [bucket.names for bucket in ddp_buckets(layout, (1, 25))] == [("d", "c"), ("b", "a")]
    assert [bucket.names for bucket in ddp_buckets(layout, (25, 25))] == [("d", "c", "b", "a")]


def test_exchange_hides_under_the_backward_pass_but_for_its_end():
    one, two = PredictedValue.of(2.0, "a", 0.1), PredictedValue.of(3.0, "b", 0.1)
    assert exposed([one, two], [50, 50], 10.0).value == pytest.approx(3.0)
    assert exposed([one, two], [90, 10], 10.0).value == pytest.approx(4.0)
    assert exposed([one, two], [90, 10], 0.0).value == pytest.approx(5.0)


def test_overlap_hides_and_eager_does_not():
    eager = strategy(cell(4))
    values = cell(4, step="overlapped")
    half = eager.num_elements // 2
    stages = strategy(values, half).buckets[0]
    own = Strategy(values, (stages, stages), (half, half), (4, 4), (), 2 * half)
    sizes = [(b, s) for b in (1024, 4096) for s in ("eager", "overlapped")]
    cells = [measured(cell(1, "none", local_batch=b, step=s), 1e-6 * b) for b, s in sizes]
    predictor = Predictor(Machinery(machine()), ComputeModel(cells))
    hidden = predictor.predict(own)
    assert hidden.exposed_exchange.value < 0.8 * hidden.exchange.value
    shown = predictor.predict(eager)
    assert shown.exposed_exchange.value == pytest.approx(shown.exchange.value)


def test_computation_of_another_gpu_is_less_certain_and_says_so():
    there = machine()
    other = {"name": "Another", "bandwidth_bytes_per_s": 3000e9}
    gpus = [replace(gpu, **other) for gpu in there.machine.of_kind("gpu")]
    others = tuple(device for device in there.machine.devices if device.kind != "gpu")
    here = replace(there, machine=replace(there.machine, devices=(*others, *gpus)))
    sources = Sources([measured(cell(1, "none"), 4e-3)], (), there)
    one, other = (told(sources, topology, cell(4, "none", local_batch=4096)) for topology in (there, here))
    assert other.iteration.value == one.iteration.value
    assert other.iteration.interval[1] > 1.9 * one.iteration.value, "twice the memory's rate"
    assert any("another GPU" in note for note in other.notes)
    assert not any("another GPU" in note for note in one.notes)


def test_a_machine_with_another_number_of_gpus_is_less_certain_and_says_so():
    four, cells = machine(), [measured(cell(1, "none"), 4e-3)]
    sources, eight = Sources(cells, (), four, measured_on=[four]), what_if(four, ["gpus=2x"])
    one, other = (told(sources, topology, cell(1, "none")) for topology in (four, eight))
    assert other.iteration.value == one.iteration.value
    assert other.iteration.relative_sd > one.iteration.relative_sd
    assert any("another machine than was measured" in note for note in other.notes)
    assert not any("another machine" in note for note in one.notes)


def test_local_updates_have_their_part_of_the_exchange_and_say_so():
    plain, block = predicted(cell(4)), predicted(cell(4, sync_every=8, outer_update="average"))
    end = block.terms[-1]
    assert end.name == "end of a block"
    # 8 times each byte of the model is read or written: its movement, the outer update, the copy.
    assert 8 * end.seconds == pytest.approx(8 * 4 * NUM_ELEMENTS / 1500e9)
    assert block.exchange.value == pytest.approx(plain.exchange.value / 8 + end.seconds)
    assert block.exposed_exchange.value == pytest.approx(plain.exposed_exchange.value / 8 + end.seconds)
    shared = [term.seconds / 8 for term in plain.terms]
    assert [term.seconds for term in block.terms[:-1]] == pytest.approx(shared)
    assert block.iteration.value - plain.compute.value == pytest.approx(block.exchange.value)
    assert any("exchanged every 8 steps" in note for note in block.notes)
    assert block.remarks == tuple(note for note in block.notes if "exchanged every" in note)
    assert not any("exchanged every" in note for note in plain.notes)
    # An outer momentum is read and written there too.
    ends = [
        predicted(cell(4, sync_every=2, outer_update=name, outer_momentum=momentum)).terms[-1].seconds
        for name, momentum in (("average", None), ("block_momentum", 0.75), ("nesterov", 0.9))
    ]
    assert [end / ends[0] for end in ends] == pytest.approx([1, 13 / 8, 16 / 8])


def on_another_host(values, *, captured=False):
    steps = [("eager", 9e-3), ("overlapped", 9e-3), ("captured", 8.9e-3)]
    cells = [measured(cell(1, "none", local_batch=1024, step=name), s) for name, s in steps]
    there, known = machine(), cells if captured else cells[:2]
    host = [replace(device, cores=64) if device.kind == "cpu" else device for device in there.machine.devices]
    here = replace(there, machine=replace(there.machine, devices=tuple(host)))
    return told(Sources(known, (), there, measured_on=[there]), here, values)


def test_on_another_host_what_may_be_bound_by_the_processor_is_less_certain_and_says_so():
    unknown, gpu_bound = (on_another_host(cell(2, local_batch=1024), captured=own) for own in (False, True))
    assert unknown.iteration.relative_sd >= 0.15 > gpu_bound.iteration.relative_sd
    said = "ring's eager step was not measured on several ranks, and neither was this host: at least 15%"
    assert any(said in note for note in unknown.notes)
    assert not any("neither was this host" in note for note in gpu_bound.notes)


def test_what_an_eager_step_took_tells_nothing_of_hooks():
    values = cell(2, step="overlapped", local_batch=1024)
    eager = strategy({**values, "step": "eager"})
    known = Calibration(left_over={strategy_key(eager): (0.0, 0.05, 2, {})})
    cells = [measured(cell(1, "none", local_batch=1024, step=s), 9e-3) for s in ("overlapped", "captured")]
    predictor = Predictor(Machinery(machine()), ComputeModel(cells), known, unseen=Unseen(other_host=True))
    hooks, launched = (predictor.predict(own) for own in (strategy(values), eager))
    assert hooks.iteration.relative_sd >= HOOKED_SD > launched.iteration.relative_sd
    assert any("ring's overlapped step was not measured" in note for note in hooks.notes)


def test_measured_local_updates_calibrate_nothing():
    row = {"iteration_s": 0.01, "state": "done"}
    blocks = cell(4, sync_every=8, outer_update="average")
    (kept,) = measured_cells([(cell(4), "", row), (blocks, "", row)], "here")
    assert kept.cell == cell(4)


NET = {"model": "net", "world_size": 4}
PREDICTED = {**NET, "aggregator": "ring", "iteration_s": 0.01}
PREDICTED |= {"iteration_s_low": 0.009, "iteration_s_high": 0.011}
EXCHANGE_ALONE = {**NET, "aggregator": "tree", "exposed_comm_s": 0.002}
NOT_PREDICTED = {**NET, "aggregator": "star", "reason": "it has no schedule"}


@pytest.mark.parametrize(("rows", "is_told"), [
    ([], False), ([PREDICTED], False), ([EXCHANGE_ALONE], True), ([EXCHANGE_ALONE, NOT_PREDICTED], True),
    ([PREDICTED, EXCHANGE_ALONE], False),
    ([NOT_PREDICTED, EXCHANGE_ALONE, PREDICTED], False),
])  # fmt: skip
def test_only_a_table_without_any_iteration_says_that_nothing_was_measured(rows, is_told):
    assert (NOTHING_MEASURED in " ".join(text_table(rows).split())) == is_told


def test_batches_and_inputs_are_told():
    fed = {"scaling": "weak", "local_batch": 1024, "global_batch": 4096}
    text = text_table([{**PREDICTED, **fed}, {**PREDICTED, **fed, "input_placement": "loader"}])
    assert text.startswith("net, local batch 1,024\n")
    assert "ring, input loader" in text
    assert text_table([{**PREDICTED, **fed, "scaling": "strong"}]).startswith("net, global batch 4,096\n")
