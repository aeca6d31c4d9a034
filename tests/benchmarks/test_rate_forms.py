"""Forms of a launch's time of a step: a short simulation, and the committed long one with its table."""

from pathlib import Path

import pandas as pd
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
README = (BENCHMARKS / "results" / "README.md").read_text(encoding="utf-8")
WALL_CLOCK = "wall clock over steps"


@pytest.fixture
def rate_forms(program):
    return program("rate_forms")


@pytest.mark.quality
@pytest.mark.parametrize("name", ["periodic", "rare periodic", "loader"])
def test_wall_clock_holds_the_true_time_where_no_trimmed_form_does(rate_forms, name):
    found = {row["form"]: row["time"] for row in rate_forms.rows(name, 3, studies=12)}
    assert found.pop(WALL_CLOCK) > 0.85
    assert min(found.values()) < 0.1


def test_the_committed_table_is_that_of_the_simulation_and_within_the_bounds():
    table = pd.read_csv(BENCHMARKS / "results" / "rate-forms" / "coverage.csv")
    own = table[table.form == WALL_CLOCK]
    assert own[["time", "speedup"]].min().min() > 0.93
    assert own[["time", "speedup"]].max().max() < 0.98
    for steps, of_steps in table.groupby("steps"):
        by_form = of_steps.sort_values("launches").groupby("form", sort=False).time.agg(list)
        forms = dict.fromkeys(of_steps.form)
        cells = (" and ".join(f"{100 * share:.0f}%" for share in by_form[form]) for form in forms)
        assert f"| {steps} | {' | '.join(cells)} |\n" in README
