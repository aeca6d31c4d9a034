"""How a launch's wall time divides, on a clock that the test moves."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.errors import StoreError
from scaling.store import ResultsFolder
from scaling.store.records import RunRecord
from scaling.study import launches
from scaling.study.launches import (
    COMMAND_VARIABLE,
    STARTED_VARIABLE,
    CommandTimes,
    Launch,
    LaunchTimes,
    Settings,
    checked_by_command,
)
from topologies.detect_host import boot_id

LAUNCH = Launch(Settings(world_size=2, device="cpu", threads=1, peer_access=None), repeat=1, cells=[])
STARTED = {STARTED_VARIABLE: f"{boot_id()} 1000.0"}


class FakeTime:
    """Seconds of the monotonic clock that move when the test says so."""

    def __init__(self) -> None:
        self.now_s = 1007.5


@pytest.fixture
def clock(monkeypatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(launches, "time", SimpleNamespace(monotonic=lambda: fake.now_s))
    return fake


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def test_start_up_is_counted_from_when_the_launcher_was_started(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    times.add("cell", {})
    (written,) = folder.launch_times()
    assert written["start_up_s"] == 7.5
    assert (written["world_size"], written["repeat"]) == (2, 1)
    assert written["settings"] == {
        "world_size": 2,
        "device": "cpu",
        "threads": 1,
        "peer_access": None,
        "variables": [],
        "workers_per_gpu": None,
    }


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="needs Linux's /proc")
def test_start_up_is_counted_from_the_process_itself_where_nobody_says(clock, folder):
    def age_s() -> float:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")

    before_s = age_s()
    LaunchTimes(folder, LAUNCH, {}).add("cell", {})
    (written,) = folder.launch_times()
    assert before_s - 1e-3 <= written["start_up_s"] <= age_s() + 1e-3  # a sum with seconds since the epoch


def test_start_up_is_zero_where_the_system_does_not_say(clock, folder, monkeypatch):
    monkeypatch.setattr(launches, "Path", lambda name: Path("/nowhere") / name.strip("/"))
    LaunchTimes(folder, LAUNCH, {}).add("cell", {})
    assert folder.launch_times()[0]["start_up_s"] == 0


@pytest.mark.parametrize("started", ["another-host 1000.0", "another-host 9000.0", f"{boot_id()} 9000.0"])
def test_clock_of_another_host_is_not_read(clock, folder, monkeypatch, started):
    monkeypatch.setattr(launches, "_process_started", lambda: 1007.0)
    LaunchTimes(folder, LAUNCH, {STARTED_VARIABLE: started}).add("cell", {})
    assert folder.launch_times()[0]["start_up_s"] == (0.5 if "another" in started else 0)


def test_what_could_not_be_read_again_is_not_written(folder):
    with pytest.raises(StoreError, match="total_s"):
        folder.write_launch_times({"total_s": -3599.99}, 1)
    assert folder.launch_times() == []


def test_one_file_is_written_anew_after_each_cell(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    assert folder.launch_times() == []
    for number in range(1, 4):
        clock.now_s += 1
        times.add(f"cell{number}", {"setup": 0.25})
        (written,) = folder.launch_times()
        assert [cell["cell_id"] for cell in written["cells"]] == [f"cell{n}" for n in range(1, number + 1)]


def test_parts_sum_to_the_total(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    for seconds in ({"setup": 1.0, "warmup": 2.0, "unprofiled": 3.0, "profiled": 0.5}, {"setup": 4.0}, {}):
        clock.now_s += 8
        times.add("cell", seconds)
    (written,) = folder.launch_times()
    assert written["cells"][0] == {
        "cell_id": "cell",
        "setup_s": 1.0,
        "warmup_s": 2.0,
        "unprofiled_s": 3.0,
        "profiled_s": 0.5,
        "training_s": 0.0,
        "other_s": 1.5,
    }
    assert [cell["other_s"] for cell in written["cells"]] == [1.5, 4.0, 8.0]
    in_cells = sum(value for cell in written["cells"] for key, value in cell.items() if key != "cell_id")
    assert written["start_up_s"] + in_cells == written["total_s"] == 7.5 + 3 * 8


def test_every_launch_has_a_file_of_its_own(clock, folder):
    for _ in range(2):
        LaunchTimes(folder, LAUNCH, STARTED).add("cell", {})
    assert len(folder.launch_times()) == 2


def test_command_counts_what_is_outside_of_its_launches(clock, folder, monkeypatch):
    monkeypatch.setattr(launches, "_process_started", lambda: 1000.0)
    folder.write_launch_times({"total_s": 500.0})  # of an earlier command
    times = CommandTimes(folder)

    def takes_2_s(launch):
        clock.now_s += 2

    times.predicting(takes_2_s)(LAUNCH)
    clock.now_s += 34
    folder.write_launch_times({"total_s": 30.0})
    times.reporting()
    times.write()
    clock.now_s += 5
    times.write()
    (written,) = folder.launch_times("command-")
    assert written == {"command_s": 7.5, "predictions_s": 2.0, "gaps_s": 4.0, "report_s": 5.0}
    assert len(folder.launch_times()) == 2


def test_command_of_two_environments_counts_the_launches_of_both(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(launches, "_process_started", lambda: 1000.0)
    campaign, *sides = [ResultsFolder(tmp_path / name) for name in ("", "a", "b")]
    times = CommandTimes(campaign, sides)
    clock.now_s += 70
    for side in sides:
        side.write_launch_times({"total_s": 30.0})
    times.reporting()
    times.write()
    (written,) = campaign.launch_times("command-")
    assert written == {"command_s": 7.5, "predictions_s": 0.0, "gaps_s": 10.0, "report_s": 0.0}
    assert [side.launch_times("command-") for side in sides] == [[], []]


@pytest.mark.parametrize(
    ("began", "state", "is_checked"),
    [
        ("2026-01-01T12:00:00+00:00", "done", True),
        ("2026-01-01T12:00:00+00:00", "failed", False),
        ("2026-01-01T12:00:05+00:00", "done", False),  # by another command
        (None, "done", False),  # started by hand
    ],
)
def test_further_repeats_of_one_command_know_that_the_first_was_checked(folder, began, state, is_checked):
    launch = {"started_at": "2026-01-01T12:00:03+00:00"}
    cell = {"kind": "own", "device": "cpu", "world_size": 1}
    folder.write_run(RunRecord("a" * 12, 0, cell, state=state, launch=launch))
    environ = {} if began is None else {COMMAND_VARIABLE: began}
    assert checked_by_command(folder, RunRecord("a" * 12, 1, cell), environ) == is_checked
