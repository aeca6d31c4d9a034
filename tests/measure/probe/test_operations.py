"""The operations do what their names say, on ranks that are threads of this process."""

import pytest
import torch

from scaling.errors import LaunchError
from scaling.measure.probe.cases import ProbeCase
from scaling.measure.probe.ranks import Operations
from scaling.process_group import run_in_process

CPU = torch.device("cpu")
KIB = 1024


def run_all(case, world_size=3):
    """Runs the case once on every rank: (took part?, bytes sent, buffers) of each."""

    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(case, KIB)
        for name, buffer in operations._buffers.items():
            buffer.fill_(group.rank + 1 if "other" not in name else 0)
        if run is not None:
            run()
        first = {name: float(buffer[0]) for name, buffer in operations._buffers.items()}
        assert {buffer.nbytes for buffer in operations._buffers.values()} <= {KIB}
        return run is not None, group.meter.bytes_sent, first

    return run_in_process(world_size, rank)


@pytest.mark.parametrize("operation", ["send", "swap"])
def test_pair_exchanges_and_the_third_rank_waits(operation):
    (takes_0, sent_0, at_0), (takes_1, _, _), (takes_2, sent_2, at_2) = run_all(
        ProbeCase(operation, (0, 2), (KIB,))
    )
    assert (takes_0, takes_1, takes_2, at_2["device_other"]) == (True, False, True, 1.0)
    assert at_0["device_other"] == (3.0 if operation == "swap" else 0.0)
    assert (sent_0, sent_2) == (KIB, KIB if operation == "swap" else 0)


def test_shift_brings_each_ranks_bytes_to_the_next():
    results = run_all(ProbeCase("shift", (0, 1, 2), (KIB,)))
    assert [first["device_other"] for *_, first in results] == [3.0, 1.0, 2.0]


def test_all_reduce_sums():
    assert [first["device"] for *_, first in run_all(ProbeCase("all_reduce", (0, 1, 2), (KIB,)))] == [6.0] * 3


def test_all_reduce_by_mpi_goes_over_the_group_that_mpi_carries():
    def rank(group):
        carried = []

        class Carried:
            def all_reduce(self, tensor):
                carried.append(tensor.nbytes)
                group.all_reduce(tensor)

        group.over = {"mpi": Carried()}.__getitem__
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("mpi_all_reduce", (0, 1), (KIB,)), KIB)
        (buffer,) = operations._buffers.values()
        buffer.fill_(group.rank + 1)
        run()
        return carried, float(buffer[0])

    assert run_in_process(2, rank) == [([KIB], 3.0)] * 2


def test_all_reduce_by_mpi_is_an_error_that_says_what_the_launch_lacks():
    with pytest.raises(LaunchError, match="mpi cannot be used by these ranks: it needs mpi4py"):
        run_in_process(
            2, lambda group: Operations(group, CPU).prepare(ProbeCase("mpi_all_reduce", (0, 1), ()), 4)
        )


@pytest.mark.parametrize(("operation", "result"), [("host_copy", 1.0), ("host_sum", 1.0)])
def test_copies_and_sums_stay_on_the_rank(operation, result):
    results = run_all(ProbeCase(operation, (0,), (KIB,)))
    assert [takes_part for takes_part, *_ in results] == [True, False, False]
    assert results[0][2] == {"host": 1.0, "host_other": result}
    assert all(sent == 0 for _, sent, _ in results)


def test_peer_copy_writes_into_the_memory_of_the_other():
    def rank(group):
        operations = Operations(group, CPU)
        run = operations.prepare(ProbeCase("peer_copy", (2, 0), (KIB,)), KIB)
        operations._peer_memory.local.fill_(group.rank)
        group.barrier()
        if run is not None:
            run()
        group.barrier()
        return run is not None, float(operations._peer_memory.local[0])

    assert run_in_process(3, rank) == [(False, 2.0), (False, 1.0), (True, 2.0)]


def test_smaller_size_uses_the_buffer_that_is_there():
    def rank(group):
        operations = Operations(group, CPU)
        for size in (KIB, 4 * KIB, KIB):
            operations.prepare(ProbeCase("host_copy", (0,), (KIB, 4 * KIB)), size)
        return operations._buffers["host"].nbytes

    assert run_in_process(1, rank) == [4 * KIB]
