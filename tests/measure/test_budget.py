"""Where a step's time goes: timelines made by hand, and laws over random ones."""

import dataclasses
import math
import random

import pytest

from scaling.measure.budget import PARTS, PHASES, RankStep, Span, arrivals_s, step_budgets


def step(step_s, *spans, start_s=None):
    return RankStep(step_s, [Span(*span) for span in spans], start_s)


def parts(budget):
    """The parts that took any time."""
    return {name: seconds for name, seconds in budget.parts_s.items() if seconds > 1e-12}


def one(*spans, step_s=10.0):
    (budget,) = step_budgets([step(step_s, *spans)])
    return budget


class TestOneRank:
    def test_phases_on_main_keep_their_durations_and_the_rest_is_unexplained(self):
        budget = one(("input", "main", 0.0, 1.0), ("forward", "main", 1.5, 4.0), ("update", "main", 4.0, 9.0))
        assert parts(budget) == {"input": 1.0, "forward": 2.5, "update": 5.0, "unattributed": 1.5}
        assert list(budget.parts_s) == list(PARTS)

    def test_step_without_length_has_no_parts(self):
        assert parts(one(("forward", "main", 0.0, 0.0), step_s=0.0)) == {}

    @pytest.mark.parametrize(
        ("spans", "expected"),
        [
            ([], {}),  # step without spans is unexplained
            # Phase that comes twice is summed, exchange on main is exposed.
            ([("communicate", "main", 1.0, 2.0), ("communicate", "main", 4.0, 7.0)], {"exposed_comm": 4.0}),
            # Two lanes exposed at once count the moment once and the exchange first.
            (
                [("communicate", "comm", 1.0, 4.0), ("h2d", "copy", 2.0, 7.0)],
                {"exposed_comm": 3.0, "h2d": 3.0},
            ),
            # Other phases exposed at once go by their order.
            ([("reduce", "comm", 1.0, 4.0), ("encode", "copy", 2.0, 7.0)], {"encode": 5.0, "reduce": 1.0}),
            # Codec beside gives its exposed part alone.
            (
                [("backward", "main", 0.0, 5.0), ("encode", "comm", 4.0, 6.0)],
                {"backward": 5.0, "encode": 1.0},
            ),
            # Spans are clipped to the step.
            (
                [("backward", "main", -3.0, 4.0), ("communicate", "comm", 8.0, 99.0)],
                {"backward": 4.0, "exposed_comm": 2.0},
            ),
            ([("backward", "main", 4.0, 3.9)], {}),  # span that ends before it starts
            # Spans of main that overlap count the moment once.
            (
                [("forward", "main", 0.0, 4.0), ("backward", "main", 3.0, 10.0)],
                {"forward": 4.0, "backward": 6.0},
            ),
            ([("wait", "main", 4.0, 7.0)], {"wait": 3.0}),  # barrier on main is waiting
        ],
    )
    def test_parts(self, spans, expected):
        rest = 10.0 - sum(expected.values())
        assert parts(one(*spans)) == {**expected, **({"unattributed": rest} if rest else {})}

    @pytest.mark.parametrize(
        ("backwards", "exchanges", "hidden_s", "exposed_s"),
        [
            ([(2.0, 6.0)], [("comm", 4.0, 7.5)], 2.0, 1.5),  # sticks out
            ([(2.0, 8.0)], [("comm", 4.0, 7.5)], 3.5, 0.0),
            ([(2.0, 4.0)], [("comm", 4.0, 7.5)], 0.0, 3.5),
            ([(0.0, 4.0)], [("main", 4.0, 7.0)], 0.0, 3.0),
            ([(1.0, 3.0), (4.0, 6.0)], [("comm", 2.0, 8.0)], 3.0, 3.0),  # shows in the gap
            ([(0.0, 5.0)], [("comm", 1.0, 3.0), ("b", 2.0, 4.0)], 3.0, 0.0),  # overlap: hidden once
        ],
    )
    def test_exchange_is_hidden_under_main_alone(self, backwards, exchanges, hidden_s, exposed_s):
        budget = one(
            *(("backward", "main", *at) for at in backwards), *(("communicate", *at) for at in exchanges)
        )
        assert (budget.hidden_comm_s, budget.parts_s["exposed_comm"]) == (hidden_s, exposed_s)

    def test_copy_of_the_batch_is_hidden_under_main_and_exposed_elsewhere(self):
        budget = one(("forward", "main", 0.0, 5.0), ("h2d", "copy", 3.0, 9.0))
        assert budget.hidden_h2d_s == 2.0
        assert parts(budget) == {"forward": 5.0, "h2d": 4.0, "unattributed": 1.0}


