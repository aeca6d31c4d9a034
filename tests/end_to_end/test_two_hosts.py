"""torchrun by hand on two hosts and a slow link: it holds full gradients back, and the bits stay the same."""

import math
import sys

import pytest

from launchers.two_hosts import HostLink, why_not
from scaling.analysis import summary_table
from tests.end_to_end.conftest import ended_well, trained

pytestmark = pytest.mark.processes

SLOW = HostLink(rate="1mbit")
HIDDEN, CLASSES, PIXELS = 256, 10, 64
STEPS = 2
MATRICES = ((HIDDEN, PIXELS), (HIDDEN, 1), (CLASSES, HIDDEN), (CLASSES, 1))  # rows, columns

# What a rank sends in a step, of two ranks: half of everything twice.
FULL_BYTES = 4 * sum(rows * columns for rows, columns in MATRICES)
ONE_BIT_BYTES = sum(columns * (8 + 4 * math.ceil(rows / 32)) for rows, columns in MATRICES)


@pytest.fixture
def study(scaling, need):
    reason = why_not()
    need(reason is None, str(reason))
    scaling.write(trained("slow", HIDDEN, 512, aggregators=["all_reduce", "one_bit"]))
    return scaling


def on_two_hosts(scaling, link):
    command = [sys.executable, "-m", "launchers.two_hosts", "--rate", link.rate]
    command += [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=host1:29400"]
    command += ["-m", "scaling.worker", str(scaling.study), "--out", str(scaling.out)]
    return scaling.ended(command, OMP_NUM_THREADS="1")


def rows_and_epochs(scaling):
    """aggregator -> (its row of the summary, its one epoch as rank 0 saw it)."""
    rows = summary_table(scaling.results()).to_dict("records")
    return {row["aggregator"]: (row, scaling.results().samples(row["cell_id"], 0)[0][0]) for row in rows}


def test_a_slow_network_holds_full_gradients_back_and_losses_are_those_of_one_host(study):
    ended_well(on_two_hosts(study, SLOW))
    slow = rows_and_epochs(study)
    assert study.results().environment()["settings"]["SCALING_LINK_RATE"] == SLOW.rate
    study.out = study.folder / "loopback"
    ended_well(study.torchrun(2))
    loopback = rows_and_epochs(study)

    for name, num_bytes in (("all_reduce", FULL_BYTES), ("one_bit", ONE_BIT_BYTES)):
        for found, nodes in ((slow, 2), (loopback, 1)):
            row, epoch = found[name]
            assert (row["state"], row["launcher"], row["num_nodes"]) == ("done", "torchrun", nodes)
            assert (row["wire_bytes_per_rank"], epoch["bytes_sent"]) == (num_bytes, STEPS * num_bytes)
            assert epoch["step_losses"] == loopback[name][1]["step_losses"]
        assert slow[name][0]["cell_id"] == loopback[name][0]["cell_id"]

    least_s = 8 * STEPS * (FULL_BYTES - SLOW.burst_bytes) / SLOW.bits_per_s  # on any machine
    assert slow["all_reduce"][1]["train_s"] > least_s > 5 * 8 * STEPS * ONE_BIT_BYTES / SLOW.bits_per_s
