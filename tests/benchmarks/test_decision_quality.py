"""Decisions on synthetic studies, whole ones and matrices, with a known truth: short and committed runs."""

from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.quality

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "benchmarks" / "results" / "decision-quality"
PAGE = (ROOT / "docs" / "background" / "statistics.md").read_text(encoding="utf-8")

PAIRS, CHOICES = {9: 30, 40: 12}, 20


@pytest.fixture
def quality(program):
    return program("decision_quality")


def missed(rows):
    """The rows that miss their bound by more than chance explains."""
    asked = pd.DataFrame(rows)
    asked = asked[asked.bound != ""]
    assert len(asked) > 1
    limit = asked.bound.str.split().str[-1].astype(float)
    beyond = asked.bound.str.startswith("at most").map({True: 1, False: -1}) * (asked.share - limit)
    return asked[beyond > 2.5 * asked.standard_error]


@pytest.mark.parametrize(("noise", "num_cells", "launches"), [
    ("quiet", 9, 3), ("typical", 9, 3), ("one cell in four noisy", 9, 3), ("heavy tails, unequal", 9, 3),
    ("offsets, four A/A pairs", 9, 5), ("typical", 40, 3),
])  # fmt: skip
def test_comparisons_find_what_is_there_and_nothing_else(quality, noise, num_cells, launches):
    (model,) = [one for one in quality.MODELS if one.name == noise]
    found = missed(quality.pair_rows(model, num_cells, launches, PAIRS[num_cells], seed=11))
    assert found.empty, found.to_string()


@pytest.mark.parametrize("gap", [0.15, 0.0])
def test_best_of_eight_is_chosen_and_equal_ones_are_a_tie(quality, gap):
    noise = quality.UNEQUAL_TYPICAL if gap else quality.QUIET
    found = missed(quality.choice_rows(noise, 3, gap, CHOICES, seed=11))
    assert found.empty, found.to_string()


def test_more_launches_find_smaller_differences_and_as_often_as_detectable_says(quality):
    shares = []
    for launches in (2, 3, 5):
        pairs = quality.Pairs(quality.TYPICAL, 9, launches)
        counts = [pairs.count(5, index) for index in range(PAIRS[9])]
        shares.append(sum(one[quality.FOUND] for one in counts) / PAIRS[9])
        assert 0.3 < sum(one[quality.AT_DETECTABLE] for one in counts) / PAIRS[9] < 0.7
    assert shares == sorted(shares)
    assert shares[-1] > shares[0] + 0.3


def test_page_has_the_tables_of_the_committed_runs(quality):
    """`python benchmarks/decision_quality.py --table benchmarks/results/decision-quality` prints it."""
    assert quality.table(pd.read_csv(COMMITTED / quality.FILE)) in PAGE
    import launch_effects

    assert launch_effects.table(pd.read_csv(COMMITTED / "launch-effects.csv")) in PAGE


@pytest.mark.parametrize("launches", [3, 5])
def test_p_values_and_verdicts_of_matrices_are_those_of_whole_studies(program, launches):
    models, trials, matrices = map(program, ("decision_models", "decision_trials", "matrix_trials"))
    noise = next(one for one in models.MODELS if one.offset)
    pairs = trials.Pairs(noise, 9, launches)
    for index in range(4):
        a, b, _ = pairs.drawn(1, index)
        whole = pairs.compared(a, b)
        said = matrices.compared(*matrices.drawn(noise, launches, 1, index)[:2])
        expected = sorted(one.tested.p_value for one in whole.cells)
        assert sorted(one.p_value for one in said.tested) == pytest.approx(expected)
        assert any(matrices.called(said)) == trials.is_called(whole)
    assert matrices.compared(*matrices.drawn(noise, launches, 1, 0)[:2], 0.1).ratios[0].log_ratio > 0


def test_bounds_hold_at_the_level_that_is_used_within_half_a_point(program):
    from scaling.analysis.study_scatter import SHOWN_LEVEL

    shares = pd.read_csv(COMMITTED / "offset-levels.csv")
    used = shares[(shares.level == SHOWN_LEVEL) & shares.noise.str.startswith("offsets")]
    assert sorted(used.launches) == [3, 5, 9]
    assert (used.false_error < 0.005).all()
    assert (used.false <= 0.04).all()
    assert (used.cell >= 0.93).all()
    lines = program("offset_levels").table(shares).splitlines()
    assert all(line in PAGE for line in lines if not line.startswith("| interval"))
