"""Faults that are planted are found by the budget, each in its own part, in two real processes.

What is planted lasts ten times as long as a step without it, or longer, on whatever machine this is. Half
of it has to be seen, in the median of some steps.
"""

from statistics import median

import pytest

from scaling.measure.budget import RankStep, Span, StepBudget, step_budgets

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def seen(on_ranks):
    """What both ranks saw."""
    return on_ranks("planted_faults_worker.py", 2)


@pytest.fixture(scope="module")
def planted(seen):
    """What was planted, in seconds."""
    return seen[0]


def budgets(seen, cell: str) -> list[list[StepBudget]]:
    """Of each split step of the cell, by rank."""
    steps = []
    for rows in zip(*(rank["rows"][cell] for rank in seen), strict=True):
        assert len({row["iteration"] for row in rows}) == 1
        if rows[0]["profiled"] and not rows[0]["warmup"]:
            ranks = [
                RankStep(row["step_s"], [Span(*span) for span in row["spans"]], row["start_s"])
                for row in rows
            ]
            steps.append(step_budgets(ranks))
    assert len(steps) >= 3
    return steps


def part(seen, cell: str, rank: int, *names: str) -> float:
    """The median of these parts' sum on that rank."""
    return median(sum(step[rank].parts_s[name] for name in names) for step in budgets(seen, cell))


@pytest.mark.parametrize("cell", ["late", "late, overlapped", "slow", "slow, blocking"])
def test_parts_sum_to_the_step_on_every_rank(seen, cell):
    for step in budgets(seen, cell):
        for budget in step:
            assert sum(budget.parts_s.values()) == pytest.approx(budget.step_s)


@pytest.mark.parametrize("cell", ["late", "late, overlapped"])
class TestRankThatIsLate:
    def test_others_wait_for_it(self, seen, planted, cell):
        assert part(seen, cell, 0, "wait") > planted["late_s"] / 2
        assert part(seen, cell, 1, "wait") < planted["late_s"] / 4

    def test_it_arrives_after_them(self, seen, planted, cell):
        arrivals = [[budget.arrived_after_first_s for budget in step] for step in budgets(seen, cell)]
        assert median(late for _, late in arrivals) > planted["late_s"] / 2
        assert median(first for first, _ in arrivals) < planted["late_s"] / 4

    def test_what_it_did_meanwhile_is_not_explained_on_it_alone(self, seen, planted, cell):
        assert part(seen, cell, 1, "unattributed") > planted["late_s"] / 2
        assert part(seen, cell, 0, "unattributed") < planted["late_s"] / 2


class TestHookThatBlocks:
    def hidden(self, seen, cell: str) -> float:
        return median(step[0].hidden_comm_s for step in budgets(seen, cell))

    def test_exchange_of_a_hook_that_returns_a_future_is_hidden(self, seen, planted):
        assert self.hidden(seen, "slow") > planted["exchange_s"] / 2

    def test_exchange_of_a_hook_that_waits_is_exposed(self, seen, planted):
        assert self.hidden(seen, "slow, blocking") < planted["exchange_s"] / 10
        exposed = [part(seen, cell, 0, "exposed_comm", "wait") for cell in ("slow", "slow, blocking")]
        assert exposed[1] - exposed[0] > planted["exchange_s"] / 2

    def test_backward_takes_no_longer_for_it(self, seen, planted):
        """The computation stands still while the hook waits: that is no backward."""
        computing = [part(seen, cell, 0, "backward") for cell in ("slow", "slow, blocking")]
        assert computing[1] - computing[0] < planted["exchange_s"] / 2
