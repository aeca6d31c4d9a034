"""How an old record becomes one of today is in `scaling.store.upgrades` alone."""

import ast
import json
from pathlib import Path

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.store import SCHEMA_VERSION, ResultsFolder, RunRecord
from scaling.store.failures import failure_kind
from scaling.store.records import record_from
from scaling.store.upgrades import _BACK_FROM_HOST, RENAMED_KEYS
from tests.read_imports import Module, planted, read_modules

UPGRADES = "scaling.store.upgrades"
OF_AXES = ("later", "was", "older")

ALLOWED = {
    "scaling.store.records": {"SCHEMA_VERSION", "schema_version"},
    "scaling.store": {"SCHEMA_VERSION"},  # part of the package's interface
    "scaling.store.schemas": {"schema_version"},  # the key of a record
    "scaling.axes": {*OF_AXES, "twin"},
    "scaling.study.cell": {"was", "split_iterations"},  # the identity, which does not change
    # Files with a format of their own, study.yaml among them.
    "scaling.store.folder": {"SCHEMA_VERSION", "schema_version"},
    "scaling.training.checkpoint": {"SCHEMA_VERSION"},
    "scaling.measure.environment": {"schema_version"},
    "scaling.study.prepare": {"schema_version"},
    "scaling.study.schema": {"schema_version"},
    "scaling.attach.records": {"schema_version"},
}
"""Module -> what it knows of versions and old names."""


