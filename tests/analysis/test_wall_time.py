"""How the wall time of launches divides."""

import json

import pytest

from scaling.analysis.progress import wall_time
from scaling.cli.run import _show
from scaling.errors import StoreError
from scaling.report import write_report
from scaling.report.text import text_of


def launch(**changes):
    """A launch of 100 s."""
    times = {"setup_s": 10.0, "warmup_s": 5.0, "unprofiled_s": 20.0, "profiled_s": 10.0, "other_s": 1.0}
    cells = [{"cell_id": "a", **times}] * 2
    return {"world_size": 2, "start_up_s": 15.0, "cells": cells, "total_s": 105.0, **changes}


def test_parts_sum_to_the_total_over_launches_and_cells():
    times = wall_time([launch(), launch(total_s=111.0)])
    parts_s = {"start-up": 30.0, "set-up": 40.0, "warm-up": 20.0, "measuring": 120.0, "other": 6.0}
    assert times.parts_s() == parts_s
    assert sum(parts_s.values()) == times.total_s == 216.0


def test_line_tells_shares_and_number_of_launches():
    expected = "wall time 3:52 in 1 launch: start-up 6%, set-up 0%, warm-up 0%, measuring 0%, other 94%"
    assert text_of(wall_time([launch(total_s=232.0, cells=[])]).finding) == expected
    said = text_of(wall_time([launch(), launch(total_s=3720.0)]).finding)
    assert said.startswith("wall time 1:03:45 in 2 launches:")


def test_what_a_command_did_outside_of_launches_is_accounted_for():
    outside = {"command_s": 4.0, "predictions_s": 1.0, "gaps_s": 2.0, "report_s": 8.0}
    times = wall_time([launch()], [outside, {"report_s": 2.0}])
    assert times.total_s == 105.0 + 17.0 == sum(times.parts_s().values())
    assert text_of(times.finding) == (
        "wall time 2:02 in 1 launch: start-up 12%, set-up 16%, warm-up 8%, measuring 49%, command 3%, "
        "predictions 1%, between launches 2%, report 8%, other 0%"
    )


def test_a_training_measures():
    trained = {"cell_id": "a", "setup_s": 10.0, "training_s": 70.0, "other_s": 0.0}
    assert wall_time([launch(cells=[trained], total_s=95.0)]).measuring_s == 70.0


@pytest.mark.parametrize("launches", [[], [{"world_size": 2}], [launch(total_s=None)]])
def test_launches_that_wrote_no_time_have_none(launches):
    assert wall_time(launches) is None


def test_cells_without_times_count_as_other():
    times = wall_time([launch(cells=[{"cell_id": "a", "setup_s": None}])])
    assert (times.measuring_s, times.other_s) == (0.0, 90.0)


@pytest.fixture
def timed(study, line):
    """A study of one cell and one launch."""
    study.add([[[line(0, 1.0)]]])
    study.folder.write_launch_times(launch())
    return study.folder


@pytest.mark.usefixtures("without_figures")
def test_wall_time_is_in_page_terminal_and_json(timed, capsys):
    made = write_report(timed)
    shown = "all time 1:45 in 1 launch: start-up 14%, set-up 19%, warm-up 10%, measuring 57%, other 0%"
    assert f"W{shown}." in made.page.read_text()
    assert json.loads(json.dumps(made.as_dict()))["wall_time"]["measuring_s"] == 60.0
    _show(made)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "scaling r" not in line and "Page" not in line) <= 80
    assert f"w{shown}" in " ".join(map(str.strip, lines))


def test_damaged_launch_is_an_error_that_names_it(timed):
    (timed.path / "launches" / "002.json").write_text("{")
    with pytest.raises(StoreError, match=r"launches/002\.json is damaged"):
        write_report(timed)
