"""What Horovod is told of the ranks' places, and its world: the launch's, or an error."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launchers.rank_info import RankInfo
from scaling.runtime.horovod import Place, forget_network, slots_of, variables
from tests.waiting import LIMIT_S

ROOT = Path(__file__).parents[2]
ALONE = """\
import sys
from types import SimpleNamespace

from launchers.rank_info import RankInfo
from scaling.errors import LaunchError
from scaling.runtime.horovod import HorovodWorld

told = {"RANK": "1", "SIZE": "2", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"}
info = RankInfo.from_env({f"HOROVOD_{name}": value for name, value in told.items()})
try:
    HorovodWorld(SimpleNamespace(info=info), by_mpi=False).start()
except LaunchError as error:
    sys.exit(f"error: {error}")
"""


def told(places):
    """(node, local rank, cross rank, local size, cross size) of each rank."""
    slots = slots_of(places)
    assert [slot.rank for slot in slots] == list(range(len(places)))
    assert {slot.size for slot in slots} == {len(places)}
    return [(s.hostname, s.local_rank, s.cross_rank, s.local_size, s.cross_size) for s in slots]


def on(hosts, *, in_turn=False):
    """Two ranks on each host, one host after the other or in turn."""
    places = [Place(host, local, 2) for host in hosts for local in (0, 1)]
    return places[::2] + places[1::2] if in_turn else places


PAIRED = [(f"node{node}", local, node, 2, 2) for node in (0, 1) for local in (0, 1)]


@pytest.mark.parametrize(("places", "slots"), [
    ([Place("a", rank, 3) for rank in range(3)], [("node0", rank, 0, 3, 1) for rank in range(3)]),
    (on("ab"), PAIRED), (on("ab", in_turn=True), PAIRED[::2] + PAIRED[1::2]),
    (on("aa"), PAIRED),  # one machine that plays two nodes
])  # fmt: skip
def test_ranks_of_several_hosts_are_paired_by_their_local_ranks(places, slots):
    assert told(places) == slots


def test_variables_are_those_of_horovodrun():
    expected = {
        **{"HOSTNAME": "node1", "RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2"},
        **{"CROSS_RANK": "1", "CROSS_SIZE": "2"},
        **{"GLOO_RENDEZVOUS_ADDR": "10.0.0.1", "GLOO_RENDEZVOUS_PORT": "4711"},
    }
    found = variables(slots_of(on("ab")), RankInfo(3, 1, 4, 2, "test"), "10.0.0.1", "4711")
    assert found == {f"HOROVOD_{name}": value for name, value in expected.items()}


def test_what_horovodrun_tells_nccl_of_the_network_counts_on_several_hosts_alone():
    for table, local_world_size, is_kept in (("horovodrun", 4, 0), ("horovodrun", 2, 1), ("torchrun", 4, 1)):
        environ = {"NCCL_SOCKET_IFNAME": "lo"}
        forget_network(RankInfo(0, 0, 4, local_world_size, table, table=table), environ)
        assert len(environ) == is_kept


@pytest.mark.processes
def test_horovod_that_finds_fewer_ranks_than_the_launch_has_is_an_error(need):
    need(importlib.util.find_spec("horovod"), "Horovod is not installed; `make horovod` builds it")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
    environment["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert error.startswith("error: rank 1 (HOROVOD_RANK) of 2 (HOROVOD_SIZE)")
    assert "but Horovod says rank 0 of 1; look for HOROVOD_* variables" in error
