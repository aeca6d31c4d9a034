"""torchrun by hand on two nodes: the cells and bits of one; told to stop, it leaves its run planned. On a
slow link it holds full gradients back, and the bits stay the same."""

import math
import platform
import signal
import subprocess
import sys

import pytest

from launchers.two_hosts import HostLink, why_not
from scaling.analysis import summary_table
from tests.end_to_end.conftest import ended_well, trained
from tests.ranks import free_port
from tests.waiting import LIMIT_S, still_there

pytestmark = pytest.mark.processes


def start(scaling, nodes, out):
    """One torchrun a node, of two workers in all."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}"]
    command += [f"--nproc-per-node={2 // nodes}", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "-m", "scaling.worker"]
    command += [str(scaling.study), "--out", str(out)]
    place = {"cwd": scaling.folder, "env": {**scaling.environment, "OMP_NUM_THREADS": "1"}}
    return [subprocess.Popen(command, **place, stderr=subprocess.PIPE, text=True) for _ in range(nodes)]


def finish(processes):
    errors = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    return [process.returncode for process in processes], "".join(errors)


def losses(folder):
    ranks = {record.cell_id: folder.samples(record.cell_id, 0) for record in folder.runs()}
    return {cell_id: [row["step_losses"] for row in first] for cell_id, (first, *_) in ranks.items()}


def test_two_nodes_give_what_one_gives(scaling):
    scaling.write(trained("two-nodes", aggregators=["all_reduce", "ring"]))
    one_node = type(scaling.results())(scaling.folder / "one")
    codes, errors = finish([*start(scaling, 2, scaling.out), *start(scaling, 1, one_node.path)])
    assert codes == [0, 0, 0], errors
    for run in scaling.results().runs():
        assert (run.state, run.launch["launcher"], run.launch["num_nodes"]) == ("done", "torchrun", 2)
        assert tuple(run.launch["nodes"]) == (platform.node(),)
        assert tuple(run.launch["rank_nodes"]) == (platform.node(),) * 2
    assert {(r.state, r.launch["num_nodes"]) for r in one_node.runs()} == {("done", 1)}
    assert losses(scaling.results()) == losses(one_node)


def test_torchrun_that_is_told_to_stop_leaves_its_run_planned_and_no_process(scaling):
    scaling.write(trained("two-nodes", aggregators=["faulty_aggregators:Slow"]))
    processes = start(scaling, 1, scaling.out)
    scaling.wait_for_worker()
    processes[0].send_signal(signal.SIGTERM)
    codes, errors = finish(processes)
    assert codes != [0]
    assert "stopped by a signal: what is finished is kept, the rest is planned" in errors
    assert [(record.state, record.deaths) for record in scaling.results().runs()] == [("planned", 0)]
    assert not still_there(scaling.processes)


SLOW = HostLink(rate="1mbit")
HIDDEN, CLASSES, PIXELS = 256, 10, 64
STEPS = 2
MATRICES = ((HIDDEN, PIXELS), (HIDDEN, 1), (CLASSES, HIDDEN), (CLASSES, 1))  # rows, columns

# What a rank sends in a step, of two ranks: half of everything twice.
FULL_BYTES = 4 * sum(rows * columns for rows, columns in MATRICES)
ONE_BIT_BYTES = sum(columns * (8 + 4 * math.ceil(rows / 32)) for rows, columns in MATRICES)


def rows_and_epochs(scaling):
    """aggregator -> (its row of the summary, its one epoch as rank 0 saw it)."""
    rows = summary_table(scaling.results()).to_dict("records")
    return {row["aggregator"]: (row, scaling.results().samples(row["cell_id"], 0)[0][0]) for row in rows}


def test_a_slow_network_holds_full_gradients_back_and_losses_are_those_of_one_host(scaling, need):
    reason = why_not()
    need(reason is None, str(reason))
    scaling.write(trained("slow", HIDDEN, 512, aggregators=["all_reduce", "one_bit"]))
    command = [sys.executable, "-m", "launchers.two_hosts", "--rate", SLOW.rate]
    command += [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400"]
    command += ["-m", "scaling.worker", str(scaling.study), "--out", str(scaling.out)]
    ended_well(scaling.ended(command, OMP_NUM_THREADS="1"))
    slow = rows_and_epochs(scaling)
    assert scaling.results().environment()["settings"]["SCALING_LINK_RATE"] == SLOW.rate
    scaling.out = scaling.folder / "loopback"
    ended_well(scaling.torchrun(2))
    loopback = rows_and_epochs(scaling)

    for name, num_bytes in (("all_reduce", FULL_BYTES), ("one_bit", ONE_BIT_BYTES)):
        for found, nodes in ((slow, 2), (loopback, 1)):
            row, epoch = found[name]
            assert (row["state"], row["launcher"], row["num_nodes"]) == ("done", "torchrun", nodes)
            assert (row["wire_bytes_per_rank"], epoch["bytes_sent"]) == (num_bytes, STEPS * num_bytes)
            assert epoch["step_losses"] == loopback[name][1]["step_losses"]
        assert slow[name][0]["cell_id"] == loopback[name][0]["cell_id"]

    least_s = 8 * STEPS * (FULL_BYTES - SLOW.burst_bytes) / SLOW.bits_per_s  # on any machine
    assert slow["all_reduce"][1]["train_s"] > least_s > 5 * 8 * STEPS * ONE_BIT_BYTES / SLOW.bits_per_s
