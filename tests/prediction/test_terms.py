"""Terms of predictions: of sums in host memory, of captured steps; without measurements the simulator's."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.nccl import nccl_price
from scaling.collectives.plan import Update, simulate_plan
from scaling.errors import ScheduleError
from scaling.prediction.calibration import Calibration
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery, Strategy
from scaling.prediction.terms import input_copy, terms_of, update_terms
from tests.prediction.conftest import cell, machine, strategy
from topologies.schema import load, shipped

LAYOUT = BucketLayout.of([("weight", (1000, 10_000))])
NUM_BYTES = 4 * LAYOUT.num_elements
NETWORK = BucketLayout.of([("a", (784, 2048)), ("b", (2048,)), ("c", (2048, 10)), ("d", (10,))])


def strategy_of(name, world_size, layout=NETWORK, **changes):
    stages = create(name).stages(layout, world_size)
    buckets = (tuple(stage for stage in stages if not isinstance(stage, Update)),)
    updates = tuple(stage for stage in stages if isinstance(stage, Update) and stage.site != "replica")
    values, num = cell(world_size, name, **changes), layout.num_elements
    return Strategy(values, buckets, (num,), (len(layout.names),), updates, num)


def terms(aggregator, world_size=4, **changes):
    own = strategy_of(aggregator, world_size, LAYOUT, **changes)
    return {term.name: term for term in terms_of(own, 0, Machinery(machine(4)), world_size)}


def test_sums_of_all_ranks_are_bound_by_threads_then_by_the_memory_that_they_share():
    sums = {n: terms("host_parallel", threads=n)["host_parallel: sums"] for n in (1, 2, 4, 8)}
    assert {term.kind for term in sums.values()} == {"host_threads"}
    moved = 5 * NUM_BYTES  # four rows are read, one is written
    assert sums[1].flow_s == pytest.approx(moved / (4 * 5e9))
    assert sums[2].flow_s == pytest.approx(moved / (8 * 5e9))
    assert sums[4].flow_s == sums[8].flow_s == pytest.approx(moved / (16 * 5e9))  # 16 cores


def test_sums_of_one_thread_take_less_for_a_further_row_than_for_the_first_two():
    two, four = (terms("host_serial", n)["host_serial: sums"] for n in (2, 4))
    assert ({two.kind, four.kind}, two.flow_s) == ({"host_work"}, pytest.approx(NUM_BYTES / 5e9, rel=0.01))
    assert four.flow_s == pytest.approx(7 / 3 * NUM_BYTES / 5e9, rel=0.01)
    assert terms("host_serial")["mean"].flow_s == pytest.approx(2 / 3 * NUM_BYTES / 5e9)


def test_copies_without_a_sum_have_none():
    assert not any("sums" in name for name in terms("mxnet_local"))
    assert terms("mxnet_local")["sum"].kind == "host_work"  # stated threads, whatever the rank has


def test_latency_of_a_captured_step_is_not_that_of_one_started_by_the_host():
    def ring_terms(step):
        return terms_of(strategy(cell(4, "ring", step=step)), 0, Machinery(machine(4)), 4)

    def of(terms, kind):
        same = [term for term in terms if term.kind == kind]
        return sum(term.latency_s for term in same), sum(term.flow_s for term in same)

    eager, captured = ring_terms("eager"), ring_terms("captured")
    latency_s, flow_s = of(eager, "peer_memory")
    assert of(captured, "peer_memory_captured") == (pytest.approx(latency_s), 0.0)
    assert of(captured, "peer_memory") == (0.0, pytest.approx(flow_s))


def test_through_host_memory_each_byte_crosses_the_bus_once_up_and_once_down():
    for peer_access in (True, False):
        parameters = {"transport": "host_memory"}
        found = terms("schedule", 2, peer_access=peer_access, aggregator_parameters=parameters)["stripes"]
        assert found.kind == "host_memory"
        assert found.flow_s == pytest.approx(NUM_BYTES / 25e9, rel=0.03)  # and the sum's part


def test_input_from_pageable_memory_is_copied_slower_than_from_pinned():
    def copied_s(placement):
        values = cell(4, "ring", local_batch=1000, input_placement=placement)
        return input_copy(replace(strategy(values), sample_bytes=3000), Machinery(machine(4))).value

    assert (copied_s("pinned"), copied_s("pageable")) == (pytest.approx(3e6 / 25e9), pytest.approx(3e6 / 7e9))


@pytest.mark.parametrize(("nodes", "expected"), [(32, 1.0), (33, 1.2)])
def test_messages_between_more_nodes_than_a_switch_connects_may_be_congested(nodes, expected):
    terms = terms_of(strategy(cell(4 * nodes, "all_reduce")), 0, Machinery(machine(nodes=nodes)), 4 * nodes)
    assert sum(term.flow_s for term in terms) == pytest.approx(expected * terms[0].flow_s)
    if expected > 1:
        middle_s, sd_s = Calibration().seconds(terms[1]).value, terms[1].own_sd * terms[1].flow_s
        assert middle_s - 1.96 * sd_s == pytest.approx(0, abs=1e-7)
        assert middle_s + 1.96 * sd_s == pytest.approx(0.4 * terms[0].flow_s, rel=1e-3)
        assert "1 to 1.4 times as long" in terms[1].note


def sizes_of(topology):
    """All sizes of a node, and each number of nodes that is a power of two, up to all."""
    node = topology.machine
    of_node = len(node.of_kind("gpu")) or sum(cpu.cores or 1 for cpu in node.of_kind("cpu"))
    return [*range(1, of_node + 1), *[of_node * 2**k for k in range(1, 12) if 2**k <= topology.num_nodes]]


def cases():
    """Sizes of several nodes take seconds each."""
    for name in shipped():
        for size in sizes_of(topology := load(name)):
            many = len(topology.on_nodes(size)) > 1
            yield pytest.param(name, size, marks=[pytest.mark.quality] if many else [])


def simulated_and_predicted_s(name, machinery, size, peer_access=True):
    """Seconds by `simulate_plan`, by predict, and what the latter adds."""
    strategy = strategy_of(name, size, peer_access=peer_access)
    stages = [*strategy.buckets[0], *(u for u in strategy.updates if u.site == "host")]
    simulated_s = simulate_plan(stages, machinery.topology, size, peer_access=peer_access).seconds
    terms = [*terms_of(strategy, 0, machinery, size), *update_terms(strategy, machinery, size)]
    own, added = (
        sum(term.latency_s + term.flow_s for term in terms if term.is_added is is_added)
        for is_added in (False, True)
    )
    return simulated_s, own, added


@pytest.mark.sampled(40)
@pytest.mark.parametrize("peer_access", [True, False], ids=["peer access", "host-only"])
@pytest.mark.parametrize(("machine", "size"), list(cases()))
def test_predict_takes_what_simulate_plan_says(machine, size, peer_access):
    machinery, differing = Machinery(load(machine)), {}
    for name in BUILT_IN:
        simulated_s, predicted_s, _ = simulated_and_predicted_s(name, machinery, size, peer_access)
        if predicted_s != pytest.approx(simulated_s, rel=1e-9):
            differing[name] = (predicted_s, simulated_s)
    assert not differing


def test_the_table_of_the_page_is_what_both_say():
    page = (Path(__file__).parents[2] / "docs" / "background" / "prediction.md").read_text(encoding="utf-8")
    table = page[page.index("| aggregator | `dual-k80`, 4 ranks") :].partition("\n\n")[0]
    machines = [(load(name), int(size)) for name, size in re.findall(r"`([\w-]+)`, (\d+) ranks", table)]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, re.MULTILINE)
    assert (len(machines), len(rows)) == (4, 7)
    for name, cells in rows:
        for (topology, size), shown in zip(machines, cells.split(" | "), strict=True):
            if shown == "refused":
                strategy = replace(strategy_of(name, size), one_host=True)
                with pytest.raises(ScheduleError, match="does not run there"):
                    Predictor(Machinery(topology)).predict(strategy)
                continue
            simulated_s, own_s, added_s = simulated_and_predicted_s(name, Machinery(topology), size)
            assert shown == f"{1e3 * own_s:.4g}, {1e3 * simulated_s:.4g}, {1e3 * added_s:.3g}"


def test_pairs_of_the_papers_machine_that_reach_each_other_do_so_in_predictions():
    """arXiv 1608.07249: four GPUs, of which 0 and 1 reach each other, and 2 and 3; MXNet is before Caffe."""
    topology, layout = load("dual-k80"), BucketLayout.of([("weights", (784, 2048)), ("more", (2048, 4096))])

    def predicted_s(name):
        return Predictor(Machinery(topology)).predict(strategy_of(name, 4, layout)).exchange.value

    assert predicted_s("all_reduce") == pytest.approx(1.5 * 4 * layout.num_elements / 8e9, rel=0.1)
    host_only = simulate_plan(strategy_of("ring", 4, layout).buckets[0], topology, 4, peer_access=False)
    assert predicted_s("ring") < host_only.seconds
    assert predicted_s("mxnet_device") < predicted_s("torch_dpt")


def test_host_only_is_slower_than_pairs_of_their_own():
    topology = load("dgx1-v100")
    places = topology.ranks(8)
    own = nccl_price(topology, places, 1e8, peer_access=True)
    assert own.seconds < nccl_price(topology, places, 1e8, peer_access=False).seconds / 10
