"""How fast a study goes on, from its records and a clock of the test's own; how the wall time divides."""

import json
import platform
from datetime import datetime, timezone

import pytest

from scaling.analysis.progress import progress, wall_time
from scaling.cli.run import _show
from scaling.errors import StoreError
from scaling.report import write_report
from scaling.report.status import describe_status, progress_as_dict, progress_lines, run_name, status_table
from scaling.report.text import text_of
from scaling.store import ResultsFolder, RunRecord


def at(minute, second=0, hour=12):
    return datetime(2026, 1, 1, hour, minute, second, tzinfo=timezone.utc)


@pytest.fixture
def folder(tmp_path):
    made = ResultsFolder(tmp_path)
    made.write_study({"name": "watched"})
    return made


VARIABLES = {
    **{"kind": "iteration", "model": "mlp", "dataset": "digits", "step": "eager", "device": "cpu"},
    **{"scaling": "strong", "local_batch": 32, "global_batch": 64, "learning_rate": 0.1, "momentum": 0.0},
    **{"threads": 1, "seed": 0},
}


def write(folder, number, state, start=None, end=None, *, size=2, repeat=0, reason=None, host=None, **cell):
    launch = {"started_at": start and start.isoformat(), "finished_at": end and end.isoformat(), "host": host}
    launch = {name: value for name, value in launch.items() if value}
    own = {**VARIABLES, "aggregator": "ring", "aggregator_label": "ring", "world_size": size, **cell}
    folder.write_run(RunRecord(f"{number:012x}", repeat, own, state, reason, launch=launch))


def test_rest_is_estimated_by_world_size_with_the_launches_start_up(folder):
    write(folder, 1, "done", at(0), at(1))
    write(folder, 2, "done", at(1), at(2))
    write(folder, 3, "done", at(2), at(5), size=4)
    write(folder, 1, "planned", repeat=1)
    write(folder, 3, "planned", size=4, repeat=1)
    folder.write_launch_times({"start_up_s": 10.0, "total_s": 130.0, "cells": []})
    found = progress(folder, at(6))
    assert found.left_s == pytest.approx(60 + 180 + 2 * 10)
    assert (found.runs_per_hour, found.idle_s, found.is_over) == (pytest.approx(3 / 5 * 60), 60, False)


def test_running_cell_is_named_and_its_time_counts(folder):
    write(folder, 1, "done", at(0), at(2))
    write(folder, 2, "running", at(2), aggregator_label="tree")
    found = progress(folder, at(3))
    ((run, seconds),) = found.running
    assert run_name(run).startswith("tree on 2 workers")
    assert (seconds, found.left_s, found.idle_s) == (60, pytest.approx(60), None)
    assert "now: tree on 2 workers" in "\n".join(progress_lines(found))


@pytest.mark.parametrize("part", ["", ".2"])
def test_what_was_killed_is_not_said_to_run(folder, part):
    write(folder, 1, "done", at(0), at(2))
    write(folder, 2, "running", at(2), host=platform.node(), aggregator_label="tree")
    write(folder, 3, "running", at(2), host="another", aggregator_label="ring")
    with folder.lock(part):
        assert (len(progress(folder, at(3)).running), progress(folder, at(3)).killed) == (2, [])
    found = progress(folder, at(3))
    ((run, seconds),) = found.killed
    assert (run_name(run).startswith("tree on 2 workers"), seconds) == (True, 60)
    ((elsewhere, _),) = found.running
    assert run_name(elsewhere).startswith("ring on 2 workers")
    assert "killed while it ran: tree on 2 workers" in "\n".join(progress_lines(found))
    assert [cell["seconds"] for cell in progress_as_dict(found)["killed"]] == [60]
    assert progress_lines(found)[0] == "1/3 runs over: 1 done, 1 running, 1 killed"


def test_status_calls_a_killed_run_so(study, monkeypatch):
    study.add(["running", "planned"])
    assert [row["state"] for row in status_table(study.folder)] == ["running"]  # on a host called "here"
    monkeypatch.setattr(platform, "node", lambda: "here")
    (row,) = status_table(study.folder)
    assert (row["state"], row["states"]) == ("killed", ["killed", "planned"])
    with study.folder.lock():
        assert [row["state"] for row in status_table(study.folder)] == ["running"]
    assert "2 of 2 runs are left" in describe_status([row])


def test_the_look_at_a_folder_that_others_share_keeps_nobody_out(folder):
    write(folder, 2, "running", at(2), host=platform.node())
    with folder.lock(shared=True):
        ((run, _),) = progress(folder, at(3)).killed
        assert run_name(run).startswith("ring on 2 workers")
        with folder.lock(".2"):
            assert progress(folder, at(3)).killed == []


