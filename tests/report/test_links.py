"""Bytes on the links of a machine: simulated from the schedule, and only where what was metered agrees."""

import csv
import shutil
from pathlib import Path

import pytest

from scaling.analysis.links import CellLinks, LinkUse, link_table, links_of
from scaling.registry import trust
from scaling.report import write_report
from scaling.report.figures.maps import busiest_links, draw_links, link_name, link_remarks
from scaling.report.write import read_topology
from scaling.study.rank.launch import plan_record
from tests.made import cell_of
from tests.report.conftest import cells_of, groups_of

REFERENCE = Path(__file__).parents[2] / "results" / "reference" / "budget-4xh200"
PARAMETERS = 1000


@pytest.fixture
def on_gpus(study):
    """A folder of a machine with four GPUs on a switch."""
    shutil.copy(REFERENCE / "topology.yaml", study.folder.path / "topology.yaml")
    return study


def add(study, sent, size=4, plan=None, plan_unknown=None, **cell):
    summary = {"wire_bytes_per_rank": sent, "num_parameters": PARAMETERS}
    summary |= {} if plan is None else {"plan": plan}
    summary |= {} if plan_unknown is None else {"plan_unknown": plan_unknown}
    study.add_steps([[0.5]], world_size=1)
    lines = [[{"iteration": 0, "warmup": False, "step_s": 0.001}]] * size
    return study.add([lines], summary=summary, world_size=size, device="cuda", **cell)


def links(study):
    (group,) = [one for one in groups_of(study) if max(one.world_sizes) > 1]
    return links_of(group, cells_of(study), read_topology(study.folder))


def test_a_ring_puts_what_its_ranks_sent_on_each_ranks_link_in_both_directions(on_gpus):
    add(on_gpus, [6000] * 4, aggregator="ring")
    (cell,), left_out = links(on_gpus)
    assert left_out == {}
    assert {use.link for use in cell.uses} == {f"gpu{i}-nvswitch0{way}" for i in range(4) for way in "<>"}
    assert [use.bytes for use in cell.uses] == pytest.approx([6000.0] * 8)
    for use in cell.uses:
        assert use.utilisation == pytest.approx(6000 / use.bandwidth_bytes_per_s / 0.001)


@pytest.mark.parametrize(("counted", "is_told"), [(8000, True), (4000, False)], ids=["both", "one"])
def test_sums_in_host_memory_go_there_and_come_back(on_gpus, counted, is_told):
    add(on_gpus, [counted] * 4, aggregator="host_parallel")
    told, left_out = links(on_gpus)
    assert (len(told), len(left_out)) == ((1, 0) if is_told else (0, 1))


@pytest.mark.parametrize(("sent", "arm", "passed"), [
    ([12000, 4000, 4000, 4000], {"aggregator": "torch_dpt"},  # the root of a star is the busiest
     {"gpu0-nvswitch0>": 12000, "gpu1-nvswitch0>": 4000}),
    ([6000] * 4, {"aggregator": "ring", "peer_access": False}, {"cpu0-gpu0<": None, "cpu0-gpu3>": None}),
])  # fmt: skip
def test_links_that_carry_it_are_those_of_the_root_or_of_the_host(on_gpus, sent, arm, passed):
    add(on_gpus, sent, **arm)
    (cell,), _ = links(on_gpus)
    found = {use.link: use.bytes for use in cell.uses}
    assert passed.keys() <= found.keys()
    assert all(found[link] == pytest.approx(num_bytes) for link, num_bytes in passed.items() if num_bytes)
    assert any("nvswitch" in link for link in found) == arm.get("peer_access", True)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"aggregator": "ring", "sent": [5000] * 4}, "rank 0 sent 0.005 MB, its schedule would send 0.006 MB"),
    ({"aggregator": "mine"}, "not known to the report"),
    ({"aggregator": "mine", "plan_unknown": "no `stages`"}, "no `stages`"),
    ({"aggregator": "mine", "plan": [{"bytes": {"6000": "0>x"}}]}, "`plan` of its run.json is damaged"),
    ({"aggregator": "mine", "plan": 7}, "`plan` of its run.json is damaged"),
    ({"aggregator": "schedule", "aggregator_parameters": {"collective": "none"}}, "cannot be made"),
    ({"aggregator": "ring", "size": 8, "sent": [7000] * 8}, "does not fit topology.yaml"),
])  # fmt: skip
def test_a_cell_is_left_out_with_the_reason_rather_than_guessed(on_gpus, changes, reason):
    add(on_gpus, **{"sent": [6000] * 4, **changes})
    told, left_out = links(on_gpus)
    assert (told, reason in next(iter(left_out.values()))) == ([], True)


