"""hsdp keeps its gathers within a host, fsdp2 its second one if it is told to."""

from contextlib import nullcontext

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.nccl import nccl_price
from scaling.collectives.plan import Exchange, Update, simulate_plan
from scaling.errors import StudyError
from topologies.schema import load

LAYOUT = BucketLayout.of([("weight", (1000, 1000))])


def seconds(aggregator, world_size, network="infiniband"):
    stages = aggregator.stages(LAYOUT, world_size)
    return simulate_plan(stages, load(f"hgx-h200-x16-{network}"), world_size).seconds


def between_hosts(aggregator, world_size, per_host=8):
    """Elements that cross hosts, by stage."""
    crossing = []
    for stage in (one for one in aggregator.stages(LAYOUT, world_size) if isinstance(one, Exchange)):
        bounds = stage.schedule.bounds(stage.num_elements)
        sent = (one for step in stage.schedule.steps for one in step)
        apart = (one for one in sent if one.source // per_host != one.target // per_host)
        crossing.append(sum(bounds[one.stop] - bounds[one.start] for one in apart))
    return crossing


def test_on_one_host_it_is_fsdp_and_on_two_faster():
    assert seconds(create("hsdp"), 8) == pytest.approx(seconds(create("fsdp2"), 8), rel=0.01)
    assert seconds(create("hsdp"), 16) < 0.9 * seconds(create("fsdp2"), 16)
    # Over eight rails of InfiniBand a gather by all hosts has the rate of NVLink, but hops of all ranks.
    assert seconds(create("hsdp"), 64) < 0.5 * seconds(create("fsdp2"), 64)
    assert seconds(create("hsdp"), 16, "100gbe") < 0.5 * seconds(create("fsdp2"), 16, "100gbe")


def test_groups_that_exchange_at_once_share_the_nic_of_their_host():
    (between,) = (s for s in create("hsdp").stages(LAYOUT, 16) if getattr(s, "name", "") == "all-reduce")
    topology = load("hgx-h200-x16-10gbe")
    own = nccl_price(topology, [(0, "gpu0"), (1, "gpu0")], 4 * between.num_elements, peer_access=True)
    (priced,) = simulate_plan([between], topology, 16).stages
    assert priced.flow_s == pytest.approx(8 * own.flow_s)


def test_gathers_stay_on_the_host_and_of_hierarchical_fsdp_the_second_one():
    assert between_hosts(create("hsdp"), 16) == [0, 2 * LAYOUT.num_elements, 0, 0]
    plain = between_hosts(create("fsdp2"), 16)
    assert all(plain)
    assert between_hosts(create("fsdp2", {"reshard_after_forward": 8}), 16) == [*plain[:2], 0]


@pytest.mark.parametrize("network", ["infiniband", "100gbe"])
def test_hierarchical_fsdp_costs_what_its_second_gather_costs(network):
    fsdp = {by: create("fsdp2", {"reshard_after_forward": by}) for by in (False, 8, True)}
    kept, within, freed = (seconds(one, 16, network) for one in fsdp.values())
    on_a_host = [seconds(fsdp[by], 8, network) for by in (False, 8)]
    assert within - kept == pytest.approx(on_a_host[1] - on_a_host[0], rel=0.01)
    assert within < freed


@pytest.mark.parametrize(
    ("world_size", "said"), [(1, ""), (2, ""), (3, ""), (6, ""), (4, "4 ranks are no groups of 3")]
)
def test_groups_that_do_not_fit_are_refused(world_size, said):
    aggregator = create("fsdp2", {"reshard_after_forward": 3})
    with pytest.raises(StudyError, match=said) if said else nullcontext():
        aggregator.require_size(world_size)
    with pytest.raises(StudyError, match=said) if said else nullcontext():
        aggregator.stages(LAYOUT, world_size)


@pytest.mark.parametrize(("name", "key", "value", "said"), [
    ("fsdp2", "reshard_after_forward", 1, "reshard_after_forward is 1; as a number"),
    ("hsdp", "shard_ranks", 0, "shard_ranks is 0"),
])  # fmt: skip
def test_groups_that_are_none_are_refused(name, key, value, said):
    with pytest.raises(StudyError, match=said):
        create(name, {key: value})


@pytest.mark.parametrize(("world_size", "shards"), [(2, 2), (4, 4), (6, 2), (12, 4), (16, 8)])
def test_each_rank_updates_its_shard(world_size, shards):
    (update,) = (s for s in create("hsdp").stages(LAYOUT, world_size) if isinstance(s, Update))
    assert update.owner_elements == (LAYOUT.num_elements // shards,) * world_size


def test_without_shards_it_is_an_all_reduce_and_every_replica_updates():
    reduction, update = create("hsdp", {"shard_ranks": 1}).stages(LAYOUT, 4)
    assert update.site == "replica"
    assert reduction.schedule.steps
