"""`scaling run` and hand-started workers, end to end on CPU processes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from tests.end_to_end.conftest import SYNTHETIC, ended_well
from tests.waiting import LIMIT_S, still_there, wait_until
from topologies.detect_host import boot_id

pytestmark = pytest.mark.processes

HERE = [
    name
    for name in BUILT_IN
    if create(name).library is None
    if not (create(name).overlapped_only or create(name).releases_gradients or name == "one_bit_adam")
]
"""Those that a few steps in `eager` can have: one_bit_adam compresses after its first hundred."""

FEW = {"warmup": 1, "iterations": 6, "precision_goal": None, "profiled_iterations": 2, "noise_pair": False}

DIGITS = {"model": "mlp", "dataset": "digits", "global_batch": 100, "learning_rate": 0.05}
SLOW = "faulty_aggregators:Slow"


def write_study(scaling, aggregators, world_sizes=(2,), kind="iteration", **keys):
    few = {**FEW, "workloads": [SYNTHETIC]} if kind == "iteration" else {"workloads": [DIGITS]}
    made = {"name": "test", "kind": kind, "device": "cpu", "scaling": "strong", **few, **keys}
    scaling.write({**made, "aggregators": list(aggregators), "world_sizes": list(world_sizes)})


def has_ended(process, code):
    """What it said, having ended with that code."""
    _, stderr = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code, stderr
    return stderr


def test_study_is_run_reported_and_not_measured_twice(scaling):
    timed = {"kind": "iteration", "workloads": [SYNTHETIC], "momentum": 0.0, **FEW}
    parts = [
        {**timed, "aggregators": HERE, "world_sizes": [2]},
        {**timed, "aggregators": ["none", "ring"], "world_sizes": [1]},
        {"kind": "convergence", "workloads": [DIGITS], "aggregators": ["ring"], "epochs": 8},
    ]
    common = {"name": "test", "device": "cpu", "world_sizes": [1, 2], "scaling": "strong"}
    scaling.write({**common, "parts": parts})
    ended_well(scaling.run_here())

    rows = scaling.rows()
    measured = {(row["aggregator"], int(row["world_size"])) for row in rows if row["kind"] == "iteration"}
    assert measured == {(create(name).label(), 2) for name in HERE} | {("none", 1), ("ring", 1)}
    assert all(row["state"] == "done" and row["launcher"] == "local" for row in rows)
    assert all(float(row["final_test_accuracy"]) > 0.9 for row in rows if row["kind"] == "convergence")
    none = [row for row in rows if row["aggregator"] == "none" and row["world_size"] == "1"]
    assert [float(row["speedup"]) for row in none] == [1.0]
    assert (scaling.out / "report.html").stat().st_size > 10_000
    assert json.loads((scaling.out / "environment.json").read_text())["versions"]["torch"]
    assert (scaling.out / "topology.yaml").exists()

    before = scaling.samples()
    ended_well(scaling.run_here())
    assert scaling.samples() == before


def test_exact_losses_are_the_same_bits_in_another_process_run(scaling):
    exact = ["all_reduce", "ring", "tree", "host_serial", "host_parallel"]
    write_study(scaling, exact, kind="convergence", epochs=2, repeats=2)
    ended_well(scaling.run())
    losses = {}
    for record in scaling.results().runs():
        rows = scaling.results().samples(record.cell_id, record.repeat)[0]
        bits = [loss for row in rows for loss in row["step_losses"]]
        losses.setdefault(record.cell["aggregator_label"], []).append(bits)
    for label, (one, other) in losses.items():
        assert one == other, label


def test_failing_cells_are_recorded_and_the_others_finish_in_the_same_launch(scaling):
    faulty = ["faulty_aggregators:Raises", "faulty_aggregators:OutOfMemory"]
    write_study(scaling, [*faulty, "all_reduce", "ring"])
    outcome = scaling.run_here()
    assert (outcome.returncode, "Traceback" in outcome.stderr) == (1, False)
    records = {record.cell["aggregator_label"]: record for record in scaling.results().runs()}
    states = {"raises": "failed", "out_of_memory": "failed", "all_reduce": "done", "ring": "done"}
    assert {label: record.state for label, record in records.items()} == states
    assert records["raises"].reason == "rank 1: RuntimeError: planted failure"
    assert "out of memory: tried to allocate too much" in records["out_of_memory"].reason
    assert len(list((scaling.out / "launches").glob("*.log"))) == 1

    assert scaling.run_here().returncode == 1
    assert len(list((scaling.out / "launches").glob("*.log"))) == 1, "failed cells are left alone"
    retried = scaling.run_here("--retry-failed")
    assert (retried.returncode, len(list((scaling.out / "launches").glob("*.log")))) == (1, 2)


@pytest.mark.parametrize("kind", ["iteration", "convergence"])
def test_wrong_means_and_replicas_that_drift_apart_fail_and_say_where(scaling, kind):
    faulty = [f"faulty_aggregators:{name}" for name in ("SevenTimes", "StopsExchanging", "RoundsOnRank1")]
    few = {"iterations": 30} if kind == "iteration" else {"epochs": 4}
    write_study(scaling, [*faulty, "ring", "sign"], kind=kind, **few)
    assert scaling.run_here().returncode == 1
    records = {record.cell["aggregator_label"]: record for record in scaling.results().runs()}
    reasons = {label: record.reason or "" for label, record in records.items()}
    assert "7 times it" in reasons["seven_times"]
    assert "lossy = True" in reasons["seven_times"]
    for label in ("stops_exchanging", "rounds_on_rank_1"):
        assert "the replicas have drifted apart: in " in reasons[label]
        assert "rank 1 differs from rank 0 by up to" in reasons[label]
    assert records["ring"].summary["checks"]["exchange"] == "exact mean"
    assert records["ring"].summary["checks"]["steps"] >= 2  # a slow machine checks fewer
    assert records["sign"].summary["checks"]["exchange"] == "error bound"


def test_rank_that_does_not_leave_a_failed_cell_costs_the_launch_not_the_study(scaling):
    write_study(scaling, ["faulty_aggregators:Hangs", "all_reduce", "ring", "tree"])
    assert scaling.run_here(SCALING_CELL_EXIT_LIMIT_S="2").returncode == 1
    states = scaling.states()
    assert (states.pop(("hangs", 2, 0)), set(states.values())) == ("failed", {"done"})
    reason = next(r.reason for r in scaling.results().runs() if r.state == "failed")
    assert reason == "rank 1: RuntimeError: planted failure"


def test_cell_whose_worker_dies_twice_fails_and_the_others_finish(scaling):
    write_study(scaling, ["faulty_aggregators:Dies", "all_reduce", "ring"])
    assert scaling.run_here().returncode == 1
    states = scaling.states()
    assert (states.pop(("dies", 2, 0)), set(states.values())) == ("failed", {"done"})
    record = next(r for r in scaling.results().runs() if r.state == "failed")
    assert (record.deaths, "a worker died 2 times" in record.reason) == (2, True)


def test_killed_worker_loses_nothing_and_nothing_is_measured_twice(scaling):
    write_study(scaling, [SLOW, "all_reduce", "ring"], repeats=2)
    process = scaling.start()
    os.kill(scaling.wait_for_worker(), signal.SIGKILL)
    has_ended(process, 0)
    ended_well(scaling.run_here())
    assert set(scaling.states().values()) == {"done"}
    for record in scaling.results().runs():
        for rows in scaling.results().samples(record.cell_id, record.repeat):
            assert [row["iteration"] for row in rows] == list(range(len(rows)))
            assert sum(not row["warmup"] and not row["profiled"] for row in rows) == FEW["iterations"]


def test_killed_zygote_loses_nothing(scaling):
    write_study(scaling, [SLOW, "all_reduce"])
    process = scaling.start()
    os.kill(parent(parent(scaling.wait_for_worker())), signal.SIGKILL)
    assert "a run was cut off: the zygote" in has_ended(process, 0)
    assert set(scaling.states().values()) == {"done"}


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_everything_killed_is_finished_by_the_same_command(scaling):
    write_study(scaling, [SLOW, "all_reduce", "ring"])
    process = scaling.start()
    scaling.wait_for_worker()
    process.kill()
    process.wait(LIMIT_S)
    wait_until(lambda: not scaling.processes())  # the workers do not outlive the command
    before = {key: text for key, text in scaling.samples().items() if "attempt" not in key}
    ended_well(scaling.run_here())
    assert set(scaling.states().values()) == {"done"}
    assert all(record.deaths == 0 for record in scaling.results().runs())
    assert {str(p) for p in map(str, before)} & set(scaling.samples()) == set(before)


def test_ctrl_c_keeps_what_is_finished_and_the_same_command_goes_on(scaling):
    write_study(scaling, [SLOW, "all_reduce", "ring"])
    process = scaling.start()
    scaling.wait_for_worker()
    process.send_signal(signal.SIGINT)
    stderr = has_ended(process, 130)
    assert "the same command goes on" in stderr
    assert ("report of what is done" in stderr, "Traceback" in stderr) == (True, False)
    assert not still_there(scaling.processes)
    assert "running" not in scaling.states().values()
    kept = scaling.samples()
    ended_well(scaling.run_here())
    finished = scaling.samples()
    assert all(finished[key] == text for key, text in kept.items() if key in finished)


def test_second_ctrl_c_leaves_no_process_either(scaling):
    write_study(scaling, [SLOW, "all_reduce"])
    process = scaling.start()
    os.kill(scaling.wait_for_worker(), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # the first one is heard
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=LIMIT_S)
    # The interpreter, on its way out, leaves the second signal to the system.
    assert process.returncode in (130, -signal.SIGINT), stderr
    assert not still_there(scaling.processes)


def test_torchrun_can_start_the_workers(scaling):
    write_study(scaling, ["none"], world_sizes=(1,))
    ended_well(scaling.run_here("--launcher", "torchrun"))
    assert {record.launch["launcher"] for record in scaling.results().runs()} == {"torchrun"}


def test_hand_written_torchrun_runs_its_own_world_size_and_leaves_the_rest(scaling):
    write_study(scaling, ["none", "ring"], world_sizes=(2, 4))
    ended_well(scaling.torchrun(2))
    states = scaling.states()
    assert {state for (_, size, _), state in states.items() if size == 2} == {"done"}
    assert {state for (_, size, _), state in states.items() if size == 4} == {"planned"}
    done = [record.launch for record in scaling.results().runs() if record.state == "done"]
    assert {launch["launcher"] for launch in done} == {"torchrun"}
    assert {launch["boot"] for launch in done} == {boot_id()}

    wrong = scaling.torchrun(1)
    assert wrong.returncode != 0
    assert "has no cell of world size 1; it has [2, 4]" in wrong.stderr
    assert "exitcode  : 2" in wrong.stderr

    ended_well(scaling.run_here())
    assert set(scaling.states().values()) == {"done"}
