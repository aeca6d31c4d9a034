"""A study on a machine: its cells, their identity, and the combinations that cannot be."""

import re
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from scaling.aggregators.native import NoExchange
from scaling.study.cell import AvailableMachine, Cell
from scaling.workloads.mnist import Mnist
from tests.made import CPU, GPUS, WORKLOAD, cell_of
from tests.made import made_cells as cells
from tests.made import problem_of as problem
from tests.made import resolved_study as resolved

CELL = cell_of(threads=4, learning_rate=0.01, warmup=10, iterations=50)
LABELS = {"model_label", "dataset_label", "aggregator_label", "exchanges", "lossy", "keep_checkpoints"}


class TestIdentity:
    @pytest.mark.parametrize("name", [f.name for f in fields(Cell) if f.name not in LABELS])
    def test_identity_changes_with_everything_that_decides_the_result(self, name):
        value = getattr(CELL, name)
        if isinstance(value, bool):
            other: Any = not value
        elif isinstance(value, dict):
            other = {"a": 1}
        elif isinstance(value, str):
            other = f"{value}x"
        else:
            other = 17 if value is None else value + 1
        assert replace(CELL, **{name: other}).id != CELL.id

    @pytest.mark.parametrize("name", sorted(LABELS))
    def test_labels_and_capabilities_are_no_part_of_it(self, name):
        value = getattr(CELL, name)
        assert replace(CELL, **{name: not value if isinstance(value, bool) else "x"}).id == CELL.id

    def test_it_is_twelve_hexadecimal_digits(self):
        assert re.fullmatch("[0-9a-f]{12}", CELL.id)

    def test_it_does_not_depend_on_the_order_of_parameters(self):
        one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
        assert replace(CELL, model_parameters=one).id == replace(CELL, model_parameters=other).id

    def test_default_said_and_default_left_out_are_the_same_cell(self):
        said = resolved(aggregators=[{"name": "one_bit", "threshold": "zero"}], momentum=0.9)
        assert list(said.cells) == list(resolved(aggregators=["one_bit"]).cells)

    def test_every_cell_of_a_study_is_found_by_its_own_id(self):
        study = resolved(aggregators=["ring", "tree"], seed=[0, 1], world_sizes=[1, 2, 4])
        assert len(study.cells) == 2 * 2 * 3 + 1  # the A/A pair's second
        assert all(cell_id == cell.id for cell_id, cell in study.cells.items())

    def test_name_of_the_study_is_no_part_of_it(self):
        assert list(resolved(name="other").cells) == list(resolved().cells)


