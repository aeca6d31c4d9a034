"""How cells compare in words, and where one device begins to take less time."""

import math
from dataclasses import replace

import pytest

from scaling.analysis.decisions import Difference
from scaling.report.device.comparisons import crossing, crossing_text, least, reached, rounded, times_of


def exact(*pairs):
    """Ratios of one launch."""
    return {at: Difference(math.log(value), None, None) for at, value in pairs}


def known(ratio, half):
    """A ratio whose 95% interval reaches `half` to both sides, as logarithms."""
    return Difference(math.log(ratio), half / 1.96, 1e6)


POWER_LAW = exact(*((width, (width / 300) ** 1.5) for width in (10, 100, 1000, 10000)))
BETWEEN = {100: known(0.5, 0.6), 10000: known(2.0, 0.6)}


@pytest.mark.parametrize(("points", "at"), [
    (POWER_LAW, 300), (exact((1000, 4.0), (10, 0.1), (100, 0.25)), 100 * 10**0.5),
    (exact((1, 2.0), (10, 0.5), (100, 2.0)), 10 * 10**0.5), (BETWEEN, 1000),
], ids=["a power law, exactly", "points of any order", "the last of several", "with intervals"])  # fmt: skip
def test_devices_break_even_where_their_ratio_is_one(points, at):
    assert crossing(points) == crossing(dict(reversed(points.items())))
    assert crossing(points).at == pytest.approx(at)


def test_interval_is_where_its_ends_break_even():
    found = crossing(BETWEEN)
    # The most favourable ratios go from 0.91 to 3.6 over the same way.
    assert found.ends == (pytest.approx(136, rel=0.01), pytest.approx(1e6 / 136, rel=0.01))


@pytest.mark.parametrize(("points", "text"), [
    (POWER_LAW, "from batch 300 on"), (exact((1, 2.0), (8, 3.0)), "at every measured batch (1 to 8)"),
    (exact((1, 0.5), (8, 0.7)), "at no measured batch (1 to 8)"),
    (exact((1, 1.0), (10, 1.0)), "at no measured batch (1 to 10)"),  # equal times are no win
    ({10: known(0.9, 0.4), 100: known(1.1, 0.4)}, "from batch 33 [below 10, above 100] on"),
    ({1: known(1.1, 0.3), 8: known(3.0, 0.3)}, "at every measured batch (1 to 8; undecided at some)"),
    ({1: known(2.0, 0.3), 8: known(3.0, 0.3)}, "at every measured batch (1 to 8)"),
    ({1: None}, "not measured"),
])  # fmt: skip
def test_where_a_device_takes_less_time_is_said(points, text):
    found = crossing(points)
    assert (crossing_text(found, "batch"), bool(found and found.is_between)) == (
        text,
        text.startswith("from"),
    )


@pytest.mark.parametrize(("value", "text"), [
    (1.26, "1.3"), (8.0, "8"), (12.6, "13"), (126, "130"), (1264, "1,300"), (126_400, "130,000"),
])  # fmt: skip
def test_break_even_points_have_two_digits(value, text):
    assert rounded(value) == text


@pytest.mark.parametrize(("differences", "text"), [
    ([known(2.0, 0.1)], "2.0 times"),
    ([known(1.005, 0.01)], "1.0 times (a tie within 3%)"),
    ([known(1.1, 0.2)], "1.1 times (undecided)"), ([Difference(0.1, None, None)], "1.1 times"),
    ([known(2.0, 0.1), known(1.1, 0.2)], "1.1 to 2.0 times (undecided for 1 of 2)"),
    # Each alone is significant at 5%; of five together none is.
    ([known(1.1, 0.09)] * 5, "1.1 times (undecided for 5 of 5)"),
])  # fmt: skip
def test_ratios_say_what_the_launches_leave_open(differences, text):
    assert times_of(differences) == text


def test_cells_that_are_not_shown_to_take_longer_are_among_the_least(of):
    made = of("batch-sizes")
    for batch, launches in ((1, (1.00, 1.05, 0.96)), (2, (1.01, 0.97, 1.04)), (4, (3.0, 3.1, 2.9))):
        made.add([[seconds] * 7 for seconds in launches], batch=batch, model="m")
    assert sorted(cell.point["batch"] for cell in least(made.results().cells)) == [1, 2]


def test_point_that_comes_near_the_least_is_a_range_where_launches_leave_it_open(of):
    made = of("cpu-threads")
    # Two threads take 3% more than four, give or take 5%: whether two are enough is open.
    for threads, launches in ((1, (2.0, 2.1, 1.9)), (2, (1.03, 1.09, 0.98)), (4, (1.0, 0.96, 1.05))):
        made.add([[seconds] * 7 for seconds in launches], threads=threads, model="m", batch=1)
    found = reached(made.results().cells, "threads", 1.03)
    assert found.text("threads") == "2 to 4 (undecided)"
    assert replace(found, is_bound=True).text("threads") == "2 to 4 or more (undecided)"


def test_cells_of_one_device_share_their_launches(of):
    """What a launch does to all of its cells cancels, whatever their threads."""
    made = of("cpu-threads")
    for threads, factor in ((1, 2.0), (2, 1.5), (4, 1.0), (8, 0.9), (16, 0.8)):
        made.add([[shared * factor] * 7 for shared in (1.0, 1.4, 0.7)], threads=threads, model="m", batch=1)
    first, *_, last = made.results().cells
    assert last.difference(first).interval[1] < 2.51
    assert first.estimate().high > 2.2
