"""Where one device begins to win, and how well that is known."""

import pytest

from scaling.measure.statistics import Estimate
from scaling.report.device.crossover import Ratio, crossing, crossing_text, ratio_of, rounded


def exact(*pairs):
    return [Ratio(at, value, value, value) for at, value in pairs]


def estimate(median, low=None, high=None):
    return Estimate(median, low, high, "by hand", 10, 1)


def test_break_even_of_a_power_law_is_found_exactly():
    # The ratio is (width / 300) ** 1.5: it is 1 at 300 wherever it is measured.
    found = crossing(exact(*((width, (width / 300) ** 1.5) for width in (10, 100, 1000, 10000))))
    assert found.at == pytest.approx(300)
    assert found.between == (100, 1000)
    assert (found.low, found.high) == (found.at, found.at)


def test_order_of_the_points_does_not_matter():
    points = exact((1000, 4.0), (10, 0.1), (100, 0.25))
    assert crossing(points) == crossing(points[::-1])
    assert crossing(points).at == pytest.approx(100 * 10**0.5)


def test_interval_is_where_its_ends_break_even():
    found = crossing([Ratio(100, 0.5, 0.25, 0.9), Ratio(10000, 2.0, 1.2, 4.0)])
    assert found.low < found.at < found.high
    assert found.at == pytest.approx(1000)
    # The most favourable ratios go from 0.9 to 4 over the same way.
    assert found.low < 150


def test_ends_of_the_interval_are_open_where_they_do_not_cross():
    found = crossing([Ratio(10, 0.9, 0.5, 1.2), Ratio(100, 1.1, 0.8, 1.4)])
    assert (found.low, found.high) == (None, None)
    assert crossing_text(found, "width").endswith("[below 10, above 100] on")


def test_device_that_wins_everywhere_or_nowhere_has_no_break_even_point():
    assert (crossing(exact((1, 2.0), (8, 3.0))).wins, crossing(exact((1, 2.0), (8, 3.0))).at) == (
        "everywhere",
        None,
    )
    found = crossing(exact((1, 0.5), (8, 0.7)))
    assert (found.wins, found.at) == ("nowhere", None)
    assert crossing_text(found, "batch") == "at no measured batch (1 to 8)"


def test_of_several_crossings_the_last_one_counts():
    found = crossing(exact((1, 2.0), (10, 0.5), (100, 2.0)))
    assert found.between == (10, 100)


def test_equal_times_are_no_win():
    assert crossing(exact((1, 1.0), (10, 1.0))).wins == "nowhere"


def test_without_intervals_none_is_told():
    found = crossing([Ratio(1, 0.5, None, None), Ratio(100, 2.0, 1.5, 3.0)])
    assert not found.has_interval
    assert "too few samples for an interval" in crossing_text(found)


def test_nothing_measured_is_said():
    assert crossing([]) is None
    assert crossing_text(None) == "not measured"


def test_ratio_takes_the_opposite_ends_of_the_intervals():
    ratio = ratio_of(5, estimate(8.0, 6.0, 10.0), estimate(2.0, 1.0, 3.0))
    assert (ratio.value, ratio.low, ratio.high) == (4.0, 2.0, 10.0)
    assert ratio_of(5, estimate(8.0), estimate(2.0, 1.0, 3.0)).low is None


def test_t_interval_that_reaches_below_zero_bounds_nothing():
    assert ratio_of(5, estimate(8.0, 6.0, 10.0), estimate(2.0, -1.0, 5.0)).high is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.26, "1.3"), (8.0, "8"), (12.6, "13"), (126, "130"), (1264, "1,300"), (126_400, "130,000")],
)
def test_break_even_points_have_two_digits(value, text):
    assert rounded(value) == text
