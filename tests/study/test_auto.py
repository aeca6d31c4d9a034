"""`world_sizes: auto` and `all`, workloads for one device, batches sized by a trial, missing data."""

from contextlib import closing

import pytest

from launchers.zygote import Zygotes
from scaling.errors import LaunchError
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve
from scaling.study.trial import LARGEST, LONGEST_S, SHORTEST_S, _fitting, in_forked_process, trial_overrides
from tests.made import CPU, made_cells, problem_of, resolved_study

WORKLOAD = {"model": "mlp", "dataset": "digits", "global_batch": 96}


def sizes(machine, world_sizes="auto"):
    resolved = resolved_study(machine, workloads=[WORKLOAD], world_sizes=world_sizes)
    return sorted({cell.world_size for cell in resolved.trained}), resolved.notes


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


def test_processes_that_share_cores_are_said_in_a_line():
    found, notes = sizes(AvailableMachine(0, 2, 1))
    assert found == [1, 2, 4]
    assert [note for note in notes if "4 workers share 2 CPU cores" in note]
    assert not [note for note in sizes(AvailableMachine(0, 8, 1))[1] if "share" in note]


def test_a_size_that_does_not_divide_the_batch_is_left_out_with_a_note():
    found, notes = sizes(AvailableMachine(7, 16, 1))
    assert found == [1, 2, 4]
    assert [note for note in notes if "world size 7 left out" in note]


def test_workload_for_a_device_is_taken_there_alone():
    choice = {"first_available": [{**WORKLOAD, "model": "fcn-r", "dataset": "synthetic", "device": "cuda"}]}
    both = {"first_available": [*choice["first_available"], WORKLOAD]}
    for machine, expected in ((CPU, "mlp"), (AvailableMachine(2, 16, 1), "fcn-r")):
        assert {cell.model for cell in made_cells(machine, workloads=[both])} == {expected}
    assert "no workload for device cpu" in problem_of(workloads=[choice])


def test_wrong_data_folder_does_not_stop_a_study_with_a_fallback(monkeypatch, tmp_path):
    monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path / "nothing"))
    resolved = resolve(load_study("quickstart"), AvailableMachine(0, 2, 1))
    assert "digits" in {cell.dataset for cell in resolved.trained}
    assert [note for note in resolved.notes if "SCALING_DATA_DIR" in note]


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
    cells = resolve(sized, AvailableMachine(0, 2, 1)).trained
    assert {cell.global_batch for cell in cells if cell.kind == "iteration"} == {batch}
