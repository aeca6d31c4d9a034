"""The same study under every launcher of one host: same cells, same bits; a fault ends all; it is resumed."""

import signal
from pathlib import Path

import pytest
import yaml

from scaling.analysis import summary_table
from scaling.store import ResultsFolder
from scaling.study.cell import AvailableMachine
from scaling.study.launches import remaining_launches
from scaling.study.resolve import resolve
from scaling.study.schema import parse_study
from tests.end_to_end.conftest import ended_well, trained
from tests.waiting import LIMIT_S, still_there

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def faulty_ones_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


def worker(scaling, launcher, **environment):
    """Two workers that are started by hand."""
    words = ("-m", "scaling.worker", str(scaling.study), "--out", str(scaling.out))
    return launcher.run(2, *words, cwd=scaling.folder, env={**scaling.environment, **environment})


def write_study(scaling, *aggregators, name="tiny", **keys):
    scaling.write(trained(name, batch=100, aggregators=list(aggregators), **keys))


def write_study_that_begins_with(scaling, first, *others):
    """The order of cells is random, but the same for the same name: one is chosen."""
    for number in range(100):
        write_study(scaling, first, *others, name=f"tiny{number}")
        study = parse_study(yaml.safe_load(scaling.study.read_text()), "study")
        study = resolve(study, AvailableMachine(0, 2))
        (launch,) = remaining_launches(ResultsFolder(scaling.out), study)
        if launch.cells[0].aggregator == first:
            return
    raise AssertionError("no name has this order")


def rows_and_losses(scaling):
    """cell -> (its row, rank 0's losses)."""
    rows = summary_table(scaling.results()).to_dict("records")
    assert {row["state"] for row in rows} == {"done"}
    found = {}
    for row in rows:
        epochs = scaling.results().samples(row["cell_id"], 0)[0]
        found[row["cell_id"]] = (row, [loss for epoch in epochs for loss in epoch["step_losses"]])
    return found


SAME_VALUES = ("kind", "model", "aggregator", "world_size", "global_batch", "threads", "wire_bytes_per_rank")


def test_same_cells_and_same_bits_under_every_launcher(scaling, openmpi, system_openmpi, mpich, horovodrun):
    steps = {"aggregators": ["horovod_optimizer"], "step": ["eager", "overlapped"]}
    write_study(scaling, "all_reduce", parts=[{"aggregators": ["all_reduce", "horovod"]}, steps])
    begun = {
        "local": scaling.run_here,
        "torchrun": lambda: scaling.torchrun(2),
        **{one.name: lambda one=one: worker(scaling, one) for one in (openmpi, mpich, horovodrun)},
        "openmpi, Debian's": lambda: worker(scaling, system_openmpi),
    }
    seen = {}
    for name, start in begun.items():
        scaling.out = scaling.folder / name
        done = start()
        assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        seen[name] = rows_and_losses(scaling)
    local = seen["local"]
    assert len(local) == 4
    for name, found in seen.items():
        assert found.keys() == local.keys(), name
        for cell_id, (row, losses) in found.items():
            assert row["launcher"] == name.partition(",")[0]
            assert row.keys() == local[cell_id][0].keys()  # columns
            assert [row[key] for key in SAME_VALUES] == [local[cell_id][0][key] for key in SAME_VALUES]
            assert losses == local[cell_id][1], f"{name}: {row['aggregator']} trains to other bits"
    # Two ranks: however a library adds, there is one order.
    assert len({tuple(losses) for _, losses in local.values()}) == 1


