"""Stages of a step by hand: exchanges, codecs, updates."""

import pytest

from scaling.collectives.host_staging import host_serial
from scaling.collectives.plan import (
    CodecWork,
    Exchange,
    Update,
    simulate_plan,
)
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Topology
from topologies.schema import load

CORE_MOVES = 12.0  # bytes a second: adds 4, and moves three for each


def machine(num_gpus=4, *, memory_bytes_per_s=1000.0, gpu_bytes_per_s=50.0, num_nodes=1):
    """GPUs that move 50 B/s of their memory; 8 cores."""
    gpus = [
        Device(f"gpu{i}", "gpu", reduce_bytes_per_s=10.0, bandwidth_bytes_per_s=gpu_bytes_per_s)
        for i in range(num_gpus)
    ]
    host = [
        Device("cpu", "cpu", cores=8, reduce_bytes_per_s=CORE_MOVES / 3),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s),
    ]
    links = [Link(f"link{i}", gpu.id, "cpu", "pcie", 10.0, 1.0) for i, gpu in enumerate(gpus)]
    links.append(Link("bus", "cpu", "memory", "memory", 1e9, 0.0))
    return Topology("machine", Machine("machine", (*gpus, *host), tuple(links)), num_nodes)


def seconds(stage, topology=None, world_size=4):
    return simulate_plan([stage], topology or machine(), world_size).seconds


class TestExchanges:
    def test_cost_what_their_schedule_costs(self):
        plan = simulate_plan([Exchange(ring(4), 10)], machine(), 4)
        assert plan.stages[0].simulation.seconds == simulate(ring(4), machine(), 40).seconds == plan.seconds

    def test_may_send_fewer_bytes_an_element(self):
        assert (
            seconds(Exchange(ring(4), 10, bytes_per_element=0.5)) == simulate(ring(4), machine(), 5).seconds
        )

    def test_tensor_by_tensor_follow_one_another(self):
        plan = simulate_plan([Exchange(ring(4), elements, name="ring") for elements in (10, 5)], machine(), 4)
        expected = [simulate(ring(4), machine(), 4 * elements).seconds for elements in (10, 5)]
        assert [stage.seconds for stage in plan.stages] == expected
        assert plan.seconds_by_name == {"ring": sum(expected)}

    def test_messages_count_their_latency(self):
        once, thrice = (seconds(Exchange(ring(4), 10, num_messages=k)) for k in (1, 3))
        path = machine().path((0, "gpu0"), (0, "gpu1"))
        assert thrice - once == pytest.approx(2 * 6 * path.latency_s)

    def test_peer_access_and_places_reach_the_simulation(self):
        topology, stage = load("dual-k80"), Exchange(ring(2), 10**6)
        near = simulate_plan([stage], topology, 2).seconds
        assert simulate_plan([stage], topology, 2, peer_access=False).seconds > near
        assert simulate_plan([stage], topology, 2, places=[(0, "gpu0"), (0, "gpu2")]).seconds > near

    def test_are_for_the_plans_ranks(self):
        with pytest.raises(ScheduleError, match="ring: made for 3 ranks, run by 4"):
            seconds(Exchange(ring(3), 10))

    def test_places_are_as_many_as_ranks(self):
        with pytest.raises(ScheduleError, match="1 places for 2 ranks"):
            simulate_plan([], machine(), 2, places=[(0, "gpu0")])


class TestCodecs:
    def test_gpus_work_at_the_same_time(self):
        assert seconds(CodecWork("encode", 100, bytes_per_s=20)) == 5

    def test_on_the_host_each_rank_has_a_core(self):
        assert seconds(CodecWork("encode", 100, bytes_per_s=20, where="host")) == 5

    def test_on_the_host_ranks_share_the_cores(self):
        assert seconds(
            CodecWork("encode", 100, bytes_per_s=20, where="host"), machine(16), 16
        ) == pytest.approx(10)

    def test_on_the_host_ranks_share_the_memory(self):
        # 4 ranks, 2 bytes moved for each of 100.
        codec = CodecWork("encode", 100, bytes_per_s=20, where="host")
        assert seconds(codec, machine(memory_bytes_per_s=80.0)) == pytest.approx(800 / 80)

    def test_ranks_of_other_nodes_have_cores_of_their_own(self):
        codec = CodecWork("encode", 100, bytes_per_s=20, where="host")
        assert seconds(codec, machine(8, num_nodes=2), 16) == 5

    def test_ranks_without_a_gpu_have_a_core_each(self):
        codec = CodecWork("encode", 5e9, bytes_per_s=1e9, bytes_moved=0.1)
        assert simulate_plan([codec], load("cpu-2"), 2).seconds == pytest.approx(5)

    @pytest.mark.parametrize(
        "codec", [CodecWork("encode", -1, 20), CodecWork("encode", 1, 0), CodecWork("e", 1, 1, "host", 0)]
    )
    def test_rates_are_checked(self, codec):
        with pytest.raises(ScheduleError, match=r"allowed are|must be positive"):
            seconds(codec)


