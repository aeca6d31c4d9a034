"""Results from before a change of the code are named so, and no others."""

import json
from datetime import datetime

import pytest

from scaling.aggregators.registry import BUILT_IN
from scaling.analysis.candidates import TIME, workloads
from scaling.analysis.columns import is_of_older_code, to_rows
from scaling.analysis.groups import group_rows
from scaling.analysis.samples import read_cells
from scaling.analysis.summary import build_table
from scaling.report.text import warning_text, warnings_of
from scaling.store import CODE_CHANGES, ResultsFolder, RunRecord, changes_since
from scaling.store import code_changes as module
from scaling.store.code_changes import CodeChange
from tests.made import cell_of

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


def test_runs_record_the_changes_that_they_are_measured_with(tmp_path):
    folder = ResultsFolder(tmp_path)
    run = RunRecord("abc", 0, {"kind": "own", "device": "cpu", "world_size": 2})
    folder.start_run(run, {"launcher": "local"})
    launch = json.loads((tmp_path / "runs" / "abc" / "0" / "run.json").read_text())["launch"]
    assert launch["code_changes"] == len(CODE_CHANGES)


def test_changes_are_in_the_order_of_their_dates_and_name_aggregators_that_there_are():
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
