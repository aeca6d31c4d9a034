"""Faults that are planted are found by the budget, each in its own part, in two real processes.

What is planted lasts ten times as long as a step without it, or longer, on whatever machine this is. Half
of it has to be seen, in the median of some steps.
"""

from contextlib import nullcontext
from dataclasses import replace
from statistics import median

import pytest
import torch

from scaling.measure.budget import RankStep, Span, step_budgets
from scaling.registry import trust
from scaling.study.rank.launch import CellRunner
from tests.made import cell_of
from tests.ranks import as_rank
from tests.training.small import CPU

LATE = cell_of(
    **{"aggregator": "slow_parts:LateOnRank1", "local_batch": 8, "global_batch": 16, "learning_rate": 0.01},
    **{"warmup": 1, "iterations": 3, "max_seconds": 600.0, "profiled_iterations": 6},
    model_parameters={"hidden": [8]},
)
SLOWER = {"aggregator": "slow_parts:SlowExchange", "step": "overlapped", "bucket_mb": 0.001}
SLOW = replace(LATE, model="slow_parts:slow_network", model_parameters={}, **SLOWER)
CELLS = {
    "late": LATE,
    "late, overlapped": replace(LATE, step="overlapped", bucket_mb=25.0),
    "slow": SLOW,
    "slow, blocking": SLOW,
}
# On an idle machine; all grow alike where a step without them takes longer than this.
PLANTED = {"late_s": 0.2, "exchange_s": 0.15, "backward_s": 0.45}
HEALTHY_STEP_S = 0.02

pytestmark = pytest.mark.processes


def seen_by(workers):
    from slow_parts import hooks_that_block, planted  # which the cells name

    runner, group = CellRunner(CPU), workers.group(CPU)
    trust(name for cell in CELLS.values() for name in (cell.model, cell.aggregator))

    def rows_of(cell):
        rows = []
        runner.run(cell, group, rows.extend)
        return rows

    healthy = [row["step_s"] for cell in (LATE, SLOW) for row in rows_of(cell) if not row["warmup"]]
    usual_s = torch.tensor(group.world_size * [0.0])
    usual_s[group.rank] = median(healthy)
    group.all_reduce(usual_s)
    busy = max(1.0, float(usual_s.max()) / HEALTHY_STEP_S)
    vars(planted).update({name: busy * seconds for name, seconds in PLANTED.items()})
    seen = {}
    for name, cell in CELLS.items():
        with hooks_that_block() if "blocking" in name else nullcontext():
            seen[name] = rows_of(cell)
    return {**vars(planted), "rows": seen}


def budgets(ranks, cell):
    """Of each split step of the cell, by rank."""
    steps = []
    for rows in zip(*(rank["rows"][cell] for rank in ranks), strict=True):
        assert len({row["iteration"] for row in rows}) == 1
        if rows[0]["profiled"] and not rows[0]["warmup"]:
            spans = ([Span(*span) for span in row["spans"]] for row in rows)
            both = zip(rows, spans, strict=True)
            steps.append(step_budgets([RankStep(row["step_s"], of, row["start_s"]) for row, of in both]))
    assert len(steps) >= 3
    return steps


def part(ranks, cell, rank, *names):
    """The median of these parts' sum on that rank."""
    return median(sum(step[rank].parts_s[name] for name in names) for step in budgets(ranks, cell))


@pytest.mark.parametrize("cell", CELLS)
def test_parts_sum_to_the_step_on_every_rank(ranks, cell):
    for step in budgets(ranks, cell):
        assert [sum(one.parts_s.values()) for one in step] == pytest.approx([one.step_s for one in step])


@pytest.mark.parametrize("cell", ["late", "late, overlapped"])
class TestRankThatIsLate:
    def test_others_wait_for_it_and_it_arrives_after_them(self, ranks, cell):
        late_s = ranks[0]["late_s"]
        assert part(ranks, cell, 0, "wait") > late_s / 2
        assert part(ranks, cell, 1, "wait") < late_s / 4
        arrivals = [[budget.arrived_after_first_s for budget in step] for step in budgets(ranks, cell)]
        assert median(late for _, late in arrivals) > late_s / 2
        assert median(first for first, _ in arrivals) < late_s / 4

    def test_what_it_did_meanwhile_is_not_explained_on_it_alone(self, ranks, cell):
        first, late = (part(ranks, cell, rank, "unattributed") for rank in (0, 1))
        assert first < ranks[0]["late_s"] / 2 < late


def test_exchange_is_hidden_if_the_hook_returns_a_future_and_exposed_if_it_waits(ranks):
    """The computation stands still while the hook waits: backward takes no longer for it."""
    future, waits = ("slow", "slow, blocking")
    exchange_s = ranks[0]["exchange_s"]
    hidden = {
        cell: median(step[0].hidden_comm_s for step in budgets(ranks, cell)) for cell in (future, waits)
    }
    assert hidden[future] > exchange_s / 2
    assert hidden[waits] < exchange_s / 10
    exposed, computing = (
        part(ranks, waits, 0, *names) - part(ranks, future, 0, *names)
        for names in (("exposed_comm", "wait"), ("backward",))
    )
    assert exposed > exchange_s / 2
    assert computing < exchange_s / 2


if __name__ == "__main__":
    as_rank(seen_by)
