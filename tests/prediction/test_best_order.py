import pytest

from scaling.collectives.plan import simulate_plan
from scaling.prediction.best_order import search
from tests.prediction.conftest import cell, machine, strategy
from topologies.errors import TopologyError
from topologies.schema import load


def test_on_equal_links_no_order_is_better():
    found = search(strategy(cell(4)), machine(4))
    assert found["gain_ratio"] == pytest.approx(1)
    assert "equally long" in found["text"]
    assert found["simulated"] is True


def test_a_ring_crosses_between_boards_as_seldom_as_it_can():
    topology = load("dual-k80")
    found, two = (search(strategy(cell(n)), topology) for n in (4, 2))
    assert found["search"] == "exact: all 24 orders"
    boards = [topology.machine.by_id[device].board for _, device in found["best_order"]]
    assert len({topology.machine.by_id[device].board for _, device in two["best_order"]}) == 1
    assert sum(a != b for a, b in zip(boards, [*boards[1:], boards[0]], strict=True)) == 2
    assert found["gain_ratio"] > 1
    assert found["best_s"] <= simulate_plan(strategy(cell(4)).buckets[0], topology, 4).seconds


def test_many_places_are_searched_by_a_stated_heuristic():
    found = search(strategy(cell(8)), load("pcie-8"))
    assert found["search"].startswith("heuristic")
    assert found["best_s"] <= found["worst_s"]


def test_a_librarys_order_is_its_own():
    assert search(strategy(cell(4, "all_reduce")), machine(4)) is None
    assert search(strategy(cell(4, "none")), machine(4)) is None


def test_too_few_places():
    with pytest.raises(TopologyError, match="4 places"):
        search(strategy(cell(8)), machine(4))
