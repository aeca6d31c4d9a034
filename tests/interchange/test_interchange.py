"""MSCCL XML is proven or refused with the step that is wrong; a Chakra trace has each message once."""

import re
from xml.etree import ElementTree

import pytest

from scaling.collectives.listing import schedule
from scaling.collectives.schedule_file import read_schedule
from scaling.collectives.verify import verify
from scaling.errors import ScheduleError
from scaling.interchange.chakra import COMM_RECV_NODE, COMM_SEND_NODE, all_reduce_traces, traces, varint
from scaling.interchange.msccl_prove import prove, read_algorithm
from scaling.interchange.msccl_xml import beyond_limits, to_xml


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
@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
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


def test_all_pairs_through_scratch_are_two_steps_and_a_swap_in_both_directions_is_one():
    made, _ = proven(all_pairs(4))
    assert ([len(row) for row in made.steps], {one.operation for one in made.steps[0]}) == ([12, 12], {"add"})
    made, _ = proven(swap())
    assert [len(row) for row in made.steps] == [2]


def test_both_forms_are_proven_where_the_file_is_for_both():
    both = {"inplace": 1, "outofplace": 1}
    assert len(proven(fused_ring(4, target="o", **both))[0].steps) == 6
    said = "chunk 0 of GPU 0 ends as chunk 0 without ranks 0, 1, 2, 3; no step"
    with pytest.raises(ScheduleError, match=said):
        prove(read_algorithm(fused_ring(4, target="i", **both)))


RECEIVE, SEND = step("r", ("i", 0), ("s", 0)), step("s", ("i", 0), ("s", 0))
ADD = step("re", ("s", 0), ("i", 0), after=(0, 1))


def swap(first=None, second=None, num_chunks=1, scratch=1):
    """Two GPUs that swap a chunk through scratch and add it; other steps of GPU 0's two thread blocks."""
    steps = [[SEND, RECEIVE], [ADD]]
    mine = [steps[0] if first is None else first, steps[1] if second is None else second]
    gpus = [[(1 - rank, 1 - rank, 0, own[0]), (-1, -1, 0, own[1])] for rank, own in enumerate((mine, steps))]
    return algo(gpus, num_chunks, scratch=scratch)


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


@pytest.mark.parametrize("name", NAMES)
def test_attributes_are_those_of_the_format(name):
    algo = ElementTree.fromstring(to_xml(schedule(name, 4)))
    names = "name proto nchannels nchunksperloop ngpus coll inplace outofplace minBytes maxBytes"
    assert set(algo.keys()) == set(names.split())
    assert {*algo.find("gpu").keys()} == {"id", "i_chunks", "o_chunks", "s_chunks"}
    assert {*algo.find("gpu/tb").keys()} == {"id", "send", "recv", "chan"}
    expected = {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"}
    assert {*algo.find("gpu/tb/step").keys()} == expected
    for gpu in algo.findall("gpu"):
        assert all([step.get("s") for step in tb] == [*map(str, range(len(tb)))] for tb in gpu)
        steps = {(tb.get("id"), step.get("s")): step for tb in gpu for step in tb}
        waited_for = {(step.get("depid"), step.get("deps")) for step in steps.values()} - {("-1", "-1")}
        assert {place for place, step in steps.items() if step.get("hasdep") == "1"} == waited_for


def test_what_is_more_than_engines_take_is_said_and_host_memory_cannot_be_exported():
    assert beyond_limits(to_xml(schedule("ring", 8))) == []
    (steps,) = beyond_limits(to_xml(schedule("ring", 34)))
    assert "66 steps of a thread block, and RCCL takes 64" in steps
    many = beyond_limits(to_xml(schedule("stripes", 18)))
    assert any("34 thread blocks of a GPU, and RCCL takes 32" in one for one in many)
    with pytest.raises(ScheduleError, match="host memory"):
        to_xml(schedule("host_serial", 4))


def read_varint(content, at):
    number, shift = 0, 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at


def fields(content):
    """(field number, value) of a message that has numbers, strings and messages alone."""
    at = 0
    while at < len(content):
        key, at = read_varint(content, at)
        value, at = read_varint(content, at)
        if key & 7 == 0:
            yield key >> 3, value
        else:
            yield key >> 3, content[at : at + value]
            at += value


def messages(content):
    """The parts of a file: each behind its length."""
    at = 0
    while at < len(content):
        length, at = read_varint(content, at)
        yield list(fields(content[at : at + length]))
        at += length


def nodes(content):
    """Of each node: id, type, dependencies, attributes."""
    found = []
    for message in list(messages(content))[1:]:
        values = dict(field for field in message if field[0] != 10)
        attributes = {}
        for number, one in message:
            if number == 10:
                name, value = [value for _, value in fields(one)]
                attributes[name.decode()] = value
        after, at = [], 0
        while at < len(values.get(5, b"")):
            number, at = read_varint(values[5], at)
            after.append(number)
        found.append((values[1], values[3], after, attributes, values.get(7, 0)))
    return found


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**40])
def test_numbers_are_read_as_they_were_written(number):
    assert read_varint(varint(number), 0) == (number, len(varint(number)))


def test_each_message_is_sent_and_received_once_with_the_same_tag_and_size():
    ring = schedule("ring", 4)
    sent, received = {}, {}
    for rank, content in enumerate(traces(ring, 4000)):
        for _, kind, _, attributes, _ in nodes(content):
            if kind == COMM_SEND_NODE:
                assert attributes["comm_src"] == rank
                sent[attributes["comm_tag"]] = attributes
            elif kind == COMM_RECV_NODE:
                assert attributes["comm_dst"] == rank
                received[attributes["comm_tag"]] = attributes
    assert (sent, len(sent)) == (received, 2 * 3 * 4)
    assert sum(one["comm_size"] for one in sent.values()) == 2 * 3 * 16000


def test_nodes_wait_for_the_step_before_and_for_the_computation():
    found = nodes(traces(schedule("ring", 2), 1000, compute_s=2.5e-3)[0])
    assert (found[0][4], found[1][2]) == (2500, [0])
    assert all(after < number for number, _, befores, _, _ in found for after in befores)


def test_a_librarys_all_reduce_is_one_node():
    for content in all_reduce_traces(3, 4096):
        ((_, kind, _, attributes, _),) = nodes(content)
        assert (kind, attributes) == (7, {"is_cpu_op": 0, "comm_type": 0, "comm_size": 4096})


def test_host_memory_is_no_rank():
    with pytest.raises(ScheduleError, match="host memory"):
        traces(schedule("host_serial", 2), 100)