@pytest.mark.usefixtures("named_by_a_study")
def test_rank_that_raises_while_others_wait_in_mpi_ends_all_and_the_rest_is_resumed(scaling, openmpi):
    write_study_that_begins_with(scaling, "faulty_aggregators:RaisesOverMpi", "mpi")
    first = worker(scaling, openmpi, SCALING_CELL_EXIT_LIMIT_S="2")
    assert first.returncode == 75
    assert "a rank did not leave the failed cell in order; the launch is given up" in first.stderr
    assert scaling.states() == {("raises_over_mpi", 2, 0): "failed", ("mpi", 2, 0): "planned"}
    (reason,) = {record.reason for record in scaling.results().runs() if record.state == "failed"}
    assert reason == "rank 1: RuntimeError: planted failure"
    ended_well(worker(scaling, openmpi))
    assert scaling.states()[("mpi", 2, 0)] == "done"


@pytest.mark.usefixtures("named_by_a_study")
def test_rank_that_raises_while_others_wait_in_horovod_ends_the_cell_and_it_starts_anew(scaling, horovodrun):
    write_study_that_begins_with(scaling, "faulty_aggregators:RaisesOverHorovod", "horovod")
    assert worker(scaling, horovodrun).returncode == 1
    assert scaling.states() == {("raises_over_horovod", 2, 0): "failed", ("horovod", 2, 0): "done"}


def test_size_that_the_study_does_not_have_is_one_clear_error(scaling, openmpi):
    write_study(scaling, "all_reduce", world_sizes=[4])
    done = worker(scaling, openmpi)
    assert done.returncode == 2
    assert done.stderr.count("error: study 'tiny' has no cell of world size 2; it has [4]") == 1
    assert not scaling.out.exists()


def test_cells_whose_library_the_launch_lacks_stay_planned_and_another_launch_runs_them(scaling, openmpi):
    write_study(scaling, "all_reduce", "mpi")
    line = "1 run of mpi stays planned, since this launch lacks mpi: it needs mpi4py"
    done = scaling.run_here()
    assert done.returncode == 1, "work is left"
    assert done.stderr.count(line) == 2, "before the launches and after the report"
    assert scaling.states() == {("all_reduce", 2, 0): "done", ("mpi", 2, 0): "planned"}
    by_hand = scaling.torchrun(2)
    assert (by_hand.returncode, line in by_hand.stderr) == (0, True)
    assert "every cell of world size 2 that this launch can run is done or failed" in by_hand.stderr
    ended_well(worker(scaling, openmpi))
    assert set(scaling.states().values()) == {"done"}
    assert scaling.run_here().returncode == 0, "nothing is left"


def test_study_of_which_a_launch_can_run_nothing_is_refused_before_anything_runs(scaling):
    write_study(scaling, "mpi")
    for done in (scaling.run_here(), scaling.torchrun(2)):
        assert done.returncode != 0
        assert "aggregator 'mpi' cannot run in this launch" in done.stderr
        assert "mpirun -np N python -m scaling.worker STUDY" in done.stderr
    assert not scaling.out.exists()


def test_settings_of_horovods_start_are_in_force_and_its_timeline_is_kept(scaling, horovodrun):
    write_study(scaling, {"name": "horovod", "timeline": True, "cycle_time_s": 0.0005})
    ended_well(worker(scaling, horovodrun))
    timeline = yaml.safe_load((scaling.out / "launches" / "horovod-2-0.json").read_text())
    assert any(event.get("args", {}).get("name", "").startswith("allreduce.") for event in timeline)


def test_scaling_run_starts_workers_by_mpirun(scaling, openmpi):
    write_study(scaling, "mpi")
    ended_well(scaling.run_here("--launcher", "mpirun"))
    assert set(scaling.states().values()) == {"done"}
    assert {record.launch["launcher"] for record in scaling.results().runs()} == {"openmpi"}


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_ctrl_c_ends_what_the_launcher_has_started(scaling, openmpi, horovodrun, launcher):
    write_study(scaling, "faulty_aggregators:Slow")
    process = scaling.start("--launcher", launcher)
    scaling.wait_for_worker()
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, stderr
    assert not still_there(scaling.processes)
    assert set(scaling.states().values()) == {"planned"}