def known_of_versions(module: Module) -> set[str]:
    """The names of versions, fields of axes about them, and old keys that the module's code has."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    has_axes = {"AXES", "Axis"} & found
    return found & {"SCHEMA_VERSION", "schema_version", *RENAMED_KEYS, *(OF_AXES if has_axes else ())}


@pytest.fixture(scope="module")
def known():
    modules = read_modules(Path(__file__).parents[2])
    names = {name: known_of_versions(module) for name, module in modules.items()}
    return {name: what for name, what in names.items() if what and not name.startswith(UPGRADES)}


def test_versions_and_old_names_are_known_in_these_places_alone(known):
    assert known == ALLOWED


@pytest.mark.parametrize("source", [
    "def f(run):\n    return run['twin']", "def f(run):\n    return run.schema_version < 3",
    "from scaling.axes import AXES\nnew = [row for row in AXES if row.later]",
])  # fmt: skip
def test_another_place_is_found(source):
    (module,) = planted(scaling__analysis__mine=source).values()
    assert len(known_of_versions(module)) == 1


PARAMETERS = 100
LAYOUT = BucketLayout.of([("weight", (PARAMETERS,))])


def read_back(tmp_path, version, aggregator, counted, device="cuda", num_parameters=PARAMETERS, **parameters):
    """The summary of a run that was recorded in that version."""
    folder = ResultsFolder(tmp_path)
    summary = {"num_parameters": num_parameters, "wire_bytes_per_rank": counted, "messages_per_rank": [1, 1]}
    own = {"aggregator": aggregator, "aggregator_parameters": parameters, "device": device}
    folder.write_run(RunRecord("abc", 0, {"kind": "own", "world_size": 2, **own}, "done", summary=summary))
    path = tmp_path / "runs" / "abc" / "0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    record = folder.run("abc", 0)
    assert (record.schema_version, folder.runs()) == (SCHEMA_VERSION, [record])
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
    assert (on_cpus["wire_bytes_per_rank"], on_cpus["messages_per_rank"]) == ([counted] * 2, [1, 1])


@pytest.mark.parametrize("name", ["tf_spec", "my_module:Mine", "a_plugin"])
def test_what_cannot_be_known_is_dropped_and_not_mixed(tmp_path, name):
    summary = read_back(tmp_path, 1, name, [500, 400])
    assert "wire_bytes_per_rank" not in summary
    assert summary["num_parameters"] == PARAMETERS


@pytest.mark.parametrize(("name", "counted", "own", "now"), [
    ("mpi", [400] * 2, {"num_parameters": None}, None),
    ("cntk_32bit", [400] * 2, {"transport": "device"}, [400] * 2),  # reduced there: from no host
    ("tf_spec", [0], {}, [0]),
])  # fmt: skip
def test_count_that_says_too_little_is_dropped_and_one_without_copies_stays(
    tmp_path, name, counted, own, now
):
    assert read_back(tmp_path, 1, name, counted, **own).get("wire_bytes_per_rank") == now


@pytest.mark.parametrize("name", ["host_parallel", "tf_spec", "my_module:Mine", "mpi"])
def test_records_of_today_are_left_alone(tmp_path, name):
    summary = read_back(tmp_path, 2, name, [500, 400])
    assert (summary["wire_bytes_per_rank"], summary["messages_per_rank"]) == ([500, 400], [1, 1])


@pytest.mark.parametrize(("summary", "reason", "kind"), [
    ({"failure_kind": "error"}, "rank 0: ValueError: no memory of it", "error"),
    ({}, "rank 1: out of memory: tried to allocate 2 GiB", "out_of_memory"),
    ({}, "rank 0: RuntimeError: CUDA error: an illegal address", "device_lost"),
    ({}, "rank 0: ValueError: no such algorithm", "error"),
    ({}, None, "error"),
])  # fmt: skip
def test_kind_of_a_failure_is_recorded_and_of_older_runs_follows_from_the_reason(summary, reason, kind):
    assert failure_kind(summary, reason) == kind


@pytest.mark.parametrize(("version", "old", "new"), [
    (1, "twin", "aa_replicate"), (2, "twin", "aa_replicate"), (3, "split_iterations", "profiled_iterations"),
])  # fmt: skip
def test_keys_of_a_cell_had_other_names(tmp_path, version, old, new):
    folder = ResultsFolder(tmp_path)
    folder.write_run(RunRecord("abc", 0, {"kind": "own", "device": "cpu", "world_size": 2, old: 1}))
    path = tmp_path / "runs" / "abc" / "0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    cell = folder.run("abc", 0).cell
    assert (cell[new], old in cell) == (1, False)


def test_profiled_iterations_had_another_name_in_studies_samples_seconds_and_launch_times(tmp_path):
    folder = ResultsFolder(tmp_path)
    cell = {"kind": "own", "device": "cpu", "world_size": 1}
    seconds = {"setup": 1.0, "unsplit": 3.0, "split": 0.5}
    folder.write_study({"name": "s", "parts": [{"kind": "iteration", "split_iterations": 7}]})
    folder.write_run(RunRecord("abc", 0, cell, "done", summary={"seconds": seconds}, schema_version=5))
    folder.sample_writer("abc", 0, 0)([{"iteration": 0, "split": True}, {"iteration": 1}])
    folder.write_launch_times({"cells": [{"cell_id": "abc", "unsplit_s": 3.0, "split_s": 0.5}]})
    assert folder.study()["parts"] == [{"kind": "iteration", "profiled_iterations": 7}]
    assert folder.run("abc", 0).summary["seconds"] == {"setup": 1.0, "unprofiled": 3.0, "profiled": 0.5}
    assert folder.samples("abc", 0) == [[{"iteration": 0, "profiled": True}, {"iteration": 1}]]
    assert folder.launch_times()[0]["cells"] == [{"cell_id": "abc", "unprofiled_s": 3.0, "profiled_s": 0.5}]


def test_cell_without_labels_has_the_plain_names():
    cell = {"kind": "own", "device": "cpu", "world_size": 1, "model": "mlp", "aggregator_label": "ring(a=1)"}
    values = {"cell_id": "abc", "repeat": 0, "cell": {**cell, "aggregator": "ring"}, "schema_version": 7}
    read = record_from(values).cell
    assert (read["model_label"], read["aggregator_label"]) == ("mlp", "ring(a=1)")
    assert "dataset_label" not in read