def test_folder_without_topology_and_cells_on_a_cpu_say_so(study):
    add(study, [6000] * 4, aggregator="ring")
    assert "no topology.yaml" in links(study)[1]["ring"]


def test_control_arms_have_no_links(on_gpus):
    add(on_gpus, [0] * 4, aggregator="none")
    assert links(on_gpus) == ([], {})


def test_every_value_of_links_csv_says_that_it_is_simulated(on_gpus):
    add(on_gpus, [6000] * 4, aggregator="all_reduce")
    page = write_report(on_gpus.folder).page.read_text()
    rows = list(csv.DictReader((on_gpus.folder.path / "links.csv").open(newline="")))
    assert len(rows) == 8
    assert {(row["source"], row["kind"]) for row in rows} == {("simulated", "NCCL's own, as a ring")}
    assert "Simulated, not measured" in page
    assert "utilisation" not in (on_gpus.folder.path / "summary.csv").read_text().splitlines()[0]


MINE = """
from dataclasses import dataclass

from scaling.aggregators.schedule import Scheduled
from scaling.collectives.schedule import Schedule, Transfer


@dataclass(frozen=True)
class Chain(Scheduled):
    name = "chain"

    def schedule(self, world_size, layout):
        ranks = range(world_size - 1, 0, -1)
        up = [(Transfer(rank, rank - 1, 0, 1, "add"),) for rank in ranks]
        down = [(Transfer(rank - 1, rank, 0, 1, "copy"),) for rank in reversed(ranks)]
        return Schedule("chain", world_size, num_chunks=1, steps=(*up, *down))
"""


def test_an_aggregator_of_a_users_own_in_one_file_has_links_and_a_figure(on_gpus, tmp_path, monkeypatch):
    (tmp_path / "my_chain.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    trust(["my_chain:Chain"])
    cell = cell_of(device="cuda", aggregator="my_chain:Chain", world_size=4, local_batch=16)
    recorded = plan_record(cell, str(PARAMETERS))
    assert set(recorded) == {"plan"}
    add(on_gpus, [4000, 8000, 8000, 4000], aggregator="my_chain:Chain", **recorded)
    write_report(on_gpus.folder)
    rows = list(csv.DictReader((on_gpus.folder.path / "links.csv").open(newline="")))
    passed = {row["link"]: float(row["bytes"]) for row in rows}
    assert passed["gpu0-nvswitch0>"] == passed["gpu3-nvswitch0<"] == 4000
    assert passed["gpu1-nvswitch0>"] == passed["gpu2-nvswitch0<"] == 8000
    assert {row["kind"] for row in rows} == {"schedule"}
    assert list((on_gpus.folder.path / "figures").glob("links-*.svg"))


def test_more_than_full_use_is_called_impossible_and_of_many_links_the_busiest_are_drawn():
    cell = CellLinks("id", "ring", "ring", 2, [LinkUse("gpu0-cpu0>", 10.0, 1.0, 1.5)])
    assert any("impossible" in remark for remark in link_remarks({"a": [cell]}, {}))
    expected = ["Not in Bytes on the links: x: why."]
    assert link_remarks({"a": []}, {"a": {"x": "why"}, "b": {"x": "why"}}) == expected
    assert draw_links("title", [cell]) is not None
    assert list(link_table([cell])["utilisation"]) == [1.5]
    uses = [LinkUse(f"gpu{i}-switch>", 1.0, 1.0, i / 100) for i in range(40)]
    kept = busiest_links([CellLinks("id", "ring", "ring", 40, uses)])
    assert (len(kept), "gpu0-switch>" in kept) == (32, False)
    assert (link_name("gpu0-switch>"), link_name("gpu0-switch<")) == ("gpu0 to switch", "switch to gpu0")
