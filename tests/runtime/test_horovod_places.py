"""What Horovod is told of the ranks' places: as horovodrun would have said it."""

from launchers.rank_info import RankInfo
from scaling.runtime.horovod import Place, forget_network, slots_of, variables


def told(places):
    """(node, local rank, cross rank, local size, cross size) of each rank."""
    slots = slots_of(places)
    assert [slot.rank for slot in slots] == list(range(len(places)))
    assert {slot.size for slot in slots} == {len(places)}
    return [(s.hostname, s.local_rank, s.cross_rank, s.local_size, s.cross_size) for s in slots]


def test_ranks_of_one_host_are_on_one_node():
    assert told([Place("a", rank, 3) for rank in range(3)]) == [("node0", rank, 0, 3, 1) for rank in range(3)]


def test_ranks_of_two_hosts_are_paired_by_their_local_ranks():
    assert told([Place(host, local, 2) for host in "ab" for local in (0, 1)]) == [
        ("node0", 0, 0, 2, 2),
        ("node0", 1, 0, 2, 2),
        ("node1", 0, 1, 2, 2),
        ("node1", 1, 1, 2, 2),
    ]


def test_ranks_may_be_dealt_out_to_the_hosts_in_turn():
    assert told([Place("a", 0, 2), Place("b", 0, 2), Place("a", 1, 2), Place("b", 1, 2)]) == [
        ("node0", 0, 0, 2, 2),
        ("node1", 0, 1, 2, 2),
        ("node0", 1, 0, 2, 2),
        ("node1", 1, 1, 2, 2),
    ]


def test_one_machine_that_plays_two_nodes_is_two():
    assert told([Place("a", local, 2) for _ in "xy" for local in (0, 1)]) == told(
        [Place(host, local, 2) for host in "ab" for local in (0, 1)]
    )


def test_variables_are_those_of_horovodrun():
    places = [Place(host, local, 2) for host in "ab" for local in (0, 1)]
    assert variables(slots_of(places), RankInfo(3, 1, 4, 2, "test"), "10.0.0.1", "4711") == {
        "HOROVOD_HOSTNAME": "node1",
        "HOROVOD_RANK": "3",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "1",
        "HOROVOD_CROSS_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4711",
    }


def test_what_horovodrun_tells_nccl_of_the_network_counts_on_several_hosts_alone():
    for table, local_world_size, is_kept in (
        ("horovodrun", 4, False),
        ("horovodrun", 2, True),
        ("torchrun", 4, True),
    ):
        environ = {"NCCL_SOCKET_IFNAME": "lo"}
        forget_network(RankInfo(0, 0, 4, local_world_size, table, table=table), environ)
        assert bool(environ) == is_kept