def test_last_error_is_the_latest_and_nothing_is_left_of_a_finished_study_nor_known_before_the_first(folder):
    write(folder, 1, "planned")
    found = progress(folder, at(0))
    assert (found.runs_per_hour, found.left_s, found.last_error, found.idle_s) == (None, None, None, None)
    assert progress_lines(found) == ["0/1 runs over: 1 planned"]
    write(folder, 1, "failed", at(0), at(1), reason="out of memory")
    write(folder, 2, "failed", at(1), at(2), reason="a worker died")
    found = progress(folder, at(9))
    assert run_name(found.last_error) == "ring on 2 workers, mlp, repeat 0"
    assert (found.last_error.reason, found.is_over, found.left_s) == ("a worker died", True, 0.0)


def test_rate_is_of_this_go_not_of_the_night_between(folder):
    for number, start, end in ((1, at(0, hour=1), at(1, hour=1)), (2, at(0), at(1)), (3, at(1), at(2))):
        write(folder, number, "done", start, end)
    assert progress(folder, at(3)).runs_per_hour == pytest.approx(60)


def test_status_tells_replicates_and_what_else_was_chosen_apart(study):
    for replicate in (0, 1):
        study.add_steps([[0.1] * 3], aggregator="ring", world_size=2, aa_replicate=replicate)
    study.add_steps([[0.1] * 3], aggregator="ring", world_size=2, step="overlapped", bucket_mb=25)
    lines = describe_status(status_table(study.folder)).splitlines()
    assert (len(set(lines)), sum("(A/A replicate)" in line for line in lines)) == (len(lines), 1)
    assert sum("overlapped, 25 MiB" in line or "overlapped" in line for line in lines) == 1


def launch(**changes):
    """A launch of 100 s."""
    times = {"setup_s": 10.0, "warmup_s": 5.0, "unprofiled_s": 20.0, "profiled_s": 10.0, "other_s": 1.0}
    cells = [{"cell_id": "a", **times}] * 2
    return {"world_size": 2, "start_up_s": 15.0, "cells": cells, "total_s": 105.0, **changes}


def test_parts_sum_to_the_total_with_what_a_command_did_outside_and_a_line_tells_shares():
    times = wall_time([launch(), launch(total_s=111.0)])
    parts_s = {"start-up": 30.0, "set-up": 40.0, "warm-up": 20.0, "measuring": 120.0, "other": 6.0}
    assert times.parts_s() == parts_s
    assert sum(parts_s.values()) == times.total_s == 216.0
    said = text_of(wall_time([launch(), launch(total_s=3720.0)]).finding)
    assert said.startswith("wall time 1:03:45 in 2 launches:")
    expected = "wall time 3:52 in 1 launch: start-up 6%, set-up 0%, warm-up 0%, measuring 0%, other 94%"
    assert text_of(wall_time([launch(total_s=232.0, cells=[])]).finding) == expected
    outside = {"command_s": 4.0, "predictions_s": 1.0, "gaps_s": 2.0, "report_s": 8.0}
    times = wall_time([launch()], [outside, {"report_s": 2.0}])
    assert times.total_s == 105.0 + 17.0 == sum(times.parts_s().values())
    assert text_of(times.finding) == (
        "wall time 2:02 in 1 launch: start-up 12%, set-up 16%, warm-up 8%, measuring 49%, command 3%, "
        "predictions 1%, between launches 2%, report 8%, other 0%"
    )


@pytest.mark.parametrize(("times", "total_s", "measuring_s", "other_s"), [
    ({"setup_s": 10.0, "training_s": 70.0, "other_s": 0.0}, 95.0, 70.0, 0.0),
    ({"setup_s": None}, 105.0, 0.0, 90.0),
])  # fmt: skip
def test_a_training_measures_and_cells_without_times_count_as_other(times, total_s, measuring_s, other_s):
    found = wall_time([launch(cells=[{"cell_id": "a", **times}], total_s=total_s)]).parts_s()
    assert (found["measuring"], found["other"]) == (measuring_s, other_s)


@pytest.mark.parametrize("launches", [[], [{"world_size": 2}], [launch(total_s=None)]])
def test_launches_that_wrote_no_time_have_none(launches):
    assert wall_time(launches) is None


@pytest.mark.usefixtures("without_figures")
def test_wall_time_is_in_page_terminal_and_json_and_a_damaged_launch_is_named(study, line, capsys):
    study.add([[[line(0, 1.0)]]])
    study.folder.write_launch_times(launch())
    made = write_report(study.folder)
    shown = "all time 1:45 in 1 launch: start-up 14%, set-up 19%, warm-up 10%, measuring 57%, other 0%"
    assert f"W{shown}." in made.page.read_text()
    assert json.loads(json.dumps(made.as_dict()))["wall_time"]["measuring_s"] == 60.0
    _show(made)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "scaling r" not in line and "Page" not in line) <= 80
    assert f"w{shown}" in " ".join(map(str.strip, lines))
    (study.folder.path / "launches" / "002.json").write_text("{")
    with pytest.raises(StoreError, match=r"launches/002\.json is damaged"):
        write_report(study.folder)
