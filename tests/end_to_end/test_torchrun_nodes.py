"""torchrun by hand on two nodes: the cells and bits of one; told to stop, it leaves its run planned."""

import platform
import signal
import socket
import subprocess
import sys

import pytest
import yaml

from tests.conftest import still_there
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.processes


def write_study(scaling, aggregators):
    study = {
        "name": "two-nodes",
        "kind": "convergence",
        "device": "cpu",
        "workloads": [{"model": {"name": "mlp", "hidden": [8]}, "dataset": "digits", "global_batch": 256}],
        "aggregators": aggregators,
        "world_sizes": [2],
        "scaling": "strong",
        "epochs": 1,
    }
    scaling.study.write_text(yaml.safe_dump(study))


def start(scaling, nodes, out):
    """One torchrun a node, of two workers in all."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={2 // nodes}",
    ]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "-m", "scaling.worker"]
    command += [str(scaling.study), "--out", str(out)]
    environment = {**scaling.environment, "OMP_NUM_THREADS": "1"}
    return [
        subprocess.Popen(command, cwd=scaling.folder, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(nodes)
    ]


def finish(processes):
    errors = [process.communicate(timeout=LIMIT_S)[1] for process in processes]
    return [process.returncode for process in processes], "".join(errors)


def losses(folder):
    return {
        record.cell_id: [row["step_losses"] for row in folder.samples(record.cell_id, 0)[0]]
        for record in folder.runs()
    }


def test_two_nodes_give_what_one_gives(scaling):
    write_study(scaling, ["all_reduce", "ring"])
    one_node = type(scaling.results())(scaling.folder / "one")
    codes, errors = finish([*start(scaling, 2, scaling.out), *start(scaling, 1, one_node.path)])
    assert codes == [0, 0, 0], errors
    assert {(r.state, r.launch["launcher"], r.launch["num_nodes"]) for r in scaling.results().runs()} == {
        ("done", "torchrun", 2)
    }
    assert {tuple(r.launch["nodes"]) for r in scaling.results().runs()} == {(platform.node(),)}
    assert {(r.state, r.launch["num_nodes"]) for r in one_node.runs()} == {("done", 1)}
    assert losses(scaling.results()) == losses(one_node)


def test_torchrun_that_is_told_to_stop_leaves_its_run_planned_and_no_process(scaling):
    write_study(scaling, ["faulty_aggregators:Slow"])
    processes = start(scaling, 1, scaling.out)
    scaling.wait_for_worker()
    processes[0].send_signal(signal.SIGTERM)
    codes, errors = finish(processes)
    assert codes != [0]
    assert "stopped by a signal: what is finished is kept, the rest is planned" in errors
    assert [(record.state, record.deaths) for record in scaling.results().runs()] == [("planned", 0)]
    assert not still_there(scaling.processes)
