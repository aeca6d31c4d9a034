"""What the tests of this folder start, and how they read what is said."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.conftest import Scaling

HERE = Path(__file__).parent

WORKLOAD = {
    "model": {"name": "mlp", "hidden": [16]},
    "dataset": {"name": "synthetic", "input_shape": [20], "num_classes": 3},
    "global_batch": 16,
}
FEW = {"warmup": 10, "iterations": 60, "precision_goal": None, "profiled_iterations": 2, "noise_pair": False}
ON_TWO_CORES = {"device": "cpu", "threads": 1, "world_sizes": [2], "scaling": "strong"}


def study_of(**keys):
    made = {"name": "faults", "kind": "iteration", "stall_timeout": 10.0, **ON_TWO_CORES, **FEW}
    return {**made, "workloads": [WORKLOAD], "aggregators": ["all_reduce"], **keys}


def command_in(folder: Path) -> Scaling:
    made = Scaling(folder)
    made.environment["PYTHONPATH"] = os.pathsep.join([str(HERE), made.environment["PYTHONPATH"]])
    return made


def line_with(text, *words):
    """The line that has all these words."""
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert lines, f"{words} are in no line of\n{text}"
    return lines[0]


def in_general(text):
    """Without what differs from run to run."""
    text = re.sub(r"rank \d", "rank N", text.partition(", see ")[0].removeprefix("watcher: "))
    text = re.sub(r" of iteration .*? eager", " of CELL", text)
    text = re.sub(r" on [^\s,]+(,? before|,? stopped|,? with|,? killed| in )", r" on HOST\1", text)
    return re.sub(r"\(\d+ steps done\)", "(N steps done)", re.sub(r"for \d+ s", "for N s", text))


def worker(command, rank, port, *arguments, before=(), **environment):
    """A worker as a launcher of another kind starts it; `before`: what it is started by."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "scaling.worker", str(command.study), "--out", str(command.out)]
    variables = {**command.environment, **place, **meeting, **environment}
    words = [*before, *words, *arguments]
    return subprocess.Popen(words, cwd=command.folder, env=variables, stderr=subprocess.PIPE, text=True)
