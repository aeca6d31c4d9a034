"""How many independent cells a fold is worth, and the committed tables of widths."""

import csv
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def widths(program):
    return program("prediction_widths")


def committed(name):
    with (RESULTS / "prediction-quality" / "widths" / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("inside", "cells", "expected"), [
    (14, 14, "76.8% to 100.0%"), (0, 14, "0.0% to 23.2%"), (147, 151, "93.4% to 99.3%"),
])  # fmt: skip
def test_exact_intervals_are_those_of_clopper_and_pearson(widths, inside, cells, expected):
    assert widths.exact(inside, cells) == expected


@pytest.mark.parametrize(("groups", "expected"), [
    ([[1, 2, 3, 4]], 4), ([[1], [2], [3]], 3),
    ([[1, 1, 1], [5, 5, 5], [9, 9, 9]], 3), ([[1, 5, 9], [1, 5, 9], [1, 5, 9]], 9),
])  # fmt: skip
def test_cells_that_err_together_count_once(widths, groups, expected):
    assert widths.effective(groups) == pytest.approx(expected)


def test_deviations_are_of_the_interval(widths):
    assert widths.deviation(2.0, 0.5, 2.0) == pytest.approx(widths.NORMAL_95)
    assert widths.deviation(1.0, 0.5, 2.0) == pytest.approx(0)


@pytest.mark.parametrize("name", ["folds.csv", "loops.csv"])
def test_tables_of_the_page_are_the_committed_ones(name):
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    for row in committed(name):
        assert "| " + " | ".join(row.values()) + " |" in page


@pytest.mark.quality
def test_committed_rows_are_what_is_predicted_today(widths):
    named = {fold.name: fold for fold in (*widths.FOLDS, *widths.H100_FOLDS)}
    folds = {row["fold"]: row for row in committed("folds.csv")}
    for name in ("4 from 1", "H200 from H100"):
        now = widths.of_fold(named[name])
        assert {column: str(now[column]) for column in ("cells", "inside")}.items() <= folds[name].items()
        assert now["effective"] == pytest.approx(float(folds[name]["effective"]), rel=0.1)
    for row in committed("loops.csv"):
        now = widths.of_loops(named[row["fold"]])
        assert [now["steps"], now["inside 1"]] == [int(row["steps"]), int(row["inside 1"])]
