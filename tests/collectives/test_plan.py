"""Stages of a step by hand: exchanges, codecs, updates; and the plan of an exchange as run.json has it."""

import json

import pytest

from scaling.aggregators.prediction import gathered_by_all, rows_to_host
from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.host_staging import host_serial
from scaling.collectives.plan import CodecWork, Exchange, Update, simulate_plan
from scaling.collectives.plan_record import MOST_PAIRS, plan_of, read_plan
from scaling.collectives.ring import ring
from scaling.collectives.simulate import simulate
from scaling.errors import ScheduleError
from topologies.errors import TopologyError
from topologies.model import Device, Link, Machine, Topology
from topologies.schema import load


def machine(num_gpus=4, *, memory_bytes_per_s=1000.0, gpu_bytes_per_s=50.0, num_nodes=1):
    """GPUs that move 50 B/s of their memory; 8 cores that add 4 B/s each, and so move 12."""
    rates = {"reduce_bytes_per_s": 10.0, "bandwidth_bytes_per_s": gpu_bytes_per_s}
    gpus = [Device(f"gpu{i}", "gpu", **rates) for i in range(num_gpus)]
    cpu = Device("cpu", "cpu", cores=8, reduce_bytes_per_s=4.0)
    memory = Device("memory", "host_memory", bandwidth_bytes_per_s=memory_bytes_per_s)
    links = [Link(f"link{i}", gpu.id, "cpu", "pcie", 10.0, 1.0) for i, gpu in enumerate(gpus)]
    links.append(Link("bus", "cpu", "memory", "memory", 1e9, 0.0))
    return Topology("machine", Machine("machine", (*gpus, cpu, memory), tuple(links)), num_nodes)


def seconds(stage, topology=None, world_size=4, **how):
    return simulate_plan([stage], topology or machine(), world_size, **how).seconds


class TestExchanges:
    def test_cost_what_their_schedule_costs_at_their_bytes_tensor_by_tensor(self):
        half = Exchange(ring(4), 10, bytes_per_element=0.5)
        assert seconds(half) == simulate(ring(4), machine(), 5).seconds
        plan = simulate_plan([Exchange(ring(4), elements, name="ring") for elements in (10, 5)], machine(), 4)
        expected = [simulate(ring(4), machine(), 4 * elements).seconds for elements in (10, 5)]
        assert [stage.seconds for stage in plan.stages] == expected
        assert plan.seconds_by_name == {"ring": sum(expected)}

    def test_peer_access_and_places_reach_the_simulation(self):
        on = (Exchange(ring(2), 10**6), load("dual-k80"), 2)
        near = seconds(*on)
        assert seconds(*on, peer_access=False) > near
        assert seconds(*on, places=[(0, "gpu0"), (0, "gpu2")]) > near


HOST = {"bytes_per_s": 20, "where": "host"}
TWO = {"topology": machine(2), "world_size": 2}
ALONE = {"where": "host", "by_all": False}


@pytest.mark.parametrize(
    ("stage", "where", "expected"),
    [
        # GPUs at once; on the host a core each, which 16 ranks share, and the memory, 2 bytes moved for each.
        (CodecWork("encode", 100, bytes_per_s=20), {}, 5),
        (CodecWork("encode", 100, **HOST), {}, 5),
        (CodecWork("encode", 100, **HOST), {"topology": machine(16), "world_size": 16}, 10),
        (CodecWork("encode", 100, **HOST), {"topology": machine(memory_bytes_per_s=80.0)}, 800 / 80),
        # Ranks of other nodes have cores of their own; those without a GPU have one each.
        (CodecWork("encode", 100, **HOST), {"topology": machine(8, num_nodes=2), "world_size": 16}, 5),
        (CodecWork("encode", 5e9, bytes_per_s=1e9, bytes_moved=0.1),
         {"topology": load("cpu-2"), "world_size": 2}, 5),
        # Without a rate the memory of a GPU decides, and on the host what a core moves when it adds.
        (CodecWork("encode", 100, bytes_moved=5), TWO, 100 * 5 / 50),
        (CodecWork("sum", 120, where="host", bytes_moved=2), TWO, 120 * 2 / 12),
        # Threads share the work of a rank, and do not help where the memory is the limit.
        (CodecWork("sum", 120, **ALONE), TWO, 20),
        (CodecWork("sum", 120, **ALONE, num_threads=4), TWO, 5),
        *((CodecWork("sum", 120, **ALONE, num_threads=count),
           {"topology": machine(2, memory_bytes_per_s=6.0), "world_size": 2}, 40) for count in (1, 4)),
        # One rank alone has the memory for itself.
        *((CodecWork("sum", 120, where="host", by_all=by_all),
           {"topology": machine(2, memory_bytes_per_s=12.0), "world_size": 2}, expected)
          for by_all, expected in ((False, 20), (True, 40))),
    ],
)  # fmt: skip
def test_codec_takes_what_its_memory_and_its_cores_allow(stage, where, expected):
    assert seconds(stage, **where) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("update", "where", "expected"),
    [
        # 40 bytes of parameters, five moves each, at the 50 B/s of each GPU's memory.
        (Update("replica", 10), {}, 4),
        (Update("root", 10), {}, 4),
        (Update("owner", 10, owner_elements=(5, 2, 2, 1)), {}, 2),  # the largest share
        (Update("replica", 10, bytes_moved=3.0), {}, 4 * 3 / 5),
        # On the host threads share it up to the cores or the memory, on all nodes at once.
        (Update("host", 10, num_threads=1), {}, 200 / 12),
        (Update("host", 10, num_threads=4), {}, 200 / 48),
        (Update("host", 10, num_threads=20), {}, 200 / 96),
        (Update("host", 10, num_threads=8), {"topology": machine(memory_bytes_per_s=20.0)}, 200 / 20),
        (Update("host", 10), {"topology": machine(num_nodes=2), "world_size": 8}, 200 / 12),
        # Two processes move 5 x 1 GB each through 16 GB/s; a core could move 3 x 5.3 GB/s.
        (Update("replica", 250_000_000), {"topology": load("cpu-2"), "world_size": 2}, 2 * 5e9 / 16e9),
    ],
)  # fmt: skip
def test_update_takes_the_pace_of_its_memory(update, where, expected):
    assert seconds(update, **where) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("stages", "how", "error", "message"),
    [
        ([Exchange(ring(3), 10)], {}, ScheduleError, "ring: made for 3 ranks, run by 4"),
        ([], {"places": [(0, "gpu0")]}, ScheduleError, "1 places for 4 ranks"),
        ([CodecWork("encode", -1, 20)], {}, ScheduleError, "allowed are|must be positive"),
        ([CodecWork("encode", 1, 0)], {}, ScheduleError, "allowed are|must be positive"),
        ([CodecWork("e", 1, 1, "host", 0)], {}, ScheduleError, "allowed are|must be positive"),
        ([Update("owner", 10)], {}, ScheduleError, "0 owners' elements for 4 ranks"),
        ([Update("replica", 10)], {"topology": machine(gpu_bytes_per_s=None)}, TopologyError,
         "'gpu0' has to update parameters; give it 'bandwidth_bytes"),
    ],
)  # fmt: skip
def test_what_cannot_be_priced_is_refused(stages, how, error, message):
    with pytest.raises(error, match=message):
        simulate_plan(stages, world_size=4, **{"topology": machine(), **how})