class TestSeveralRanks:
    def test_others_wait_for_the_late_rank_and_it_waits_for_nobody(self):
        def rank(arrives):
            return step(
                10.0, ("backward", "main", 0.0, arrives), ("communicate", "main", arrives, 9.0), start_s=5.0
            )

        early, late, middle = step_budgets([rank(2.0), rank(7.0), rank(4.0)])
        assert parts(early) == {"backward": 2.0, "wait": 5.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert parts(late) == {"backward": 7.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert parts(middle) == {"backward": 4.0, "wait": 3.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert [one.arrived_after_first_s for one in (early, late, middle)] == [0.0, 5.0, 2.0]

    def test_steps_that_start_apart_are_compared_on_the_shared_clock(self):
        spans = (("communicate", "main", 1.0, 4.0),)
        first, second = step_budgets([step(5.0, *spans, start_s=100.0), step(5.0, *spans, start_s=100.5)])
        assert parts(first) == pytest.approx({"wait": 0.5, "exposed_comm": 2.5, "unattributed": 2.0})
        assert parts(second) == pytest.approx({"exposed_comm": 3.0, "unattributed": 2.0})
        assert second.arrived_after_first_s == pytest.approx(0.5)

    def test_waiting_under_main_is_hidden_and_no_part_of_the_step(self):
        early = step(6.0, ("backward", "main", 0.0, 4.0), ("communicate", "comm", 1.0, 5.0), start_s=0.0)
        late = step(6.0, ("backward", "main", 0.0, 4.0), ("communicate", "comm", 3.0, 5.0), start_s=0.0)
        first, _ = step_budgets([early, late])
        assert parts(first) == {"backward": 4.0, "exposed_comm": 1.0, "unattributed": 1.0}
        assert first.hidden_comm_s == 3.0

    def test_every_exchange_has_its_own_last_rank(self):
        one = step(9.0, ("communicate", "main", 0.0, 3.0), ("communicate", "main", 5.0, 8.0), start_s=0.0)
        other = step(9.0, ("communicate", "main", 2.0, 3.0), ("communicate", "main", 4.0, 8.0), start_s=0.0)
        first, second = step_budgets([one, other])
        assert (first.parts_s["wait"], first.parts_s["exposed_comm"]) == (2.0, 4.0)
        assert (second.parts_s["wait"], second.parts_s["exposed_comm"]) == (1.0, 4.0)

    def test_moment_is_no_waiting_while_another_exchange_is_going_on(self):
        spans = (("communicate", "comm", 0.0, 6.0), ("communicate", "b", 2.0, 6.0))
        late = (("communicate", "comm", 0.0, 6.0), ("communicate", "b", 5.0, 6.0))
        first, _ = step_budgets([step(6.0, *spans, start_s=0.0), step(6.0, *late, start_s=0.0)])
        assert parts(first) == {"exposed_comm": 6.0}

    def test_exchange_that_ended_before_the_last_arrival_was_all_waiting(self):
        early = step(9.0, ("communicate", "main", 0.0, 3.0), start_s=0.0)
        late = step(9.0, ("communicate", "main", 4.0, 8.0), start_s=0.0)
        first, _ = step_budgets([early, late])
        assert parts(first) == {"wait": 3.0, "unattributed": 6.0}

    @pytest.mark.parametrize(
        "other",
        [
            step(9.0, start_s=0.0),  # no exchange there
            step(9.0, *[("communicate", "main", at, at + 1) for at in (2.0, 5.0)], start_s=0.0),  # two there
            step(9.0, ("communicate", "main", 2.0, 3.0)),  # start not known
        ],
    )
    def test_arrivals_that_cannot_be_compared_make_nothing_waiting(self, other):
        own = step(9.0, ("communicate", "main", 0.0, 3.0), start_s=0.0)
        assert arrivals_s([own, other]) is None
        first, _ = step_budgets([own, other])
        assert parts(first) == {"exposed_comm": 3.0, "unattributed": 6.0}
        assert first.arrived_after_first_s is None

    def test_arrivals_are_by_exchange_and_rank_in_the_order_of_starts(self):
        spans = [("communicate", "comm", 3.0, 4.0), ("communicate", "comm", 1.0, 2.0)]
        found = arrivals_s([step(9.0, *spans, start_s=10.0), step(9.0, *spans, start_s=20.0)])
        assert found.tolist() == [[11.0, 21.0], [13.0, 23.0]]


class TestHook:
    """The computation stands still while the host sets an exchange going."""

    def test_it_is_exposed_where_nothing_else_runs_and_never_hidden(self):
        budget = one(
            ("backward", "main", 0.0, 2.0), ("communicate", "hook", 2.0, 3.0), ("backward", "main", 3.0, 10.0)
        )
        assert parts(budget) == {"backward": 9.0, "exposed_comm": 1.0}
        assert budget.hidden_comm_s == 0.0

    def test_moment_that_an_exchange_covers_too_counts_once(self):
        budget = one(("communicate", "hook", 2.0, 4.0), ("communicate", "comm", 3.0, 6.0))
        assert parts(budget) == {"exposed_comm": 4.0, "unattributed": 6.0}

    def rank(self, arrives):
        return step(
            9.0, ("communicate", "hook", 1.0, 2.0), ("communicate", "comm", arrives, 8.0), start_s=0.0
        )

    def test_it_is_no_arrival(self):
        first, second = step_budgets([self.rank(3.0), self.rank(6.0)])
        assert [one.arrived_after_first_s for one in (first, second)] == [0.0, 3.0]
        assert parts(first) == {"exposed_comm": 3.0, "wait": 3.0, "unattributed": 3.0}

    def test_ranks_may_have_different_numbers_of_them(self):
        without = step(9.0, ("communicate", "comm", 6.0, 8.0), start_s=0.0)
        assert arrivals_s([self.rank(3.0), without]).tolist() == [[3.0, 6.0]]

    def test_waiting_in_it_for_a_late_rank_is_waiting(self):
        early = step(9.0, ("communicate", "hook", 1.0, 8.0), ("communicate", "comm", 1.0, 8.0), start_s=0.0)
        late = step(9.0, ("communicate", "hook", 5.0, 8.0), ("communicate", "comm", 5.0, 8.0), start_s=0.0)
        first, _ = step_budgets([early, late])
        assert parts(first) == {"wait": 4.0, "exposed_comm": 3.0, "unattributed": 2.0}


def random_ranks(seed):
    """Steps with any spans on any lanes, some of them out of bounds."""
    generator = random.Random(seed)
    ranks = []
    for _ in range(generator.choice([1, 2, 4])):
        spans = []
        for _ in range(generator.randrange(14)):
            start_s = generator.uniform(-0.2, 1.1)
            lane = generator.choice(["main", "main", "comm", "copy", "hook"])
            phase = generator.choice([*PHASES, "communicate", "communicate"])
            spans.append(Span(phase, lane, start_s, start_s + generator.uniform(0.0, 0.4)))
        ranks.append(RankStep(1.0, spans, 7.0 + generator.uniform(0.0, 0.1)))
    return ranks


def equal_counts(ranks):
    """The same with as many exchanges on every rank as on rank 0."""
    exchanges = [span for span in ranks[0].spans if span.phase == "communicate"]
    return [
        dataclasses.replace(rank, spans=[s for s in rank.spans if s.phase != "communicate"] + exchanges)
        for rank in ranks
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(200))
def test_parts_sum_to_the_step_and_none_is_negative(seed):
    for ranks in (random_ranks(seed), equal_counts(random_ranks(seed))):
        for budget in step_budgets(ranks):
            assert math.fsum(budget.parts_s.values()) == pytest.approx(budget.step_s, abs=1e-12)
            assert min(budget.parts_s.values()) >= 0.0
            assert 0.0 <= budget.hidden_comm_s <= budget.step_s
            assert 0.0 <= budget.hidden_h2d_s <= budget.step_s


@pytest.mark.parametrize("seed", range(40))
def test_order_of_spans_is_irrelevant(seed):
    ranks = equal_counts(random_ranks(seed))
    turned = [dataclasses.replace(rank, spans=list(reversed(rank.spans))) for rank in ranks]
    for before, after in zip(step_budgets(ranks), step_budgets(turned), strict=True):
        for name in ("step_s", "parts_s", "hidden_comm_s", "hidden_h2d_s", "arrived_after_first_s"):
            assert getattr(after, name) == getattr(before, name)


@pytest.mark.parametrize("seed", range(40))
def test_moving_all_ranks_on_the_shared_clock_changes_nothing(seed):
    ranks = equal_counts(random_ranks(seed))
    moved = [dataclasses.replace(rank, start_s=rank.start_s + 1.0) for rank in ranks]
    for before, after in zip(step_budgets(ranks), step_budgets(moved), strict=True):
        assert after.parts_s == pytest.approx(before.parts_s, abs=1e-9)