class TestUpdates:
    def test_every_replica_at_the_same_time_at_its_memorys_pace(self):
        # 40 bytes of parameters, five moves each, at 50 B/s.
        assert seconds(Update("replica", 10)) == 4

    def test_root_takes_as_long(self):
        assert seconds(Update("root", 10)) == 4

    def test_owners_take_what_the_largest_share_takes(self):
        assert seconds(Update("owner", 10, owner_elements=(5, 2, 2, 1))) == 2

    def test_owners_have_to_be_given(self):
        with pytest.raises(ScheduleError, match="0 owners' elements for 4 ranks"):
            seconds(Update("owner", 10))

    def test_fewer_moves_take_less(self):
        assert seconds(Update("replica", 10, bytes_moved=3.0)) == pytest.approx(4 * 3 / 5)

    @pytest.mark.parametrize(("num_threads", "expected"), [(1, 200 / 12), (4, 200 / 48), (20, 200 / 96)])
    def test_on_the_host_threads_share_the_work_up_to_the_cores(self, num_threads, expected):
        assert seconds(Update("host", 10, num_threads=num_threads)) == pytest.approx(expected)

    def test_on_the_host_memory_is_the_limit(self):
        update = Update("host", 10, num_threads=8)
        assert seconds(update, machine(memory_bytes_per_s=20.0)) == pytest.approx(200 / 20)

    def test_hosts_of_all_nodes_at_the_same_time(self):
        assert seconds(Update("host", 10), machine(num_nodes=2), 8) == pytest.approx(200 / 12)

    def test_replicas_without_a_gpu_share_the_memory(self):
        # Two processes move 5 x 1 GB each through 16 GB/s; a core could move 3 x 5.3 GB/s.
        plan = simulate_plan([Update("replica", 250_000_000)], load("cpu-2"), 2)
        assert plan.seconds == pytest.approx(2 * 5e9 / 16e9)

    def test_gpu_needs_a_bandwidth(self):
        with pytest.raises(TopologyError, match="'gpu0' has to update parameters; give it 'bandwidth_bytes"):
            seconds(Update("replica", 10), machine(gpu_bytes_per_s=None))


class TestPlans:
    STAGES = (
        CodecWork("encode", 100, 20),
        Exchange(host_serial(4), 10),
        Update("host", 10, num_threads=4),
        CodecWork("encode", 40, 20),
    )

    def test_stages_follow_one_another(self):
        plan = simulate_plan(self.STAGES, machine(), 4)
        assert plan.seconds == pytest.approx(sum(seconds(stage) for stage in self.STAGES))
        assert plan.seconds_by_name["encode"] == 5 + 2
        assert list(plan.seconds_by_name) == ["encode", "host_serial", "update (host)"]

    def test_description_has_a_line_for_each_name_and_the_total(self):
        lines = simulate_plan(self.STAGES, machine(), 4).describe().splitlines()
        assert [line.split()[0] for line in lines] == ["encode", "host_serial", "update", "total"]
        assert "7000 ms" in lines[0]

    def test_no_stages_take_no_time(self):
        assert simulate_plan([], machine(), 1).seconds == 0


def machine_of_plan_codecs(memory_bytes_per_s=1e6):
    """Two GPUs that move 50 B/s of their memory; 8 cores that add 4 B/s each, and so move 12."""
    gpus = [Device(f"gpu{i}", "gpu", reduce_bytes_per_s=10.0, bandwidth_bytes_per_s=50.0) for i in range(2)]
    host = [
        Device("cpu", "cpu", cores=8, reduce_bytes_per_s=4.0),
        Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s),
    ]
    links = [Link(f"link{i}", gpu.id, "cpu", "pcie", 10.0, 1.0) for i, gpu in enumerate(gpus)]
    links.append(Link("bus", "cpu", "memory", "memory", 1e9, 0.0))
    return Topology(
        "machine_of_plan_codecs", Machine("machine_of_plan_codecs", (*gpus, *host), tuple(links)), 1
    )


def seconds_of_plan_codecs(codec, topology=None):
    return simulate_plan([codec], topology or machine_of_plan_codecs(), 2).seconds


def test_on_a_gpu_the_memory_decides_where_no_rate_is_given():
    assert seconds_of_plan_codecs(CodecWork("encode", 100, bytes_moved=5)) == pytest.approx(100 * 5 / 50)


def test_on_the_host_a_core_moves_as_much_as_when_it_adds():
    assert seconds_of_plan_codecs(CodecWork("sum", 120, where="host", bytes_moved=2)) == pytest.approx(
        120 * 2 / 12
    )


def test_threads_share_the_work_of_a_rank():
    one, four = (CodecWork("sum", 120, where="host", num_threads=count, by_all=False) for count in (1, 4))
    assert seconds_of_plan_codecs(four) == pytest.approx(seconds_of_plan_codecs(one) / 4)


def test_threads_do_not_help_where_the_memory_is_the_limit():
    slow = machine_of_plan_codecs(memory_bytes_per_s=6.0)
    one, four = (CodecWork("sum", 120, where="host", num_threads=count, by_all=False) for count in (1, 4))
    assert (
        seconds_of_plan_codecs(one, slow) == seconds_of_plan_codecs(four, slow) == pytest.approx(120 * 2 / 6)
    )


def test_one_rank_alone_has_the_memory_for_itself():
    slow = machine_of_plan_codecs(memory_bytes_per_s=12.0)
    alone, both = (CodecWork("sum", 120, where="host", by_all=by_all) for by_all in (False, True))
    assert seconds_of_plan_codecs(alone, slow) == pytest.approx(20)
    assert seconds_of_plan_codecs(both, slow) == pytest.approx(40)