class TestPlans:
    STAGES = (
        CodecWork("encode", 100, 20), Exchange(host_serial(4), 10), Update("host", 10, num_threads=4),
        CodecWork("encode", 40, 20),
    )  # fmt: skip

    def test_stages_follow_one_another_and_are_added_up_by_name(self):
        plan = simulate_plan(self.STAGES, machine(), 4)
        assert plan.seconds == pytest.approx(sum(seconds(stage) for stage in self.STAGES))
        assert plan.seconds_by_name["encode"] == 5 + 2
        assert list(plan.seconds_by_name) == ["encode", "host_serial", "update (host)"]
        assert simulate_plan([], machine(), 1).seconds == 0


NUM_ELEMENTS = 1000
LAYOUT = BucketLayout.of([("weight", (40, 20)), ("bias", (200,))])


def test_a_plan_is_its_pairs_with_their_bytes_over_all_steps_and_ranks_copy_from_host_memory():
    (record,) = plan_of([Exchange(ring(4), NUM_ELEMENTS)], 4).to_record()
    sent = {"num_steps": 6, "bytes": {"6000": "0>1 1>2 2>3 3>0"}}
    assert record == {"schedule": "ring", "native": False, "library": "", **sent}
    plan = plan_of([rows_to_host(NUM_ELEMENTS, 2)], 2)
    assert plan.to_record()[0]["bytes"] == {"4000": "0>h0 1>h0"}
    assert [plan.sent_bytes(rank) for rank in range(2)] == [4000, 4000]


def test_buckets_are_summed_and_other_exchanges_are_not():
    exchanges = [Exchange(ring(2), 10), Exchange(ring(2), 20), Exchange(ring(2), 20, native=True)]
    plan = plan_of(exchanges, 2)
    assert [sum(each.num_bytes.values()) for each in plan.exchanges] == [240, 160]
    assert [each.num_steps for each in plan.exchanges] == [4, 2]
    assert [each.schedule for each in plan.native] == ["ring"]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_ins_plan_is_read_back_as_it_was(name):
    stages = create(name).stages(LAYOUT, 4)
    plan = plan_of([stage for stage in stages if isinstance(stage, Exchange)], 4)
    read = read_plan(json.loads(json.dumps(plan.to_record())), 4)
    for rank in range(4):
        assert read.sent_bytes(rank) == pytest.approx(plan.sent_bytes(rank), abs=4)


def test_the_largest_plan_is_less_than_300_kb_and_a_larger_one_says_so():
    plan = plan_of([gathered_by_all(123_456_789, 128)], 128)
    assert len(json.dumps(plan.to_record())) < 300_000
    with pytest.raises(ScheduleError, match=f"at most {MOST_PAIRS} are recorded"):
        plan_of([gathered_by_all(1, 129)], 129).to_record()


WHOLE = {"schedule": "ring", "native": False, "library": "", "num_steps": 2, "bytes": {"4": "0>1"}}


@pytest.mark.parametrize("record", [
    *(None, 3, [3], [{}], [{"bytes": {"1": "0>1"}}], [{"bytes": {"x": "0>1"}}], [{"bytes": []}]),
    *([{**WHOLE, "num_steps": float("inf")}], [{**WHOLE, "bytes": {"9" * 400: "0>1"}}]),
])  # fmt: skip
def test_damaged_plans_are_refused(record):
    with pytest.raises(ScheduleError, match=r"`plan` of its run\.json is damaged"):
        read_plan(record, 2)
