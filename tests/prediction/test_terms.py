"""Terms of sums in host memory and of captured steps."""

from dataclasses import replace

import pytest

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.collectives.plan import Update
from scaling.prediction.calibration import Calibration
from scaling.prediction.strategy import Machinery, Strategy
from scaling.prediction.terms import input_copy, terms_of
from tests.prediction.conftest import cell, machine, strategy

LAYOUT = BucketLayout.of([("weight", (1000, 10_000))])
NUM_BYTES = 4 * LAYOUT.num_elements


def terms(aggregator, world_size=4, **changes):
    stages = create(aggregator).stages(LAYOUT, world_size)
    buckets = (tuple(stage for stage in stages if not isinstance(stage, Update)),)
    values = cell(world_size, aggregator, **changes)
    known = Strategy(values, buckets, (LAYOUT.num_elements,), (1,), (), LAYOUT.num_elements)
    return {term.name: term for term in terms_of(known, 0, Machinery(machine(4)), world_size)}


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
