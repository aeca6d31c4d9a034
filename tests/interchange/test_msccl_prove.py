"""MSCCL XML of others is proven, or refused with the step that is wrong; proven ones become schedules."""

import re
from xml.etree import ElementTree

import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.schedule_file import read_schedule
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.interchange.msccl_prove import prove, read_algorithm
from scaling.interchange.msccl_xml import to_xml


def step(kind, source=("i", 0), target=("i", 0), count=1, after=(-1, -1)):
    return {
        "type": kind, "srcbuf": source[0], "srcoff": source[1], "dstbuf": target[0], "dstoff": target[1],
        "cnt": count, "depid": after[0], "deps": after[1], "hasdep": 0,
    }  # fmt: skip


def algo(gpus, num_chunks, scratch=0, **attributes):
    """`gpus`: of each its thread blocks as (send, recv, channel, steps)."""
    words = {"name": "x", "nchunksperloop": num_chunks, "ngpus": len(gpus), "coll": "allreduce", "inplace": 1}
    top = ElementTree.Element("algo", {key: str(value) for key, value in (words | attributes).items()})
    for rank, blocks in enumerate(gpus):
        gpu = ElementTree.SubElement(top, "gpu", id=str(rank), s_chunks=str(scratch))
        for id_, (send, recv, channel, steps) in enumerate(blocks):
            ends = {"id": id_, "send": send, "recv": recv, "chan": channel}
            tb = ElementTree.SubElement(gpu, "tb", {key: str(value) for key, value in ends.items()})
            for at, one in enumerate(steps):
                ElementTree.SubElement(tb, "step", {"s": str(at)} | {k: str(v) for k, v in one.items()})
    return ElementTree.tostring(top, encoding="unicode")


def fused_ring(size, channels=1, target="i", **attributes):
    """The ring as msccl-tools compiles it (mscclang/simple/allreduce_ring.py): one block a channel."""
    gpus = []
    for rank in range(size):
        blocks = []
        for channel in range(channels):
            kinds = ["s", *["rrs"] * (size - 2), "rrcs", *["rcs"] * (size - 2), "r"]
            chunks = [(rank - at) % size * channels + channel for at in range(2 * size - 1)]
            steps = [step(kind, ("i", at), (target, at)) for kind, at in zip(kinds, chunks, strict=True)]
            blocks.append(((rank + 1) % size, (rank - 1) % size, channel, steps))
        gpus.append(blocks)
    return algo(gpus, size * channels, **attributes)


def all_pairs(size):
    """As in RCCL (tools/msccl-algorithms): into scratch, added by a block of its own, and back to all."""
    gpus = []
    for rank in range(size):
        others = [other for other in range(size) if other != rank]
        slot = {other: at for at, other in enumerate(others)}
        blocks, adder = [], size - 1
        for other in others:
            steps = [step("s", ("i", other), ("s", 0)), step("r", ("i", rank), ("s", slot[other]))]
            steps.append(step("s", ("i", rank), ("i", rank), after=(adder, 2 * size - 3)))
            steps.append(step("r", ("i", other), ("i", other)))
            blocks.append((other, other, 0, steps))
        waits = [step("nop", count=0, after=(at, 1)) for at in range(size - 1)]
        adds = [step("re", ("s", at), ("i", rank)) for at in range(size - 1)]
        blocks.append((-1, -1, 0, [*waits, *adds]))
        gpus.append(blocks)
    return algo(gpus, size, scratch=size - 1)


def proven(text):
    made, reason = prove(read_algorithm(text))
    if made is not None:
        verify(made)
    return made, reason


