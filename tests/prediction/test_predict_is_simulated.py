"""What is predicted without measurements is what the simulator says, and named costs of software."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.aggregators.registry import BUILT_IN, create
from scaling.bucket import BucketLayout
from scaling.collectives.nccl import nccl_price
from scaling.collectives.plan import Update, simulate_plan
from scaling.errors import ScheduleError
from scaling.prediction.predict import Predictor
from scaling.prediction.strategy import Machinery, Strategy
from scaling.prediction.terms import terms_of, update_terms
from tests.prediction.conftest import cell
from topologies.schema import load, shipped

LAYOUT = BucketLayout.of([("a", (784, 2048)), ("b", (2048,)), ("c", (2048, 10)), ("d", (10,))])


def strategy_of(name, world_size, layout=LAYOUT, **changes):
    stages = create(name).stages(layout, world_size)
    buckets = (tuple(stage for stage in stages if not isinstance(stage, Update)),)
    updates = tuple(stage for stage in stages if isinstance(stage, Update) and stage.site != "replica")
    values = cell(world_size, name, **changes)
    return Strategy(values, buckets, (layout.num_elements,), (4,), updates, layout.num_elements)


def sizes_of(topology):
    """All sizes of a node, and each number of nodes that is a power of two, up to all."""
    node = topology.machine
    of_node = len(node.of_kind("gpu")) or sum(cpu.cores or 1 for cpu in node.of_kind("cpu"))
    return [*range(1, of_node + 1), *[of_node * 2**k for k in range(1, 12) if 2**k <= topology.num_nodes]]


def cases():
    """Sizes of several nodes take seconds each."""
    for machine in shipped():
        for size in sizes_of(topology := load(machine)):
            many = len(topology.on_nodes(size)) > 1
            yield pytest.param(machine, size, marks=[pytest.mark.quality] if many else [])


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
