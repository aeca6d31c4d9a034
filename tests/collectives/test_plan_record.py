"""The plan of an exchange as run.json has it: exact totals, read back the same, and bounded in size."""

import json

import pytest

from scaling.aggregators.prediction import gathered_by_all, rows_to_host
from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Exchange
from scaling.collectives.plan_record import MOST_PAIRS, plan_of, read_plan
from scaling.collectives.ring import ring
from scaling.errors import ScheduleError

NUM_ELEMENTS = 1000
LAYOUT = BucketLayout.of([("weight", (40, 20)), ("bias", (200,))])


def test_a_rings_plan_is_its_pairs_with_their_bytes_over_all_steps():
    (record,) = plan_of([Exchange(ring(4), NUM_ELEMENTS)], 4).to_record()
    assert record == {
        "schedule": "ring",
        "native": False,
        "library": "",
        "num_steps": 6,
        "bytes": {"6000": "0>1 1>2 2>3 3>0"},
    }


def test_host_memory_counts_for_the_rank_that_copies_from_it():
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