NAMES = ["ring", "tree", "recursive_doubling", "halving_doubling", "stripes", "star", "hierarchical"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_what_is_exported_is_proven_and_comes_back(name, world_size):
    there = schedule(name, world_size)
    back, _ = proven(to_xml(there))
    assert (back.world_size, back.num_chunks) == (there.world_size, there.num_chunks)
    assert len(back.steps) <= len(there.steps)
    again, _ = proven(to_xml(back))
    assert [sorted(row) for row in again.steps] == [sorted(row) for row in back.steps]


@pytest.mark.parametrize("channels", [1, 3])
def test_ring_of_fused_steps_is_a_ring(channels):
    made, _ = proven(fused_ring(4, channels))
    assert len(made.steps) == 6
    assert {(one.source, one.target) for row in made.steps for one in row} == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_all_pairs_through_scratch_are_two_steps():
    made, _ = proven(all_pairs(4))
    assert ([len(row) for row in made.steps], {one.operation for one in made.steps[0]}) == ([12, 12], {"add"})


def test_both_forms_are_proven_where_the_file_is_for_both():
    both = {"inplace": 1, "outofplace": 1}
    assert len(proven(fused_ring(4, target="o", **both))[0].steps) == 6
    said = "chunk 0 of GPU 0 ends as chunk 0 without ranks 0, 1, 2, 3; no step"
    with pytest.raises(ScheduleError, match=said):
        prove(read_algorithm(fused_ring(4, target="i", **both)))


def swap(**changed):
    """Two GPUs that swap a chunk through scratch and add it."""
    blocks = [
        [(1 - rank, 1 - rank, 0, [step("s", ("i", 0), ("s", 0)), step("r", ("i", 0), ("s", 0))]),
         (-1, -1, 0, [step("re", ("s", 0), ("i", 0), after=(0, 1))])]
        for rank in range(2)
    ]  # fmt: skip
    if "first" in changed:
        blocks[0][0][3][:] = changed["first"]
    if "second" in changed:
        blocks[0][1][3][:] = changed["second"]
    return algo(blocks, changed.get("num_chunks", 1), scratch=changed.get("scratch", 1))


def test_swap_in_both_directions_is_one_step():
    made, _ = proven(swap())
    assert [len(row) for row in made.steps] == [2]


RECEIVE, SEND = step("r", ("i", 0), ("s", 0)), step("s", ("i", 0), ("s", 0))
ADD = step("re", ("s", 0), ("i", 0), after=(0, 1))


WAIT = {**ADD, "deps": 7}
XOR = {**ADD, "type": "xor"}
WRONG = [
    (swap(second=[{**ADD, "depid": -1}]), r"GPU 0, thread block 1, step 0 \(re\): chunk 0 .* nothing yet"),
    (swap(first=[SEND, RECEIVE, step("cpy", ("i", 0), ("s", 0))]), "does, and nothing says which is first"),
    (swap(second=[ADD, ADD]), r"step 1 \(re\): adds the contributions of ranks 1 twice"),
    (swap(second=[{**ADD, "dstoff": 1}], num_chunks=2), r"step 0 \(re\): adds chunk 1 to chunk 0"),
    (swap(first=[RECEIVE, SEND], second=[WAIT]), "waits for thread block 0, step 7; there is none"),
    (swap(first=[SEND, RECEIVE, RECEIVE]), r"GPU 0, thread block 0, step 2 \(r\): waits for ever"),
    (swap(first=[SEND, SEND, RECEIVE], second=[{**ADD, "deps": 2}]), "GPU 0 to GPU 1 .* are not received"),
    (swap(first=[SEND, {**RECEIVE, "dstoff": 1}]), r"step 1 \(r\): chunks 1 to 1 of buffer 's', which has 1"),
    (swap(first=[SEND, {**RECEIVE, "cnt": 2}], scratch=2), "receives 1 chunks and takes 2"),
    (swap(second=[]), "chunk 0 of GPU 0 ends as chunk 0 without ranks 1; no step writes it"),
    (swap(second=[XOR]), r"GPU 0, thread block 1, step 0 \(xor\): this type is not known"),
    (swap(second=[SEND]), r"thread block 1, step 0 \(s\): its thread block has no such peer"),
    (swap().replace("allreduce", "alltoall"), "coll is 'alltoall'"),
    (swap().replace('ngpus="2"', 'ngpus="3"'), "the <gpu>s are not 0 to 2"),
    (swap().replace('cnt="1"', 'cnt="1e9"'), "cnt of <step> is '1e9'"),
    (swap().replace('send="-1" recv="-1"', 'send="1" recv="-1"'), "two thread blocks have send=1 chan=0"),
    (swap().replace('cnt="1"', 'cnt="999999"'), "too large to be proven"),
    ("<system/>", "no <algo>"),
    ("ring", "no XML"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_what_is_wrong_is_named_by_step(text, message):
    with pytest.raises(ScheduleError, match=message):
        prove(read_algorithm(text))


def test_missing_dependency_is_refused_though_one_order_gives_the_sum():
    text = to_xml(schedule("ring", 4))
    assert prove(read_algorithm(text))[0]
    with pytest.raises(ScheduleError, match="nothing says which is first"):
        prove(read_algorithm(re.sub(r'depid="\d+" deps="\d+"', 'depid="-1" deps="-1"', text)))


def test_proven_but_inexpressible_is_said():
    # Adds in scratch, and sends on from there.
    first = [
        (1, 1, 0, [step("s", ("i", 0)), step("r", target=("s", 0)), step("re", ("i", 0), ("s", 0)),
                   step("cpy", ("s", 0), ("i", 0)), step("s", ("s", 0))]),
    ]  # fmt: skip
    second = [(0, 0, 0, [step("s", ("i", 0)), step("r", target=("s", 0)), step("r")])]
    made, reason = prove(read_algorithm(algo([first, second], 1, scratch=1)))
    assert made is None
    assert reason == "GPU 0, thread block 0, step 2 (re) sums or sends what is in scratch"


def test_command_writes_a_schedule_that_is_read_again(call, tmp_path):
    (tmp_path / "ring.xml").write_text(fused_ring(4))
    code, out, err = call("schedule", "import", tmp_path / "ring.xml", "--out", tmp_path / "ring.yaml")
    assert (code, out) == (0, "proven in place: x, 4 ranks, 4 chunks; a schedule of 6 steps\n")
    assert "no outofplace, minBytes, maxBytes in <algo>: RCCL refuses this file" in err
    assert read_schedule(tmp_path / "ring.yaml")[0].world_size == 4
    code, out, _ = call("verify", tmp_path / "ring.yaml")
    assert code == 0
    assert "schedule at 4 ranks (at 4: 6 steps, 6 messages and 1.5 S" in " ".join(out.split())
    (tmp_path / "wrong.xml").write_text(swap(second=[ADD, ADD]))
    code, out, err = call("schedule", "import", tmp_path / "wrong.xml")
    assert (code, out) == (2, "")
    assert "wrong.xml: GPU 0, thread block 1, step 1 (re)" in err
    assert call("schedule", "import", tmp_path / "none.xml")[0] == 2
