"""Which launches a study still needs, how the wall time of one divides, and how far a study is."""

import io
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from scaling.errors import StoreError
from scaling.store import ResultsFolder
from scaling.store.records import RunRecord
from scaling.study import launches
from scaling.study.cell import Cell, ResolvedStudy
from scaling.study.kinds import KINDS
from scaling.study.kinds.base import ModelSize
from scaling.study.launches import (
    COMMAND_VARIABLE,
    STARTED_VARIABLE,
    CommandTimes,
    Launch,
    LaunchTimes,
    Settings,
    checked_by_command,
    estimate_seconds,
    hand_over,
    handed_over,
    remaining_launches,
)
from scaling.study.overrides import load_study, shipped_studies
from scaling.study.progress import LineProgress, progress_for, remaining_s
from scaling.study.resolve import resolve
from tests.made import GPUS, cell_of
from topologies.detect_host import boot_id

CELL = cell_of(threads=4, learning_rate=0.01, warmup=10, iterations=50)


def study_of(cells: list[Cell], repeats: int = 1, name: str = "by-hand") -> ResolvedStudy:
    return ResolvedStudy(name, {c.id: repeats for c in cells}, {c.id: c for c in cells}, [])


def seeds(number: int, **changes) -> list[Cell]:
    return [replace(CELL, seed=seed, **changes) for seed in range(number)]


@pytest.fixture
def folder(tmp_path: Path) -> ResultsFolder:
    return ResultsFolder(tmp_path / "results")


def end(folder: ResultsFolder, cell: Cell, repeat: int, state: str) -> None:
    folder.plan_run(cell.id, repeat, cell.to_dict())
    record = folder.run(cell.id, repeat)
    if state != "planned":
        folder.start_run(record, {})
    if state == "done":
        folder.finish_run(record, {})
    if state == "failed":
        folder.fail_run(record, "a reason")


class TestGrouping:
    def test_cells_with_the_same_settings_share_a_launch(self, folder):
        (launch,) = remaining_launches(folder, study_of(seeds(5)))
        assert launch.settings == Settings(world_size=2, device="cpu", threads=4, peer_access=None)
        assert {cell.seed for cell in launch.cells} == set(range(5))
        assert launch.repeat == 0

    @pytest.mark.parametrize(("changes", "num_launches"), [
        *(({name: value}, 2) for name, value in
          (("world_size", 4), ("device", "cuda"), ("threads", 2), ("peer_access", False))),
        *(({name: value}, 1) for name, value in
          (("aggregator", "tree"), ("global_batch", 32), ("kind", "convergence"), ("tf32", True))),
        # Settings of a library's start separate launches, what is left to it does not.
        ({"aggregator": "horovod", "aggregator_parameters": {"cycle_time_s": 0.0005}}, 2),
        ({"aggregator": "horovod", "aggregator_parameters": {"compression": "fp16"}}, 1),
    ])  # fmt: skip
    def test_what_is_fixed_at_start_up_separates_them_and_nothing_else(self, folder, changes, num_launches):
        cells = [CELL, replace(CELL, **changes)]
        launches = remaining_launches(folder, study_of(cells))
        assert [len(launch.cells) for launch in launches] == [2 // num_launches] * num_launches
        assert len({launch.settings for launch in launches}) == num_launches
        if "cycle_time_s" in str(changes):
            assert [one.settings.variables for one in launches] == [(), (("HOROVOD_CYCLE_TIME", "0.5"),)]

    def test_every_repeat_is_a_launch_of_its_own_and_first_ones_come_first(self, folder):
        study = study_of([*seeds(2), *seeds(2, world_size=1)], repeats=3)
        launches = remaining_launches(folder, study)
        assert [launch.repeat for launch in launches] == [0, 0, 1, 1, 2, 2]
        assert all(len(launch.cells) == 2 for launch in launches)

    def test_cell_is_only_in_as_many_repeats_as_it_asks_for(self, folder):
        once, twice = seeds(2)
        study = ResolvedStudy("by-hand", {once.id: 1, twice.id: 2}, {once.id: once, twice.id: twice}, [])
        first, second = remaining_launches(folder, study)
        assert len(first.cells) == 2
        assert second.cells == [twice]


def test_order_is_random_and_that_of_the_study_the_repeat_and_the_settings(folder):
    orders = []
    for name in ("by-hand", "other"):
        found = remaining_launches(folder, study_of(seeds(20), 2, name))
        assert found == remaining_launches(folder, study_of(seeds(20), 2, name))
        orders += [[cell.seed for cell in launch.cells] for launch in found]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(20)]}) == 5


@pytest.mark.parametrize(("ended", "repeats", "left"), [
    (None, 1, [0]), ((CELL, "planned"), 1, [0]), ((CELL, "running"), 1, [0]),
    ((CELL, "done"), 1, []), ((CELL, "failed"), 1, []), ((CELL, "done"), 2, [1]),
    ((replace(CELL, seed=99), "planned"), 1, [0]),  # of a cell that is not asked for
])  # fmt: skip
def test_runs_that_are_done_or_failed_are_skipped_and_no_others(folder, ended, repeats, left):
    if ended:
        end(folder, ended[0], 0, ended[1])
    launches = remaining_launches(folder, study_of([CELL], repeats))
    assert [(launch.repeat, launch.cells) for launch in launches] == [(repeat, [CELL]) for repeat in left]
    assert remaining_launches(folder, study_of([])) == []


