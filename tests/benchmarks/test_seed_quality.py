"""Decisions over seeds: the committed simulation keeps its bounds, is in the docs, and can be run again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMITTED = BENCHMARKS / "results" / "seed-quality"
PAGE = BENCHMARKS.parent / "docs" / "background" / "statistics.md"


@pytest.fixture
def quality(program):
    return program("seed_quality")


@pytest.fixture
def committed(quality):
    return pd.read_csv(COMMITTED / quality.FILE)


def test_the_page_has_the_committed_table(quality, committed):
    assert "\n".join(quality.table(committed)) in PAGE.read_text(encoding="utf-8")


def test_false_verdicts_are_in_at_most_one_study_of_twenty(committed):
    equal_or_twice = committed.filter(regex="^false.*(equal|twice).*after$")
    assert equal_or_twice.shape == (11, 3)
    assert equal_or_twice.to_numpy().max() <= 0.05
    three_times = committed.set_index("lossy_seeds")["false, one scatters three times as much, after"]
    assert three_times[3].max() < 0.06
    assert three_times[1].max() < 0.095


def test_of_usual_studies_four_in_five_find_a_loss(committed):
    usual = committed[(committed.lossy_seeds == 3) & (committed.num_exact > 1)]
    found = usual.groupby("correlation")["loss of 3 sd found, after"].min()
    assert found[0.0] >= 0.8
    assert found[0.5] >= 0.79
    assert usual[usual.correlation == 0]["loss of 3 sd found, before"].max() < 0.3


def test_it_runs_and_both_rules_judge_the_same_studies(quality):
    found = quality.rates(quality.Study(3, 1), 20, np.random.default_rng(1))
    assert set(found) == {f"{case}, {rule}" for case in quality.CASES for rule in quality.RULES}
    assert found["loss of 3 sd found, after"] > 0.5 > found["false, equal scatter, after"]


def test_former_rule_is_the_prediction_interval_of_the_largest_spread(quality):
    def of(*scores, lossy=False):
        return quality.Combination(dict(enumerate(scores)), lossy, 2)

    spread, wide = of(-1.0, 0.0, 1.0), of(-2.0, 0.0, 2.0)
    limit = 4.302653 * 2 * (2 / 3) ** 0.5
    trained = [spread, wide, *(of(*[-part * limit] * 3, lossy=True) for part in (0.99, 1.01))]
    assert quality.before(trained) == ["within", "within", "within", "worse"]
