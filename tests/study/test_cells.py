"""A study on a machine: its cells, their identity, the sizes and batches that it leaves open."""

import re
from contextlib import closing
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from launchers.zygote import Zygotes
from scaling.aggregators.native import NoExchange
from scaling.errors import LaunchError
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine, Cell
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from scaling.study.trial import LARGEST, LONGEST_S, SHORTEST_S, _fitting, in_forked_process, trial_overrides
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

    def test_it_is_twelve_hexadecimal_digits_whatever_the_order_of_parameters(self):
        assert re.fullmatch("[0-9a-f]{12}", CELL.id)
        one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
        assert replace(CELL, model_parameters=one).id == replace(CELL, model_parameters=other).id

    def test_defaults_that_are_said_and_the_name_of_the_study_change_none_and_each_is_found_by_its_own(self):
        said = resolved(aggregators=[{"name": "one_bit", "threshold": "zero"}], momentum=0.9, name="other")
        assert list(said.cells) == list(resolved(aggregators=["one_bit"]).cells)
        study = resolved(aggregators=["ring", "tree"], seed=[0, 1], world_sizes=[1, 2, 4])
        assert len(study.cells) == 2 * 2 * 3 + 1  # the A/A pair's second
        assert all(cell_id == cell.id for cell_id, cell in study.cells.items())


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

    def test_workloads_own_training_parameters_and_extent_come_first(self):
        workloads = [{**WORKLOAD, "learning_rate": 0.5, "momentum": 0}, WORKLOAD]
        found = cells(world_sizes=1, workloads=workloads, learning_rate=0.1)
        assert [(c.learning_rate, c.momentum) for c in found] == [(0.5, 0.0), (0.1, 0.9)]
        workloads = [{**WORKLOAD, "epochs": 2, "target_accuracy": 0.7}]
        (cell,) = cells(kind="convergence", world_sizes=1, workloads=workloads, target_accuracy=0.9)
        assert (cell.epochs, cell.target_accuracy) == (2, 0.7)

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

    def test_cell_in_two_parts_is_run_as_often_as_the_larger_one_asks(self):
        study = resolved(parts=[{"repeats": 2}, {"repeats": 5, "world_sizes": [1]}, {"repeats": 3}])
        by_size = {cell.world_size: study.repeats[cell.id] for cell in study.cells.values()}
        assert by_size == {1: 5, 2: 3}

    def test_settings_of_gpus_are_no_axis_on_a_cpu_and_descriptions_have_what_differs(self):
        changes = {"world_sizes": 1, "peer_access": [True, False], "tf32": [True, False]}
        assert [(c.peer_access, c.tf32) for c in cells(CPU, **changes)] == [(None, None)]
        assert len(cells(GPUS, **changes)) == 4
        with_and_without = cells(GPUS, world_sizes=2, peer_access=[True, False])
        assert len({cell.describe() for cell in with_and_without}) == 2
        (cell,) = cells(world_sizes=2)
        assert cell.describe() == "iteration mlp on digits, ring, 2 x 32 on cpu, eager"
        assert cell.to_dict()["aggregator_label"] == "ring"


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
    @pytest.mark.parametrize(("there", "taken"), [(True, "mnist"), (False, "digits")])
    def test_first_data_set_on_this_machine_is_taken_and_it_is_noted_once(self, monkeypatch, there, taken):
        monkeypatch.setattr(Mnist, "available", lambda self: there)
        choice = [{"first_available": [{**WORKLOAD, "dataset": "mnist"}, WORKLOAD]}]
        study = resolved(workloads=choice, parts=[{}, {"kind": "convergence"}])
        assert {c.dataset for c in study.cells.values()} == {taken}
        assert f"data set: {taken} (the first available of its alternatives)" in study.notes
        assert len(study.notes) == len(set(study.notes)) == 2


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


OF_96 = {**WORKLOAD, "global_batch": 96}


def sizes(machine, world_sizes="auto", **keys):
    study = resolved(machine, workloads=[OF_96], world_sizes=world_sizes, **keys)
    return sorted({cell.world_size for cell in study.trained}), study.notes