class TestEstimate:
    def seconds(self, folder: ResultsFolder, cells: list[Cell], num_parameters: int = 10**6) -> float:
        (launch,) = remaining_launches(folder, study_of(cells))
        return estimate_seconds(launch, {cell.id: ModelSize(num_parameters) for cell in cells}, num_cores=8)

    def test_grows_with_cells_iterations_and_parameters(self, folder):
        one = self.seconds(folder, seeds(1))
        assert self.seconds(folder, seeds(2)) > one
        assert self.seconds(folder, [replace(CELL, iterations=500)]) > one
        assert self.seconds(folder, seeds(1), num_parameters=10**8) > one
        many, few = (replace(CELL, world_size=size, threads=threads) for size, threads in ((8, 8), (2, 4)))
        assert self.seconds(folder, [many]) >= self.seconds(folder, [few]), "no faster than the cores"

    def test_budget_bounds_it(self, folder):
        slow = replace(CELL, iterations=10**6)
        bounded = replace(slow, max_seconds=5.0)
        overhead = self.seconds(folder, [replace(CELL, iterations=1, warmup=1)])
        most = overhead + 1.5 * 5  # split iterations may take half as long again
        assert self.seconds(folder, [bounded]) <= most
        assert self.seconds(folder, [slow]) > most

    @pytest.mark.parametrize(("profiled", "steps"), [(None, 110), (0, 110), (5, 115)])
    def test_steps_are_those_of_warm_up_timing_and_profiling(self, profiled, steps):
        cell = replace(CELL, warmup=10, iterations=100, precision_goal=None, profiled_iterations=profiled)
        assert KINDS["iteration"].steps_s(cell, 0.01) == pytest.approx(0.01 * steps)

    def test_epochs_count_in_a_convergence_cell(self, folder):
        def epochs(number: int) -> float:
            cell = replace(CELL, kind="convergence", warmup=None, iterations=None, epochs=number)
            return self.seconds(folder, [cell])

        assert epochs(3) - epochs(2) == pytest.approx(epochs(2) - epochs(1))
        assert epochs(2) > epochs(1)


@pytest.mark.parametrize("name", sorted(set(shipped_studies()) - {"attached"}))
def test_workers_are_told_the_very_launches(tmp_path, name):
    study = resolve(load_study(name), GPUS)
    launches_of = {launch.settings: launch for launch in remaining_launches(ResultsFolder(tmp_path), study)}
    for settings, launch in launches_of.items():
        short = Launch(settings, 0, launch.cells[:20])
        assert handed_over(hand_over(short, 30.0)) == (short, 30.0)
    assert handed_over({}) is None


def test_launch_that_no_variable_holds_is_resolved_by_its_workers():
    long = [replace(CELL, aggregator_parameters={"seed": os.urandom(2000).hex()}) for _ in range(60)]
    assert hand_over(Launch(Settings.of(CELL), 0, long), 30.0) == {}


LAUNCH = Launch(Settings(world_size=2, device="cpu", threads=1, peer_access=None), repeat=1, cells=[])
STARTED = {STARTED_VARIABLE: f"{boot_id()} 1000.0"}


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    fake = SimpleNamespace(now_s=1007.5)
    monkeypatch.setattr(launches, "time", SimpleNamespace(monotonic=lambda: fake.now_s))
    return fake


def test_start_up_is_counted_from_when_the_launcher_was_started(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    times.add("cell", {})
    (written,) = folder.launch_times()
    assert written["start_up_s"] == 7.5
    assert (written["world_size"], written["repeat"]) == (2, 1)
    settings = {"world_size": 2, "device": "cpu", "threads": 1, "peer_access": None}
    assert written["settings"] == {**settings, "variables": [], "workers_per_gpu": None}


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="needs Linux's /proc")
def test_start_up_is_counted_from_the_process_itself_where_nobody_says(clock, folder):
    def age_s() -> float:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")

    before_s = age_s()
    LaunchTimes(folder, LAUNCH, {}).add("cell", {})
    (written,) = folder.launch_times()
    assert before_s - 1e-3 <= written["start_up_s"] <= age_s() + 1e-3  # a sum with seconds since the epoch


@pytest.mark.parametrize("started", ["another-host 1000.0", "another-host 9000.0", f"{boot_id()} 9000.0"])
def test_clock_of_another_host_is_not_read(clock, folder, monkeypatch, started):
    monkeypatch.setattr(launches, "_process_started", lambda: 1007.0)
    LaunchTimes(folder, LAUNCH, {STARTED_VARIABLE: started}).add("cell", {})
    assert folder.launch_times()[0]["start_up_s"] == (0.5 if "another" in started else 0)


