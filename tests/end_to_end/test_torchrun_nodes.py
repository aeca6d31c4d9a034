"""torchrun by hand on two nodes: the cells and bits of one; told to stop, it leaves its run planned."""

import platform
import signal
import subprocess
import sys

import pytest

from tests.end_to_end.conftest import trained
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
    return {
        record.cell_id: [row["step_losses"] for row in folder.samples(record.cell_id, 0)[0]]
        for record in folder.runs()
    }


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
