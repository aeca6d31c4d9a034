import pytest

from scaling.collectives.listing import schedule
from scaling.errors import ScheduleError
from scaling.interchange.chakra import COMM_RECV_NODE, COMM_SEND_NODE, all_reduce_traces, traces, varint


def read_varint(content, at):
    """The number at that position, and the position behind it."""
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
