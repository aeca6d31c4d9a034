"""MPI's world and Horovod's are the launch's, or an error on every rank; and what ends one rank ends all.

Their aggregators keep the contract, in processes that a real launcher starts.
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from launchers.rank_info import RankInfo
from scaling import conformance
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import LaunchError
from scaling.runtime import LaunchLibraries
from scaling.runtime.horovod import forget_network, slots_of, variables
from scaling.runtime.meeting import own_address
from scaling.runtime.workers import Workers
from tests.ranks import refusal
from tests.waiting import LIMIT_S, left_of

CPU, ROOT = torch.device("cpu"), Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")
MADE_BY_MPI = ("mpich_shm_", "sm_segment.")


def is_mapped(path):
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if str(path) in maps.read_text():
                return True
        except OSError:  # it ended, or is another user's
            continue
    return False


@pytest.fixture(autouse=True)
def no_shared_memory_is_left():
    """Ranks that are killed by force leave MPI's files, which nobody else removes."""
    before = set(SHARED_MEMORY.glob("*"))
    yield
    for path in set(SHARED_MEMORY.glob("*")) - before:
        if path.name.startswith(MADE_BY_MPI) and not is_mapped(path):
            path.unlink(missing_ok=True)


def start(launcher, *words, **environment):
    return launcher.run(2, *words, cwd=ROOT, env={"PYTHONPATH": str(ROOT), **environment})


@pytest.mark.processes
@pytest.mark.parametrize(("how", "word"), [("raise", "RuntimeError: planted failure"), ("leave", "")])
def test_rank_that_raises_or_leaves_ends_all(mpirun, how, word):
    done = start(mpirun, __file__, how)
    assert done.returncode != 0
    assert word in done.stderr


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
def test_workers_do_not_outlive_an_mpirun_that_is_killed_by_force(mpirun):
    process = mpirun.start(2, __file__, "wait", cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    try:
        pids = [int(process.stdout.readline()) for _ in range(2)]
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)
    left = left_of(pids)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.mark.processes
def test_world_of_one_is_an_error_on_every_rank(mpich, openmpi, need):
    """mpi4py with another MPI than the launcher's: each process would be rank 0 of 1."""
    library = Path(openmpi.program).parents[1] / "lib" / "libmpi.so.40"
    need(library.exists(), f"no {library}: Open MPI is not from the package index")
    done = start(mpich, "-m", "scaling.worker", "mnist", MPI4PY_LIBMPI=str(library))
    assert done.returncode == 2
    for rank in (0, 1):
        assert f"error: rank {rank} (PMI_RANK) of 2 (PMI_SIZE)" in done.stderr
    assert done.stderr.count("says rank 0 of 1: mpi4py has loaded another MPI than the mpirun in use") == 2


