"""What is exported is read again, and run block by block as MSCCL would."""

from collections import defaultdict, deque
from xml.etree import ElementTree

import pytest

from scaling.collectives.listing import schedule
from scaling.errors import ScheduleError
from scaling.interchange.msccl_xml import beyond_limits, to_xml


def run(text, seed=0):
    """Every rank's chunks as multisets of contributions: blocks advance in some order, each when it can."""
    algo = ElementTree.fromstring(text)
    num_ranks, num_chunks = int(algo.get("ngpus")), int(algo.get("nchunksperloop"))
    buffers = [[[rank] for _ in range(num_chunks)] for rank in range(num_ranks)]
    queues, done = defaultdict(deque), defaultdict(int)
    blocks = [(int(gpu.get("id")), block) for gpu in algo.findall("gpu") for block in gpu.findall("tb")]
    order = sorted(blocks, key=lambda pair: hash((seed, pair[0], pair[1].get("id"))))
    steps = {(rank, block.get("id")): block.findall("step") for rank, block in blocks}
    progressed = True
    while progressed:
        progressed = False
        for rank, block in order:
            key = (rank, block.get("id"))
            if done[key] == len(steps[key]):
                continue
            step = steps[key][done[key]]
            assert int(step.get("s")) == done[key]
            depends = (rank, step.get("depid"))
            if step.get("depid") != "-1" and done[depends] <= int(step.get("deps")):
                continue
            if step.get("depid") != "-1":
                assert steps[depends][int(step.get("deps"))].get("hasdep") == "1"
            if not _advance(step, rank, block, buffers, queues):
                continue
            done[key] += 1
            progressed = True
    assert all(done[key] == len(steps[key]) for key in steps), "blocks wait for one another"
    return buffers


def _advance(step, rank, block, buffers, queues):
    first, count, kind = int(step.get("srcoff")), int(step.get("cnt")), step.get("type")
    if kind == "s":
        values = [list(one) for one in buffers[rank][first : first + count]]
        queues[rank, int(block.get("send"))].append(values)
        return True
    if kind == "nop":
        return True
    queue = queues[int(block.get("recv")), rank]
    if not queue:
        return False
    for offset, value in enumerate(queue.popleft()):
        buffers[rank][first + offset] = [*buffers[rank][first + offset], *value] if kind == "rrc" else value
    return True


@pytest.mark.parametrize(
    "name", ["ring", "tree", "recursive_doubling", "halving_doubling", "stripes", "star"]
)
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_exported_collective_sums_every_contribution_once_on_every_rank(name, world_size):
    text = to_xml(schedule(name, world_size))
    for seed in range(5):
        for chunks in run(text, seed):
            assert all(sorted(chunk) == list(range(world_size)) for chunk in chunks)


def test_attributes_are_those_of_the_format():
    algo = ElementTree.fromstring(to_xml(schedule("ring", 4)))
    names = "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes"
    assert set(algo.keys()) == set(names.split())
    assert {*algo.find("gpu").keys()} == {"id", "i_chunks", "o_chunks", "s_chunks"}
    assert {*algo.find("gpu/tb").keys()} == {"id", "send", "recv", "chan"}
    expected = {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"}
    assert {*algo.find("gpu/tb/step").keys()} == expected


def test_what_is_more_than_engines_take_is_said():
    assert beyond_limits(to_xml(schedule("ring", 8))) == []
    (steps,) = beyond_limits(to_xml(schedule("ring", 34)))
    assert "66 steps of a thread block, and RCCL takes 64" in steps
    many = beyond_limits(to_xml(schedule("stripes", 18)))
    assert any("34 thread blocks of a GPU, and RCCL takes 32" in one for one in many)


def test_host_memory_cannot_be_exported():
    with pytest.raises(ScheduleError, match="host memory"):
        to_xml(schedule("host_serial", 4))