class TestAxes:
    def test_cells_are_the_product_of_all_axes(self):
        workloads = [
            {**WORKLOAD, "global_batch": [32, 64]},
            {**WORKLOAD, "model": "fcn-r", "dataset": "mnist"},
        ]
        found = cells(workloads=workloads, aggregators=["ring", "tree"], seed=[1, 2])
        assert len(found) == 3 * 2 * 2 * 2
        assert {(c.model, c.global_batch) for c in found} == {("mlp", 32), ("mlp", 64), ("fcn-r", 64)}

    def test_strong_scaling_keeps_the_global_batch(self):
        found = cells(world_sizes=[1, 2, 4])
        sizes = [(c.world_size, c.local_batch, c.global_batch) for c in found]
        assert sizes == [(1, 64, 64), (2, 32, 64), (4, 16, 64)]

    def test_weak_scaling_keeps_the_local_batch(self):
        workload = {"model": "mlp", "dataset": "digits", "local_batch": 64}
        found = cells(world_sizes=[1, 2, 4], scaling="weak", workloads=[workload])
        sizes = [(c.world_size, c.local_batch, c.global_batch) for c in found]
        assert sizes == [(1, 64, 64), (2, 64, 128), (4, 64, 256)]

    def test_parameters_are_complete_and_labels_name_what_differs(self):
        (cell,) = cells(
            world_sizes=1,
            workloads=[{**WORKLOAD, "model": {"name": "mlp", "hidden": [3]}}],
            aggregators=[{"name": "one_bit", "threshold": "mean"}],
        )
        assert (cell.model_parameters, cell.aggregator_parameters) == (
            {"hidden": [3]},
            {"threshold": "mean", "view": "torch", "bits": 1, "double_buffering": False, "kernels": "auto"},
        )
        assert (cell.model_label, cell.aggregator_label) == ("mlp(hidden=[3])", "one_bit(threshold=mean)")
        assert (cell.lossy, cell.exchanges) == (True, True)

    def test_workloads_own_training_parameters_come_first(self):
        workloads = [{**WORKLOAD, "learning_rate": 0.5, "momentum": 0}, WORKLOAD]
        found = cells(world_sizes=1, workloads=workloads, learning_rate=0.1)
        assert [(c.learning_rate, c.momentum) for c in found] == [(0.5, 0.0), (0.1, 0.9)]

    def test_kind_decides_the_extent(self):
        iteration, convergence = cells(
            world_sizes=1,
            parts=[
                {"kind": "iteration", "warmup": 2, "iterations": 3, "max_seconds": 4},
                {"kind": "convergence", "epochs": 6, "target_accuracy": 0.5},
            ],
        )
        assert (iteration.warmup, iteration.iterations, iteration.max_seconds) == (2, 3, 4)
        assert (iteration.epochs, iteration.target_accuracy) == (None, None)
        assert (convergence.epochs, convergence.target_accuracy) == (6, 0.5)
        assert (convergence.warmup, convergence.iterations) == (None, None)

    def test_workloads_own_extent_comes_first(self):
        workloads = [{**WORKLOAD, "epochs": 2, "target_accuracy": 0.7}]
        (cell,) = cells(kind="convergence", world_sizes=1, workloads=workloads, target_accuracy=0.9)
        assert (cell.epochs, cell.target_accuracy) == (2, 0.7)

    def test_cell_in_two_parts_is_run_as_often_as_the_larger_one_asks(self):
        study = resolved(parts=[{"repeats": 2}, {"repeats": 5, "world_sizes": [1]}, {"repeats": 3}])
        by_size = {cell.world_size: study.repeats[cell.id] for cell in study.cells.values()}
        assert by_size == {1: 5, 2: 3}

    def test_settings_of_gpus_are_no_axis_on_a_cpu(self):
        changes = {"world_sizes": 1, "peer_access": [True, False], "tf32": [True, False]}
        assert [(c.peer_access, c.tf32) for c in cells(CPU, **changes)] == [(None, None)]
        assert len(cells(GPUS, **changes)) == 4
        with_and_without = cells(GPUS, world_sizes=2, peer_access=[True, False])
        assert len({cell.describe() for cell in with_and_without}) == 2


class TestThreads:
    @pytest.mark.parametrize("world_sizes", [[1], [1, 2, 4], [16]])
    def test_cpu_worker_has_one_thread_whatever_the_world_sizes(self, world_sizes):
        workload = {"model": "mlp", "dataset": "digits", "local_batch": 8}
        found = cells(AvailableMachine(0, 8), world_sizes=world_sizes, scaling="weak", workloads=[workload])
        assert {c.threads for c in found} == {1}

    @pytest.mark.parametrize("world_sizes", [[1], [1, 2, 4]])
    def test_gpu_worker_has_its_gpus_share_of_the_cores(self, world_sizes):
        assert {c.threads for c in cells(AvailableMachine(4, 64), world_sizes=world_sizes)} == {12}

    def test_every_node_brings_its_own_cores(self):
        assert {c.threads for c in cells(AvailableMachine(4, 64, num_nodes=2), world_sizes=[8])} == {12}

    def test_threads_in_the_study_come_first(self):
        assert {c.threads for c in cells(threads=3)} == {3}


