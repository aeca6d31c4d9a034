"""How an old record becomes one of today, in one module, and what is said of results of older code."""

import ast
import json
from datetime import datetime
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.analysis.candidates import TIME, workloads
from scaling.analysis.columns import is_of_older_code, to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.bucket import BucketLayout
from scaling.report.text import warning_text, warnings_of
from scaling.store import CODE_CHANGES, SCHEMA_VERSION, ResultsFolder, RunRecord, changes_since
from scaling.store import code_changes as module
from scaling.store.code_changes import CodeChange
from scaling.store.failures import failure_kind
from scaling.store.records import record_from
from scaling.store.upgrades import _BACK_FROM_HOST, RENAMED_KEYS
from tests.made import cell_of
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


def test_versions_and_old_names_are_known_in_these_places_alone():
    modules = read_modules(Path(__file__).parents[2])
    known = {name: known_of_versions(module) for name, module in modules.items()}
    assert {name: what for name, what in known.items() if what and not name.startswith(UPGRADES)} == ALLOWED


@pytest.mark.parametrize("source", [
    "def f(run):\n    return run['twin']", "def f(run):\n    return run.schema_version < 3",
    "from scaling.axes import AXES\nnew = [row for row in AXES if row.later]",
])  # fmt: skip
def test_another_place_is_found(source):
    (module,) = planted(scaling__analysis__mine=source).values()
    assert len(known_of_versions(module)) == 1


PARAMETERS = 100
LAYOUT = BucketLayout.of([("weight", (PARAMETERS,))])


def as_of(folder, version, *values, **more):
    """A run's record as it is read today that was written in that version."""
    folder.write_run(RunRecord("abc", 0, *values, **more))
    path = folder.path / "runs" / "abc" / "0" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": version}))
    return folder.run("abc", 0)


def read_back(tmp_path, version, aggregator, counted, device="cuda", num_parameters=PARAMETERS, **parameters):
    """The summary of a run that was recorded in that version."""
    folder = ResultsFolder(tmp_path)
    summary = {"num_parameters": num_parameters, "wire_bytes_per_rank": counted, "messages_per_rank": [1, 1]}
    own = {"aggregator": aggregator, "aggregator_parameters": parameters, "device": device}
    record = as_of(folder, version, {"kind": "own", "world_size": 2, **own}, "done", summary=summary)
    assert (record.schema_version, folder.runs()) == (SCHEMA_VERSION, [record])
    return record.summary


@pytest.mark.parametrize("name", sorted(_BACK_FROM_HOST))
def test_old_count_becomes_what_the_aggregator_states_today(tmp_path, name):
    # Then the gradient's bytes were counted: to the host, or between two ranks by a ring.
    today = [create(name).wire_bytes(LAYOUT, 2, rank, 4) for rank in range(2)]
    summary = read_back(tmp_path, 1, name, [4 * PARAMETERS] * 2, device="cpu")
    assert summary["wire_bytes_per_rank"] == today
    assert "messages_per_rank" not in summary


@pytest.mark.parametrize(("version", "name", "counted", "own", "now"), [
    # Copies that GPUs need are added, on GPUs alone.
    (1, "mpi", [400] * 2, {}, [1200] * 2), (1, "mpi_one_bit", [36] * 2, {}, [108] * 2),
    (1, "ring", [400] * 2, {}, [400] * 2),
    *((1, name, [400] * 2, {"device": "cpu"}, [400] * 2) for name in ("mpi", "mpi_one_bit", "ring")),
    (1, "cntk_32bit", [400] * 2, {"transport": "device"}, [400] * 2),  # reduced there: from no host
    # What cannot be known, or says too little, is dropped and not mixed.
    *((1, name, [500, 400], {}, None) for name in ("tf_spec", "my_module:Mine", "a_plugin")),
    (1, "mpi", [400] * 2, {"num_parameters": None}, None), (1, "tf_spec", [0], {}, [0]),
    # Records of today are left alone.
    *((2, name, [500, 400], {}, [500, 400]) for name in ("mpi", "tf_spec", "my_module:Mine")),
    (2, "host_parallel", [500, 400], {}, [500, 400]),
])  # fmt: skip
def test_count_becomes_that_of_today_or_is_dropped(tmp_path, version, name, counted, own, now):
    summary = read_back(tmp_path, version, name, counted, **own)
    assert summary.get("wire_bytes_per_rank") == now
    assert summary["num_parameters"] == own.get("num_parameters", PARAMETERS)
    if version == 2 or own.get("device") == "cpu":
        assert summary["messages_per_rank"] == [1, 1]


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
    cell = {"kind": "own", "device": "cpu", "world_size": 2, old: 1}
    cell = as_of(ResultsFolder(tmp_path), version, cell).cell
    assert (cell[new], old in cell) == (1, False)


