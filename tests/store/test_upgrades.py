"""Records of version 1: copies back from host memory are added, or the bytes are dropped."""

import json

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.store import SCHEMA_VERSION, ResultsFolder, RunRecord
from scaling.store.failures import failure_kind
from scaling.store.records import record_from
from scaling.store.upgrades import _BACK_FROM_HOST

PARAMETERS = 100
LAYOUT = BucketLayout.of([("weight", (PARAMETERS,))])


def read_back(tmp_path, version, aggregator, counted, device="cuda", num_parameters=PARAMETERS, **parameters):
    """The summary of a run that was recorded in that version."""
    folder = ResultsFolder(tmp_path)
    summary = {"num_parameters": num_parameters, "wire_bytes_per_rank": counted, "messages_per_rank": [1, 1]}
    own = {"aggregator": aggregator, "aggregator_parameters": parameters, "device": device}
    cell = {"kind": "own", "world_size": 2, **own}
    folder.write_run(RunRecord("abc", 0, cell, "done", summary=summary))
    path = tmp_path / "runs" / "abc" / "0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    record = folder.run("abc", 0)
    assert record.schema_version == SCHEMA_VERSION
    assert folder.runs() == [record]
    return record.summary


@pytest.mark.parametrize("name", sorted(_BACK_FROM_HOST))
def test_old_count_becomes_what_the_aggregator_states_today(tmp_path, name):
    # Then the gradient's bytes were counted: to the host, or between two ranks by a ring.
    today = [create(name).wire_bytes(LAYOUT, 2, rank, 4) for rank in range(2)]
    summary = read_back(tmp_path, 1, name, [4 * PARAMETERS] * 2, device="cpu")
    assert summary["wire_bytes_per_rank"] == today
    assert "messages_per_rank" not in summary


@pytest.mark.parametrize(
    ("name", "counted", "today"), [("mpi", 400, 1200), ("mpi_one_bit", 36, 108), ("ring", 400, 400)]
)
def test_copies_that_gpus_need_are_added_on_gpus_alone(tmp_path, name, counted, today):
    assert read_back(tmp_path, 1, name, [counted] * 2)["wire_bytes_per_rank"] == [today] * 2
    on_cpus = read_back(tmp_path, 1, name, [counted] * 2, device="cpu")
    assert on_cpus["wire_bytes_per_rank"] == [counted] * 2
    assert on_cpus["messages_per_rank"] == [1, 1]


@pytest.mark.parametrize("name", ["tf_spec", "my_module:Mine", "a_plugin"])
def test_what_cannot_be_known_is_dropped_and_not_mixed(tmp_path, name):
    summary = read_back(tmp_path, 1, name, [500, 400])
    assert "wire_bytes_per_rank" not in summary
    assert summary["num_parameters"] == PARAMETERS


def test_without_the_number_of_parameters_there_is_nothing_to_go_by(tmp_path):
    assert "wire_bytes_per_rank" not in read_back(tmp_path, 1, "mpi", [400] * 2, num_parameters=None)


def test_messages_that_were_reduced_on_the_device_came_from_no_host(tmp_path):
    summary = read_back(tmp_path, 1, "cntk_32bit", [400] * 2, transport="device")
    assert summary["wire_bytes_per_rank"] == [400] * 2


def test_nothing_sent_stays_nothing(tmp_path):
    assert read_back(tmp_path, 1, "tf_spec", [0])["wire_bytes_per_rank"] == [0]


@pytest.mark.parametrize("name", ["host_parallel", "tf_spec", "my_module:Mine", "mpi"])
def test_records_of_today_are_left_alone(tmp_path, name):
    summary = read_back(tmp_path, 2, name, [500, 400])
    assert summary["wire_bytes_per_rank"] == [500, 400]
    assert summary["messages_per_rank"] == [1, 1]


@pytest.mark.parametrize(
    ("summary", "reason", "kind"),
    [
        ({"failure_kind": "error"}, "rank 0: ValueError: no memory of it", "error"),
        ({}, "rank 1: out of memory: tried to allocate 2 GiB", "out_of_memory"),
        ({}, "rank 0: RuntimeError: CUDA error: an illegal address", "device_lost"),
        ({}, "rank 0: ValueError: no such algorithm", "error"),
        ({}, None, "error"),
    ],
)
def test_kind_of_a_failure_is_recorded_and_of_older_runs_follows_from_the_reason(summary, reason, kind):
    assert failure_kind(summary, reason) == kind


@pytest.mark.parametrize("version", [1, 2])
def test_replicate_of_an_a_a_pair_had_another_name(tmp_path, version):
    folder = ResultsFolder(tmp_path)
    folder.write_run(RunRecord("abc", 0, {"kind": "own", "device": "cpu", "world_size": 2, "twin": 1}))
    path = tmp_path / "runs" / "abc" / "0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    assert folder.run("abc", 0).cell["aa_replicate"] == 1
    assert "twin" not in folder.run("abc", 0).cell


def test_profiled_iterations_had_another_name(tmp_path):
    folder = ResultsFolder(tmp_path)
    cell = {"kind": "own", "device": "cpu", "world_size": 2, "split_iterations": 7}
    folder.write_study({"name": "s", "parts": [{"kind": "iteration", "split_iterations": 7}]})
    folder.write_run(RunRecord("abc", 0, cell, schema_version=3))
    assert folder.run("abc", 0).cell["profiled_iterations"] == 7
    assert folder.study()["parts"] == [{"kind": "iteration", "profiled_iterations": 7}]


def test_profiled_iterations_had_another_name_in_samples_seconds_and_launch_times(tmp_path):
    folder = ResultsFolder(tmp_path)
    cell = {"kind": "own", "device": "cpu", "world_size": 1}
    seconds = {"setup": 1.0, "unsplit": 3.0, "split": 0.5}
    folder.write_run(RunRecord("abc", 0, cell, "done", summary={"seconds": seconds}, schema_version=5))
    folder.sample_writer("abc", 0, 0)([{"iteration": 0, "split": True}, {"iteration": 1}])
    folder.write_launch_times({"cells": [{"cell_id": "abc", "unsplit_s": 3.0, "split_s": 0.5}]})
    assert folder.run("abc", 0).summary["seconds"] == {"setup": 1.0, "unprofiled": 3.0, "profiled": 0.5}
    assert folder.samples("abc", 0) == [[{"iteration": 0, "profiled": True}, {"iteration": 1}]]
    (times,) = folder.launch_times()
    assert times["cells"] == [{"cell_id": "abc", "unprofiled_s": 3.0, "profiled_s": 0.5}]


def test_cell_without_labels_has_the_plain_names():
    cell = {"kind": "own", "device": "cpu", "world_size": 1, "model": "mlp", "aggregator_label": "ring(a=1)"}
    values = {"cell_id": "abc", "repeat": 0, "cell": {**cell, "aggregator": "ring"}, "schema_version": 7}
    read = record_from(values).cell
    assert (read["model_label"], read["aggregator_label"]) == ("mlp", "ring(a=1)")
    assert "dataset_label" not in read