class TestDevices:
    def test_gpus_are_taken_where_there_are_any_and_it_is_noted(self):
        study = resolved(GPUS)
        assert {c.device for c in study.cells.values()} == {"cuda"}
        assert study.notes == ["device: 4 GPUs found, NCCL"]

    def test_cpu_is_taken_where_there_is_none_and_it_is_noted(self):
        study = resolved(CPU)
        assert {c.device for c in study.cells.values()} == {"cpu"}
        assert study.notes == ["device: no GPU found, CPU processes over Gloo"]

    def test_device_may_be_chosen(self):
        study = resolved(GPUS, device="cpu", world_sizes=[1, 8])
        assert {c.device for c in study.cells.values()} == {"cpu"}
        assert study.notes == []

    def test_gpus_that_are_missing_are_an_error_that_says_what_to_do(self):
        message = problem(GPUS, world_sizes=[1, 4, 8, 16])
        assert "by-hand: world size 8 needs 8 GPUs and 4 can be used" in message
        assert "use world_sizes=[1, 4], missing_devices=drop, or device=cpu" in message

    def test_sizes_without_gpus_may_be_dropped_and_it_is_noted(self):
        study = resolved(GPUS, world_sizes=[1, 4, 8], missing_devices="drop")
        assert {c.world_size for c in study.cells.values()} == {1, 4}
        assert "world sizes [8] dropped: 4 GPUs here" in study.notes

    def test_dropping_all_sizes_is_an_error(self):
        message = problem(GPUS, world_sizes=[8], missing_devices="drop")
        assert message.startswith("by-hand: nothing is left to measure here: ")
        assert message.endswith("world sizes [8] dropped: 4 GPUs here")

    def test_a_part_may_be_dropped_as_a_whole(self):
        study = resolved(GPUS, missing_devices="drop", parts=[{"world_sizes": [2]}, {"world_sizes": [8]}])
        assert {c.world_size for c in study.cells.values()} == {2}
        assert "world sizes [8] dropped: 4 GPUs here" in study.notes

    def test_gpus_of_all_nodes_count(self):
        assert len(cells(AvailableMachine(4, 64, num_nodes=2), world_sizes=[8])) == 1

    def test_no_gpu_at_all_is_an_error(self):
        assert "world size 1 needs 1 GPUs and 0 can be used" in problem(CPU, device="cuda")


class TestFirstAvailable:
    CHOICE = [{"first_available": [{**WORKLOAD, "dataset": "mnist"}, WORKLOAD]}]

    @pytest.mark.parametrize(("there", "taken"), [(True, "mnist"), (False, "digits")])
    def test_first_data_set_on_this_machine_is_taken_and_it_is_noted(self, monkeypatch, there, taken):
        monkeypatch.setattr(Mnist, "available", lambda self: there)
        study = resolved(workloads=self.CHOICE)
        assert {c.dataset for c in study.cells.values()} == {taken}
        assert f"data set: {taken} (the first available of its alternatives)" in study.notes

    def test_note_is_made_once(self, monkeypatch):
        monkeypatch.setattr(Mnist, "available", lambda self: False)
        study = resolved(workloads=self.CHOICE, parts=[{}, {"kind": "convergence"}])
        assert len(study.notes) == len(set(study.notes)) == 2


def test_description_is_one_line_with_what_differs():
    (cell,) = cells(world_sizes=2)
    assert cell.describe() == "iteration mlp on digits, ring, 2 x 32 on cpu, eager"
    assert cell.to_dict()["aggregator_label"] == "ring"


@dataclass(frozen=True)
class First(NoExchange):
    """Has the name of Second."""

    name = "shared"


@dataclass(frozen=True)
class Second(NoExchange):
    """Has the name of First."""

    name = "shared"


@pytest.mark.usefixtures("named_by_a_study")
@pytest.mark.parametrize(
    "names", [[f"{__name__}:First", f"{__name__}:Second"], ["ring", "scaling.aggregators.ring:Ring"]]
)
def test_two_aggregators_with_one_label_are_refused_also_across_parts(names):
    assert "have the same label" in problem(aggregators=names)
    assert "have the same label" in problem(parts=[{"aggregators": [name]} for name in names])