def test_start_up_is_zero_where_the_system_does_not_say(clock, folder, monkeypatch):
    monkeypatch.setattr(launches, "Path", lambda name: Path("/nowhere") / name.strip("/"))
    LaunchTimes(folder, LAUNCH, {}).add("cell", {})
    assert folder.launch_times()[0]["start_up_s"] == 0


def test_what_could_not_be_read_again_is_not_written(folder):
    with pytest.raises(StoreError, match="total_s"):
        folder.write_launch_times({"total_s": -3599.99}, 1)
    assert folder.launch_times() == []


def test_one_file_of_each_launch_is_written_anew_after_each_cell(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    assert folder.launch_times() == []
    for number in range(1, 4):
        clock.now_s += 1
        times.add(f"cell{number}", {"setup": 0.25})
        (written,) = folder.launch_times()
        assert [cell["cell_id"] for cell in written["cells"]] == [f"cell{n}" for n in range(1, number + 1)]
    LaunchTimes(folder, LAUNCH, STARTED).add("cell", {})
    assert len(folder.launch_times()) == 2


def test_parts_sum_to_the_total(clock, folder):
    times = LaunchTimes(folder, LAUNCH, STARTED)
    for seconds in ({"setup": 1.0, "warmup": 2.0, "unprofiled": 3.0, "profiled": 0.5}, {"setup": 4.0}, {}):
        clock.now_s += 8
        times.add("cell", seconds)
    (written,) = folder.launch_times()
    parts = {"setup_s": 1.0, "warmup_s": 2.0, "unprofiled_s": 3.0, "profiled_s": 0.5, "training_s": 0.0}
    assert written["cells"][0] == {"cell_id": "cell", **parts, "other_s": 1.5}
    assert [cell["other_s"] for cell in written["cells"]] == [1.5, 4.0, 8.0]
    in_cells = sum(value for cell in written["cells"] for key, value in cell.items() if key != "cell_id")
    assert written["start_up_s"] + in_cells == written["total_s"] == 7.5 + 3 * 8


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


@pytest.mark.parametrize(("began", "state", "is_checked"), [
    ("2026-01-01T12:00:00+00:00", "done", True), ("2026-01-01T12:00:00+00:00", "failed", False),
    ("2026-01-01T12:00:05+00:00", "done", False),  # by another command
    (None, "done", False),  # started by hand
])  # fmt: skip
def test_further_repeats_of_one_command_know_that_the_first_was_checked(folder, began, state, is_checked):
    launch = {"started_at": "2026-01-01T12:00:03+00:00"}
    cell = {"kind": "own", "device": "cpu", "world_size": 1}
    folder.write_run(RunRecord("a" * 12, 0, cell, state=state, launch=launch))
    environ = {} if began is None else {COMMAND_VARIABLE: began}
    assert checked_by_command(folder, RunRecord("a" * 12, 1, cell), environ) == is_checked


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def progress(stream: io.StringIO, clock: SimpleNamespace) -> LineProgress:
    return LineProgress(stream, lambda: clock.now_s)


@pytest.mark.parametrize(("num_done", "num_left", "seconds"), [(3, 2, 40), (0, 2, None), (3, 0, 0)])
def test_rest_takes_as_long_per_run_as_what_is_done_in_a_minute(num_done, num_left, seconds):
    assert remaining_s(60, num_done, num_left) == seconds


class TestLines:
    def test_line_comes_every_half_minute(self, progress, stream, clock):
        for _ in range(120):
            progress.update(0, 10, "2 workers")
            clock.now_s += 1
        assert stream.getvalue().splitlines() == ["0/10 runs, 2 workers, unknown time left"] * 3

    @pytest.mark.parametrize(("before", "after", "total", "took_s", "said"), [
        (0, 4, 10, 90, "4/10 runs, 2 workers: mlp, ring, 2:15 left"),
        (6, 8, 10, 40, "8/10 runs, 2 workers: mlp, ring, 0:40 left"),  # no pace of what was over at the start
        (0, 1, 3, 3605, "1/3 runs, 2 workers: mlp, ring, 120:10 left"),  # hours are minutes
    ])  # fmt: skip
    def test_line_says_what_is_under_way_and_how_long_it_will_take(
        self, progress, stream, clock, before, after, total, took_s, said
    ):
        progress.update(before, total, "2 workers: mlp, ring")
        clock.now_s += took_s
        progress.update(after, total, "2 workers: mlp, ring")
        assert stream.getvalue() == f"{said}\n"

    def test_what_a_person_should_read_comes_at_once(self, progress, stream):
        progress.say("launch of 2 workers ended with exit code 1")
        assert stream.getvalue() == "launch of 2 workers ended with exit code 1\n"


def test_stream_that_is_no_terminal_gets_lines(stream):
    with progress_for(stream) as progress:
        assert isinstance(progress, LineProgress)


def test_terminal_gets_a_bar_that_takes_the_same_calls(monkeypatch, stream):
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with progress_for(stream) as progress:
        progress.update(0, 4, "2 workers")
        progress.update(2, 4, "2 workers")
        progress.say("[rank0]: no such file [/tmp/x]")
    assert "[rank0]: no such file [/tmp/x]" in stream.getvalue()
    assert "2/4" in stream.getvalue()
