"""Where a step's time goes: timelines made by hand, and laws over random ones."""

import dataclasses
import math
import random

import pytest

from scaling.measure.budget import PARTS, PHASES, RankStep, Span, arrivals_s, step_budgets


def step(step_s, spans, start_s=None):
    """`spans`: as "forward 0 4; communicate comm 3 5", on main where no lane is named."""
    found = []
    for span in filter(str.strip, spans.split(";")):
        phase, *lane, start, stop = span.split()
        found.append(Span(phase, "".join(lane) or "main", float(start), float(stop)))
    return RankStep(step_s, found, start_s)


def parts(budget):
    """The parts that took any time."""
    return {name: seconds for name, seconds in budget.parts_s.items() if seconds > 1e-12}


def one(spans, step_s=10.0):
    (budget,) = step_budgets([step(step_s, spans)])
    return budget


class TestOneRank:
    def test_all_parts_are_there_in_their_order_and_a_step_without_length_has_none(self):
        assert one("forward 0 5; h2d copy 3 9").hidden_h2d_s == 2.0  # under main
        budget = one("forward 0 0", step_s=0.0)
        assert (list(budget.parts_s), parts(budget)) == (list(PARTS), {})

    @pytest.mark.parametrize(
        ("spans", "expected"),
        [
            ("", {}),  # step without spans is unexplained
            # Phases on main keep their durations and the rest is unexplained.
            ("input 0 1; forward 1.5 4; update 4 9", {"input": 1, "forward": 2.5, "update": 5}),
            # Phase that comes twice is summed, exchange on main is exposed.
            ("communicate 1 2; communicate 4 7", {"exposed_comm": 4}),
            # Two lanes exposed at once count the moment once and the exchange first.
            ("communicate comm 1 4; h2d copy 2 7", {"exposed_comm": 3, "h2d": 3}),
            # Other phases exposed at once go by their order.
            ("reduce comm 1 4; encode copy 2 7", {"encode": 5, "reduce": 1}),
            # Codec and copy beside give their exposed part alone.
            ("backward 0 5; encode comm 4 6", {"backward": 5, "encode": 1}),
            ("forward 0 5; h2d copy 3 9", {"forward": 5, "h2d": 4}),
            # Spans are clipped to the step.
            ("backward -3 4; communicate comm 8 99", {"backward": 4, "exposed_comm": 2}),
            ("backward 4 3.9", {}),  # span that ends before it starts
            # Spans of main that overlap count the moment once.
            ("forward 0 4; backward 3 10", {"forward": 4, "backward": 6}),
            ("wait 4 7", {"wait": 3}),  # barrier on main is waiting
            # The computation stands still while the host sets an exchange going.
            ("backward 0 2; communicate hook 2 3; backward 3 10", {"backward": 9, "exposed_comm": 1}),
            ("communicate hook 2 4; communicate comm 3 6", {"exposed_comm": 4}),  # covered too: counts once
        ],
    )
    def test_parts(self, spans, expected):
        rest = 10.0 - sum(expected.values())
        assert parts(one(spans)) == {**expected, **({"unattributed": rest} if rest else {})}

    @pytest.mark.parametrize(
        ("spans", "hidden_s", "exposed_s"),
        [
            ("backward 2 6; communicate comm 4 7.5", 2.0, 1.5),  # sticks out
            ("backward 2 8; communicate comm 4 7.5", 3.5, 0.0),
            ("backward 2 4; communicate comm 4 7.5", 0.0, 3.5),
            ("backward 0 4; communicate 4 7", 0.0, 3.0),
            # Shows in the gap.
            ("backward 1 3; backward 4 6; communicate comm 2 8", 3.0, 3.0),
            ("backward 0 5; communicate comm 1 3; communicate b 2 4", 3.0, 0.0),  # overlap: hidden once
            ("backward 0 2; communicate hook 2 3; backward 3 10", 0.0, 1.0),
        ],
    )
    def test_exchange_is_hidden_under_main_alone(self, spans, hidden_s, exposed_s):
        budget = one(spans)
        assert (budget.hidden_comm_s, budget.parts_s["exposed_comm"]) == (hidden_s, exposed_s)


OWN = step(9.0, "communicate 0 3", 0.0)


