"""The shipped studies and those of benchmarks have the cells that they are for, each resolved once."""

from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.study import workloads
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study, shipped_studies
from scaling.study.resolve import resolve
from scaling.workloads import registry

BATCHES = (("fcn-r", 4096), ("alexnet-r", 1024), ("resnet-56", 128))
PRESETS = {name for name, target in BUILT_IN.items() if ".presets." in target}


def test_two_gpus_have_every_system_on_one_worker_too_and_mxnet_overlapped():
    study = resolve(load_study("paper-2gpu"), AvailableMachine(2, 32))
    assert set(study.repeats.values()) == {3}
    with_access = [cell for cell in study.cells.values() if cell.peer_access]
    assert {(cell.model, cell.global_batch) for cell in with_access} == set(BATCHES)
    eager = {(cell.model, cell.aggregator, cell.world_size) for cell in with_access if cell.step == "eager"}
    assert eager == set(product((model for model, _ in BATCHES), PRESETS | {"none", "all_reduce"}, (1, 2)))
    host_only = {cell.aggregator for cell in study.cells.values() if not cell.peer_access}
    by_host = {name for name in PRESETS if create(name).one_host or name.startswith("cntk")}
    assert host_only == (PRESETS | {"none", "all_reduce"}) - by_host
    overlapped = {cell.aggregator for cell in with_access if cell.step == "overlapped"}
    assert overlapped == {"none", "all_reduce", "mxnet_device", "mxnet_local"}


@pytest.mark.parametrize("machine", [AvailableMachine(0, 2), AvailableMachine(4, 64)], ids=str)
def test_every_system_is_measured_at_the_papers_batches_on_1_2_and_4(machine):
    assert "arXiv 1608.07249" in shipped_studies()["paper"].splitlines()[0]
    study = resolve(load_study("paper"), machine)
    cells = study.cells.values()
    for model, batch in BATCHES:
        of_model = [cell for cell in cells if cell.model == model]
        assert {cell.aggregator for cell in of_model} == PRESETS | {"none", "all_reduce"}
        assert {cell.global_batch for cell in of_model} == {batch}
        assert {cell.world_size for cell in of_model} == {1, 2, 4}
    assert {(cell.scaling, cell.kind) for cell in cells} == {("strong", "iteration")}
    assert set(study.repeats.values()) == {3}


LOSSY = {
    "one_bit", "one_bit_flat", "power_sgd", "top_k", "ef_sign", "qsgd",
    "one_bit_flat(error_feedback=False)", "power_sgd(error_feedback=False)", "top_k(error_feedback=False)",
    "ef_sign(error_feedback=False)",
}  # fmt: skip


@pytest.mark.parametrize(("num_gpus", "sharing"), [(8, None), (4, None), (3, 2), (2, 2), (1, 4)])
def test_every_codec_trains_beside_the_exact_mean_at_one_rate(num_gpus, sharing):
    cells = resolve(load_study("compression", []), AvailableMachine(num_gpus, 8)).cells.values()
    by_label = {cell.aggregator_label: cell for cell in cells}
    assert set(by_label) == LOSSY | {"host_parallel"}
    assert {cell.aggregator_label for cell in cells if cell.lossy} == LOSSY
    assert {(cell.world_size, cell.workers_per_gpu) for cell in cells} == {(4, sharing)}
    assert len({(cell.learning_rate, cell.momentum, cell.epochs, cell.global_batch) for cell in cells}) == 1
    assert {(cell.kind, cell.model, cell.dataset) for cell in cells} == {("convergence", "fcn-r", "mnist")}


def test_density_is_one_in_a_hundred():
    cells = resolve(load_study("compression", []), AvailableMachine(4, 8)).cells.values()
    assert {c.aggregator_parameters["density"] for c in cells if c.aggregator == "top_k"} == {0.01}


@pytest.fixture
def created(monkeypatch):
    """Counts what is created by name."""
    counts: Counter[str] = Counter()
    for registered, what in ((registry.DATASETS, "data set"), (registry.MODELS, "model")):

        def load(name, load=registered.load, what=what):
            counts[what] += 1
            return load(name)

        monkeypatch.setattr(registered, "load", load)
    return counts


@pytest.mark.parametrize("name", ["mnist", "quickstart", "paper"])
def test_data_sets_and_models_are_created_once_a_workload(name, created):
    study = load_study(name)
    cells = resolve(study, AvailableMachine(num_gpus=4, num_cores=16)).trained
    choices = [choice for part in study.parts for choice in part.workloads]
    alternatives = sum(len(getattr(choice, "first_available", [choice])) for choice in choices)
    assert len(cells) > alternatives
    assert created["model"] == len(choices)
    assert created["data set"] <= alternatives


def test_alternative_that_is_not_there_has_no_model(created, monkeypatch):
    raw = {"model": "no-such-model", "dataset": "mnist", "global_batch": 64}
    there = {"model": "mlp", "dataset": "digits", "global_batch": 64}
    monkeypatch.setattr("scaling.workloads.mnist.Mnist.available", lambda self: False)
    choice = workloads.Alternatives.model_validate({"first_available": [raw, there]})
    assert workloads.choose(choice, "cpu", lambda _: None).model.name == "mlp"
    assert created == {"data set": 2, "model": 1}


def benchmark_cells(name, num_gpus):
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.yaml"
    return resolve(load_study(str(path)), AvailableMachine(num_gpus, 16)).trained


def test_compute_curves_hold_every_local_batch_that_occurs_on_one_to_four_workers():
    batches = {}
    for cell in benchmark_cells("compute_curves", 1):
        assert (cell.world_size, cell.aggregator, cell.device) == (1, "none", "cuda")
        batches.setdefault((cell.model_label, cell.step), set()).add(cell.local_batch)
    for step in ("eager", "captured", "overlapped"):
        assert batches["resnet-56", step] == {16, 32, 64, 128}
        assert batches["fcn-r", step] == {512, 1024, 2048, 4096}
        assert batches["fcn-s4", step] == {16, 32, 64}


def test_compute_curves_are_measured_for_less_than_a_minute():
    assert sum(cell.max_seconds for cell in benchmark_cells("compute_curves", 1)) < 60


def test_every_network_has_its_step_alone_under_ddp_and_beside_messages_with_and_without_access():
    arms = {}
    for cell in benchmark_cells("overlap_slowdown", 2):
        assert (cell.step, cell.world_size, cell.device) == ("overlapped", 2, "cuda")
        arms.setdefault((cell.model_label, cell.local_batch), set()).add((cell.aggregator, cell.peer_access))
    assert len(arms) == 5
    wanted = {(name, access) for name in ("none", "no_op", "all_reduce") for access in (True, False)}
    assert all(of_network == wanted for of_network in arms.values())