def test_profiled_iterations_had_another_name_in_all_files_and_cells_may_have_no_labels(tmp_path):
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
    cell = {"kind": "own", "device": "cpu", "world_size": 1, "model": "mlp", "aggregator_label": "ring(a=1)"}
    values = {"cell_id": "abc", "repeat": 0, "cell": {**cell, "aggregator": "ring"}, "schema_version": 7}
    read = record_from(values).cell
    assert (read["model_label"], read["aggregator_label"]) == ("mlp", "ring(a=1)")
    assert "dataset_label" not in read


FIRST = CodeChange("2026-01-10T00:00:00+00:00", "rings turn the other way", ("ring",), ("cuda",))
SECOND = CodeChange("2026-02-10T00:00:00+00:00", "trees are taller", ("tree", "ring"))


@pytest.fixture(autouse=True)
def two_changes(monkeypatch):
    monkeypatch.setattr(module, "CODE_CHANGES", (FIRST, SECOND))


def record(aggregator="ring", device="cuda", **launch):
    return RunRecord("abc", 0, {"aggregator": aggregator, "device": device}, "done", launch=launch)


@pytest.mark.parametrize(("run", "expected"), [
    (record(code_changes=0), [FIRST, SECOND]),
    (record(code_changes=1), [SECOND]),
    (record(code_changes=2), []),
    (record(finished_at="2026-01-09T23:59:59+00:00"), [FIRST, SECOND]),
    (record(finished_at="2026-01-10T00:00:00+00:00"), [SECOND]),
    (record(finished_at="2026-03-01T00:00:00+00:00"), []),
    # What a run recorded goes before its date: a clock may be wrong.
    (record(code_changes=2, finished_at="2020-01-01T00:00:00+00:00"), []),
    (record(code_changes=0, device="cpu"), [SECOND]),
    (record("tree", code_changes=0), [SECOND]),
    (record("all_reduce", code_changes=0), []),
    (record(), []),
    (record(code_changes="many"), []),
])  # fmt: skip
def test_changes_that_concern_a_run_are_those_it_was_not_measured_with(run, expected):
    assert list(changes_since(run)) == expected


def test_runs_record_the_changes_that_they_are_measured_with_which_are_in_the_order_of_dates(tmp_path):
    folder = ResultsFolder(tmp_path)
    run = RunRecord("abc", 0, {"kind": "own", "device": "cpu", "world_size": 2})
    folder.start_run(run, {"launcher": "local"})
    launch = json.loads((tmp_path / "runs" / "abc" / "0" / "run.json").read_text())["launch"]
    assert launch["code_changes"] == len(CODE_CHANGES)
    made_at = [change.made_at for change in CODE_CHANGES]
    assert made_at == sorted(made_at)
    assert all(datetime.fromisoformat(one).utcoffset().total_seconds() == 0 for one in made_at)
    assert {name for change in CODE_CHANGES for name in change.aggregators} <= set(BUILT_IN)


@pytest.fixture
def measured(tmp_path):
    """measured(launches): rows and cells of a folder with `ring` and `all_reduce`, a repeat a launch each."""

    def make(*launches):
        folder = ResultsFolder(tmp_path / "results")
        folder.write_study({"name": "by-hand"})
        for name in ("ring", "all_reduce"):
            made = cell_of(aggregator=name, device="cuda", peer_access=True, tf32=False)
            cell = {**made.to_dict(), "aggregator_label": name}
            for repeat, launch in enumerate(launches):
                cell_id = f"{name:a>12.12}"
                folder.write_run(RunRecord(cell_id, repeat, cell, "done", launch=launch))
                steps = [{"iteration": i, "warmup": False, "step_s": 0.01} for i in range(12)]
                for rank in range(2):
                    folder.sample_writer(cell_id, repeat, rank)(steps)
        cells = read_cells(folder)
        return to_rows(build_table("by-hand", cells)), cells

    return make


def test_older_code_is_named_wherever_the_cell_is(measured):
    rows, cells = measured({"code_changes": 1})
    (group,) = group_rows(rows)
    assert [group.name(row) for row in rows] == ["all_reduce", "ring, older code"]
    assert [is_of_older_code(row) for row in rows] == [False, True] == [bool(row["warnings"]) for row in rows]
    (warning,) = rows[1]["warnings"]
    text = "older code: measured before 2026-02-10 00:00 UTC; since then trees are taller"
    assert warning_text(warning) == text
    (workload,) = workloads(TIME, rows, cells)
    names = {"all_reduce on 2 GPUs", "ring on 2 GPUs, older code"}
    assert {one.name for one in workload.candidates} == names


def test_group_s_warning_names_the_aggregator_with_its_numbers_of_workers(measured):
    rows, _ = measured({"code_changes": 1})
    rows += [{**row, "world_size": 4} for row in rows]
    (group,) = group_rows(rows)
    text = "ring (2 and 4 GPUs): measured with older code; since then trees are taller"
    assert warnings_of(group) == [text]


def test_repeats_from_before_and_after_a_change_are_counted(measured):
    rows, _ = measured({"code_changes": 1}, {"code_changes": 2}, {"code_changes": 2})
    (warning,) = rows[1]["warnings"]
    assert "older code: 1 of 3 repeats measured before" in warning_text(warning)