class TestSeveralRanks:
    def test_others_wait_for_the_late_rank_on_the_shared_clock_and_it_waits_for_nobody(self):
        arrives = (2, 7, 4)
        ranks = [step(10.0, f"backward 0 {at}; communicate {at} 9", 5.0) for at in arrives]
        early, late, middle = found = step_budgets(ranks)
        assert parts(early) == {"backward": 2.0, "wait": 5.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert parts(late) == {"backward": 7.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert parts(middle) == {"backward": 4.0, "wait": 3.0, "exposed_comm": 2.0, "unattributed": 1.0}
        assert [one.arrived_after_first_s for one in found] == [0.0, 5.0, 2.0]
        first, second = step_budgets([step(5.0, "communicate 1 4", start_s) for start_s in (100.0, 100.5)])
        assert parts(first) == pytest.approx({"wait": 0.5, "exposed_comm": 2.5, "unattributed": 2.0})
        assert parts(second) == pytest.approx({"exposed_comm": 3.0, "unattributed": 2.0})
        assert second.arrived_after_first_s == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("early", "late", "wait_s", "exposed_s", "hidden_s"),
        [
            # Waiting under main is hidden and no part of the step.
            ("backward 0 4; communicate comm 1 5", "backward 0 4; communicate comm 3 5", 0, 1, 3),
            # Every exchange has its own last rank.
            ("communicate 0 3; communicate 5 8", "communicate 2 3; communicate 4 8", 2, 4, 0),
            ("communicate 2 3; communicate 4 8", "communicate 0 3; communicate 5 8", 1, 4, 0),
            # A moment is no waiting while another exchange is going on.
            ("communicate comm 0 6; communicate b 2 6", "communicate comm 0 6; communicate b 5 6", 0, 6, 0),
            # An exchange that ended before the last arrival was all waiting.
            ("communicate 0 3", "communicate 4 8", 3, 0, 0),
            # Waiting in a hook for a late rank is waiting.
            ("communicate hook 1 8; communicate b 1 8", "communicate hook 5 8; communicate b 5 8", 4, 3, 0),
        ],
    )
    def test_waiting(self, early, late, wait_s, exposed_s, hidden_s):
        first, _ = step_budgets([step(9.0, early, 0.0), step(9.0, late, 0.0)])
        known = {"backward": 4.0 * ("backward" in early), "wait": wait_s, "exposed_comm": exposed_s}
        known["unattributed"] = 9.0 - sum(known.values())
        assert (first.parts_s, first.hidden_comm_s) == ({**dict.fromkeys(PARTS, 0.0), **known}, hidden_s)

    @pytest.mark.parametrize(
        "other",
        [
            step(9.0, "", 0.0),  # no exchange there
            step(9.0, "communicate 2 3; communicate 5 6", 0.0),  # two there
            step(9.0, "communicate 2 3"),  # start not known
        ],
    )
    def test_arrivals_that_cannot_be_compared_make_nothing_waiting(self, other):
        assert arrivals_s([OWN, other]) is None
        first, _ = step_budgets([OWN, other])
        assert parts(first) == {"exposed_comm": 3.0, "unattributed": 6.0}
        assert first.arrived_after_first_s is None

    def test_arrivals_are_by_exchange_and_rank_in_the_order_of_starts_and_a_hook_is_none(self):
        spans = "communicate comm 3 4; communicate comm 1 2"
        found = arrivals_s([step(9.0, spans, start_s) for start_s in (10.0, 20.0)])
        assert found.tolist() == [[11.0, 21.0], [13.0, 23.0]]
        hooked = [step(9.0, f"communicate hook 1 2; communicate comm {at} 8", 0.0) for at in (3, 6)]
        first, second = step_budgets(hooked)
        assert [one.arrived_after_first_s for one in (first, second)] == [0.0, 3.0]
        assert parts(first) == {"exposed_comm": 3.0, "wait": 3.0, "unattributed": 3.0}
        assert arrivals_s([hooked[0], step(9.0, "communicate comm 6 8", 0.0)]).tolist() == [[3.0, 6.0]]


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
def test_order_of_spans_and_moving_all_ranks_on_the_shared_clock_change_nothing(seed):
    ranks = equal_counts(random_ranks(seed))
    turned = [dataclasses.replace(rank, spans=list(reversed(rank.spans))) for rank in ranks]
    for before, after in zip(step_budgets(ranks), step_budgets(turned), strict=True):
        for name in ("step_s", "parts_s", "hidden_comm_s", "hidden_h2d_s", "arrived_after_first_s"):
            assert getattr(after, name) == getattr(before, name)
    moved = [dataclasses.replace(rank, start_s=rank.start_s + 1.0) for rank in ranks]
    for before, after in zip(step_budgets(ranks), step_budgets(moved), strict=True):
        assert after.parts_s == pytest.approx(before.parts_s, abs=1e-9)
