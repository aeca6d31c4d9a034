"""Work of a stage whose rate is the memory's, by several threads, or by one rank alone."""

import pytest

from scaling.collectives.plan import CodecWork, simulate_plan
from topologies.model import Device, Link, Machine, Topology


def machine(memory_bytes_per_s=1e6):
    """Two GPUs that move 50 B/s of their memory; 8 cores that add 4 B/s each, and so move 12."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=10.0, bandwidth_bytes_per_s=50.0) for i in range(2)]
    host = [
        Device("cpu", "cpu", cores=8, reduce_bytes_per_s=4.0),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s),
    ]
    links = [Link(f"link{i}", gpu.id, "cpu", "pcie", 10.0, 1.0) for i, gpu in enumerate(gpus)]
    links.append(Link("bus", "cpu", "memory", "memory", 1e9, 0.0))
    return Topology("machine", Machine("machine", (*gpus, *host), tuple(links)), 1)


def seconds(codec, topology=None):
    return simulate_plan([codec], topology or machine(), 2).seconds


def test_on_a_gpu_the_memory_decides_where_no_rate_is_given():
    assert seconds(CodecWork("encode", 100, bytes_moved=5)) == pytest.approx(100 * 5 / 50)


def test_on_the_host_a_core_moves_as_much_as_when_it_adds():
    assert seconds(CodecWork("sum", 120, where="host", bytes_moved=2)) == pytest.approx(120 * 2 / 12)


def test_threads_share_the_work_of_a_rank():
    one, four = (CodecWork("sum", 120, where="host", num_threads=count, by_all=False) for count in (1, 4))
    assert seconds(four) == pytest.approx(seconds(one) / 4)


def test_threads_do_not_help_where_the_memory_is_the_limit():
    slow = machine(memory_bytes_per_s=6.0)
    one, four = (CodecWork("sum", 120, where="host", num_threads=count, by_all=False) for count in (1, 4))
    assert seconds(one, slow) == seconds(four, slow) == pytest.approx(120 * 2 / 6)


def test_one_rank_alone_has_the_memory_for_itself():
    slow = machine(memory_bytes_per_s=12.0)
    alone, both = (CodecWork("sum", 120, where="host", by_all=by_all) for by_all in (False, True))
    assert seconds(alone, slow) == pytest.approx(20)
    assert seconds(both, slow) == pytest.approx(40)
