"""Trials on matrices say what the trials of whole studies say."""

from pathlib import Path

import pandas as pd
import pytest

pytestmark = pytest.mark.quality

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
COMMITTED = BENCHMARKS / "results" / "decision-quality" / "offset-levels.csv"
PAGE = ROOT / "docs" / "background" / "statistics.md"


@pytest.mark.parametrize("launches", [3, 5])
def test_p_values_and_verdicts_are_those_of_whole_studies(program, launches):
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

    shares = pd.read_csv(COMMITTED)
    used = shares[(shares.level == SHOWN_LEVEL) & shares.noise.str.startswith("offsets")]
    assert sorted(used.launches) == [3, 5, 9]
    assert (used.false_error < 0.005).all()
    assert (used.false <= 0.04).all()
    assert (used.cell >= 0.93).all()
    page = PAGE.read_text(encoding="utf-8")
    lines = program("offset_levels").table(shares).splitlines()
    assert all(line in page for line in lines if not line.startswith("| interval"))