@pytest.mark.processes
def test_library_that_is_not_there_is_named(mpich):
    done = start(mpich, "-m", "scaling.worker", "mnist", MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == 2
    assert "mpi4py cannot be used: cannot load MPI library /nowhere/libmpi.so" in done.stderr
    assert "pip install 'scaling-study[mpi]'" in done.stderr


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
    places = [(host, local, 2) for host in hosts for local in (0, 1)]
    return places[::2] + places[1::2] if in_turn else places


PAIRED = [(f"node{node}", local, node, 2, 2) for node in (0, 1) for local in (0, 1)]


@pytest.mark.parametrize(("places", "slots"), [
    ([("a", rank, 3) for rank in range(3)], [("node0", rank, 0, 3, 1) for rank in range(3)]),
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


def checked(aggregator, case, run):
    """What does not hold, or None; and whether there are residuals."""
    try:
        return None, conformance.check(aggregator, case, run)
    except AssertionError as error:
        return str(error) or "an assertion", False


def cases(world_size):
    """Those of float32 that are fixed, one that is resumed, and buckets of few elements."""
    whole, *others = [case for case in conformance.fixed_cases(world_size) if case.dtype == torch.float32]
    small = [replace(whole.until(2), shapes=(shape,)) for shape in ((1,), (10,))]
    return [replace(whole, resume_after=5), *others, *small]


def refusals(aggregator, group):
    """What is said of each 16-bit type; nothing where it is taken."""
    layout = BucketLayout.of([("values", (4,))])

    def start(dtype):
        return refusal(LaunchError, lambda: aggregator.start(layout, group, dtype, CPU))

    return {name: start(getattr(torch, name)) for name in ("bfloat16", "float16")}


def cast_mean(aggregator, group):
    """The largest error of a mean that is cast on the way, and whether the ranks' bits are the same."""
    case = conformance.Case(group.world_size, torch.float32, ((1000,),), ("normal",))
    gradients = case.gradients(0)
    state = aggregator.start(case.layout, group, torch.float32, CPU)
    mean = aggregator.aggregate(state, gradients[group.rank].clone())
    return float((mean - torch.stack(gradients).double().mean(0)).abs().max()), mean.tolist()


def keep_contract(out, names):
    """One rank puts them through the contract."""
    info = RankInfo.from_env(os.environ)
    libraries = LaunchLibraries(info)
    workers = Workers(info, libraries.share(), own_address(info, os.environ))
    libraries.offer(workers)
    group = workers.group(CPU)

    def gathered(value):
        values = [None] * info.world_size
        dist.all_gather_object(values, value)
        return values

    def run(world_size, work):
        assert world_size == info.world_size
        return gathered(work(group))

    seen = {"launcher": info.launcher, "size": info.world_size, "aggregators": {}}
    seen["libraries"] = libraries.record()
    for name in names:
        aggregator = create(name)
        results = [checked(aggregator, case, run) for case in cases(info.world_size)]
        seen["aggregators"][name] = {
            "failures": [failure for failure, _ in results if failure],
            "has_residuals": any(has_residuals for _, has_residuals in results),
            "refusals": refusals(aggregator, group),
        }
        if "horovod" in name:
            error, bits = cast_mean(create(name, {"compression": "fp16"}), group)
            every = set(map(tuple, gathered(bits)))
            seen["aggregators"][name] |= {"fp16_error": error, "fp16_bits": len(every)}
    if info.rank == 0:
        out.write_text(json.dumps(seen))
    workers.close()


@pytest.fixture
def seen(tmp_path):
    """seen(launcher, world size, *names): what rank 0 wrote of these aggregators."""

    def run(launcher, world_size, *names):
        out = tmp_path / "seen.json"
        done = launcher.run(world_size, __file__, str(out), *names, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads(out.read_text())
        assert (told["launcher"], told["size"]) == (launcher.name, world_size)
        assert set(told["aggregators"]) == set(names)
        return told

    return run


@pytest.mark.processes
def test_aggregators_over_mpi_keep_the_contract_and_refuse_what_mpi_cannot_add(seen, mpirun):
    told = seen(mpirun, 4, "mpi", "mpi_one_bit")
    versions = {"openmpi": "Open MPI v", "mpich": "MPICH Version"}
    assert told["libraries"]["mpi"].startswith(versions[mpirun.name])
    whole, one_bit = told["aggregators"]["mpi"], told["aggregators"]["mpi_one_bit"]
    assert whole["failures"] == one_bit["failures"] == []
    assert one_bit["has_residuals"]
    assert set(whole["refusals"]) == {"bfloat16", "float16"}
    for name, message in whole["refusals"].items():
        assert message.startswith(f"MPI cannot add {name}; it adds float32, float64, int32, int64")
    assert set(one_bit["refusals"].values()) == {""}, "its messages are bits, which nobody adds"


@pytest.mark.processes
def test_aggregators_over_horovod_keep_the_contract_and_their_replicas_agree_in_16_bits(seen, horovodrun):
    told = seen(horovodrun, 3, "horovod", "horovod_optimizer")["aggregators"]
    for name, one in told.items():
        assert one["failures"] == [], name
        assert one["fp16_bits"] == 1, f"{name}: ranks differ"
        # Some roundings of values of the order of one to 11 bits.
        assert 0 < one["fp16_error"] < 3e-3, name
        said = "Horovod cannot average bfloat16; it averages float32, float64, float16"
        assert one["refusals"] == {"bfloat16": said, "float16": ""}


def end(how):
    """The last rank raises or leaves while the others wait in MPI; or all wait."""
    info = RankInfo.from_env(os.environ)
    libraries = LaunchLibraries(info)
    if how == "wait":
        os.write(1, f"{os.getpid()}\n".encode())  # at once: the ranks' lines are not mixed
        time.sleep(600)
    if info.rank == info.world_size - 1:
        if how == "raise":
            raise RuntimeError("planted failure")
        libraries.end_all(3)
        sys.exit(3)
    from mpi4py import MPI

    MPI.COMM_WORLD.Barrier()


if __name__ == "__main__":
    if len(sys.argv) > 2:
        keep_contract(Path(sys.argv[1]), sys.argv[2:])
    else:
        end(sys.argv[1])
