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


WEAK = {"scaling": "weak", "workloads": [{"model": "mlp", "dataset": "digits", "local_batch": 8}]}


class TestAxes:
    def test_cells_are_the_product_of_all_axes(self):
        workloads = [
            {**WORKLOAD, "global_batch": [32, 64]},
            {**WORKLOAD, "model": "fcn-r", "dataset": "mnist"},
        ]
        found = cells(workloads=workloads, aggregators=["ring", "tree"], seed=[1, 2])
        assert len(found) == 3 * 2 * 2 * 2
        assert {(c.model, c.global_batch) for c in found} == {("mlp", 32), ("mlp", 64), ("fcn-r", 64)}

    @pytest.mark.parametrize(("changes", "expected"), [
        ({}, [(1, 64, 64), (2, 32, 64), (4, 16, 64)]), (WEAK, [(1, 8, 8), (2, 8, 16), (4, 8, 32)]),
    ])  # fmt: skip
    def test_strong_scaling_keeps_the_global_batch_and_weak_the_local_one(self, changes, expected):
        found = cells(world_sizes=[1, 2, 4], **changes)
        assert [(c.world_size, c.local_batch, c.global_batch) for c in found] == expected

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


TWO_NODES = AvailableMachine(4, 64, num_nodes=2)


@pytest.mark.parametrize(("machine", "changes", "threads"), [
    # A worker on a CPU has one thread, on GPUs its GPU's share of its node's cores.
    *((CPU, {"world_sizes": sizes, **WEAK}, 1) for sizes in ([1], [1, 2, 4], [16])),
    *((GPUS, {"world_sizes": sizes}, 12) for sizes in ([1], [1, 2, 4])),
    (TWO_NODES, {"world_sizes": [8]}, 12), (CPU, {"threads": 3}, 3),  # the study's come first
])  # fmt: skip
def test_threads_are_a_workers_share_of_the_cores(machine, changes, threads):
    assert {cell.threads for cell in cells(machine, **changes)} == {threads}


FOUND, DROPPED = "device: 4 GPUs found, NCCL", "world sizes [8] dropped: 4 GPUs here"
DROP = {"missing_devices": "drop"}


class TestDevices:
    @pytest.mark.parametrize(("machine", "changes", "expected", "notes"), [
        (GPUS, {}, {("cuda", 1), ("cuda", 2)}, [FOUND]),
        (CPU, {}, {("cpu", 1), ("cpu", 2)}, ["device: no GPU found, CPU processes over Gloo"]),
        (GPUS, {"device": "cpu", "world_sizes": [1, 8]}, {("cpu", 1), ("cpu", 8)}, []),
        (GPUS, {"world_sizes": [1, 4, 8], **DROP}, {("cuda", 1), ("cuda", 4)}, [FOUND, DROPPED]),
        (GPUS, {"parts": [{"world_sizes": [2]}, {"world_sizes": [8]}], **DROP}, {("cuda", 2)},
         [FOUND, DROPPED]),
        (TWO_NODES, {"world_sizes": [8]}, {("cuda", 8)}, None),  # the GPUs of all nodes count
    ])  # fmt: skip
    def test_gpus_are_taken_where_there_are_enough_and_it_is_noted(self, machine, changes, expected, notes):
        study = resolved(machine, **changes)
        assert {(cell.device, cell.world_size) for cell in study.cells.values()} == expected
        assert notes is None or study.notes == notes

    @pytest.mark.parametrize(("machine", "changes", "said"), [
        (GPUS, {"world_sizes": [1, 4, 8, 16]},
         ["by-hand: world size 8 needs 8 GPUs and 4 can be used",
          "use world_sizes=[1, 4], missing_devices=drop, or device=cpu"]),
        (GPUS, {"world_sizes": [8], **DROP}, ["by-hand: nothing is left to measure here: ", DROPPED]),
        (CPU, {"device": "cuda"}, ["world size 1 needs 1 GPUs and 0 can be used"]),
    ])  # fmt: skip
    def test_gpus_that_are_missing_are_an_error_that_says_what_to_do(self, machine, changes, said):
        message = problem(machine, **changes)
        assert [text for text in said if text not in message] == []


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