@pytest.mark.parametrize(
    ("num_gpus", "num_nodes", "expected"),
    [(1, 1, [1]), (2, 1, [1, 2]), (6, 1, [1, 2, 4, 6]), (8, 1, [1, 2, 4, 8]), (4, 2, [1, 2, 4, 8])],
)
def test_auto_is_every_power_of_two_and_all_gpus(num_gpus, num_nodes, expected):
    assert sizes(AvailableMachine(num_gpus, 16, num_nodes))[0] == expected
    assert sizes(AvailableMachine(num_gpus, 16, num_nodes), "all")[0] == expected[-1:]


@pytest.mark.parametrize(("num_cores", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (64, 4)])
def test_all_has_a_core_for_each_process_where_there_is_no_gpu(num_cores, expected):
    notes = sizes(AvailableMachine(0, 64, 1), "all")[1]
    assert sizes(AvailableMachine(0, num_cores, 1), "all") == ([expected], notes)


def test_processes_that_share_cores_and_sizes_that_do_not_divide_the_batch_are_said():
    found, notes = sizes(AvailableMachine(0, 2, 1))
    assert found == [1, 2, 4]
    assert [note for note in notes if "4 workers share 2 CPU cores" in note]
    assert not [note for note in sizes(AvailableMachine(0, 8, 1))[1] if "share" in note]
    for num_cores, left in ((1, [1, 2]), (2, [1, 2]), (3, [1, 2]), (4, [1, 2, 4])):
        assert sizes(AvailableMachine(0, num_cores, 1), missing_devices="drop")[0] == left
    found, notes = sizes(AvailableMachine(7, 16, 1))
    assert found == [1, 2, 4]
    assert [note for note in notes if "world size 7 left out" in note]


def test_workload_for_a_device_is_taken_there_alone():
    choice = {"first_available": [{**OF_96, "model": "fcn-r", "dataset": "synthetic", "device": "cuda"}]}
    both = {"first_available": [*choice["first_available"], OF_96]}
    for machine, expected in ((CPU, "mlp"), (AvailableMachine(2, 16, 1), "fcn-r")):
        assert {cell.model for cell in cells(machine, workloads=[both])} == {expected}
    assert "no workload for device cpu" in problem(workloads=[choice])


def test_wrong_data_folder_does_not_stop_a_study_with_a_fallback(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "nothing"))
    study = resolve(load_study("quickstart"), AvailableMachine(0, 2, 1))
    assert "digits" in {cell.dataset for cell in study.trained}
    assert [note for note in study.notes if "SCALING_DATA_DIR" in note]


@pytest.mark.parametrize("seconds_a_sample", [1e-6, 2e-5, 1e-3])
def test_trial_finds_a_batch_whose_step_is_neither_short_nor_long(seconds_a_sample):
    batch, seconds = _fitting(lambda size: size * seconds_a_sample, 64)
    assert seconds == batch * seconds_a_sample
    assert SHORTEST_S <= seconds <= LONGEST_S or batch == LARGEST


@pytest.mark.processes
def test_trial_in_a_forked_process_gives_a_batch_and_its_time():
    """As on GPUs, where the command must not keep a context."""
    (workload, *_) = load_study("quickstart").parts[0].workloads[0].first_available[1:]
    with closing(Zygotes(["scaling.worker"])) as zygotes:
        batch, seconds = in_forked_process(workload, "cpu", 1, zygotes)
        assert batch > 1
        assert 0 < seconds < 10 * LONGEST_S
        with pytest.raises(LaunchError, match=r"trial step of mlp on nowhere: \w+Error"):
            in_forked_process(workload, "nowhere", 1, zygotes)


def test_trial_sizes_each_automatic_batch_once_and_a_folder_keeps_its_own(tmp_path):
    told = []
    quickstart = load_study("quickstart", ["parts.0.workloads.0.first_available.1.model.hidden=[8]"])
    machine, zygotes = AvailableMachine(0, 2, 1), Zygotes([])
    found = trial_overrides(quickstart, machine, ResultsFolder(tmp_path / "new"), told.append, zygotes)
    assert len(found) == 2
    assert len(told) == 1
    (batch,) = {int(one.rpartition("=")[2]) for one in found}
    sized = load_study("quickstart", found)
    folder = ResultsFolder(tmp_path / "old")
    folder.write_study(sized.model_dump(mode="json"))
    assert trial_overrides(quickstart, machine, folder, told.append, zygotes) == found
    assert len(told) == 1
    trained = resolve(sized, AvailableMachine(0, 2, 1)).trained
    assert {cell.global_batch for cell in trained if cell.kind == "iteration"} == {batch}
