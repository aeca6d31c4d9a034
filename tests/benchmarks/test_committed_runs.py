"""Committed runs of benchmarks: they keep their bounds, are in the docs, and are what is given today."""

import csv
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from benchmarks.attach_quality import cases, exchange_ratio
from benchmarks.exchange_goals import bound_s, of_study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"
WALL_CLOCK = "wall clock over steps"
DOCUMENT = yaml.safe_load((BENCHMARKS / "published_curves" / "curves.yaml").read_text(encoding="utf-8"))
CURVES = {curve["name"]: curve for curve in DOCUMENT["curves"]}
QUICK = ("ResNet-50, PyTorch DDP", "ResNet-50, Caffe2", "Llama 3.1 8B, FSDP")


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_script_exchanges_for_less_than_a_twentieth_of_its_step(seed):
    healthy = [case.plant for case in cases(seed) if case.kind is None]
    assert len(healthy) == 6
    assert max(map(exchange_ratio, healthy)) < 0.05
    assert exchange_ratio({"batch": 512}) > 0.1


def test_the_bound_of_a_step_is_of_the_last_buckets_that_are_the_worst_in_a_committed_run_too(tmp_path):
    assert bound_s(10.0, [4.0, 9.0], [2, 1], 1.0) == 11.0  # the last one alone
    assert bound_s(10.0, [4.0, 9.0], [7, 1], 1.0) == 13.0  # both: from 5 on
    assert bound_s(10.0, [4.0, 9.0], [0, 0], 1.0) == 10.0
    run, copies = RESULTS / "exchange-goals-2xh100", tmp_path / "copies.csv"
    copies.write_bytes(gzip.decompress((run / "host-second-machine.csv.gz").read_bytes()))
    lines = [line for line in of_study(run / "study", copies) if "bound" in line]
    assert lines == ["  bound: 4.580 ms, 0.833 of DDP's, at 32.3 GB/s each way at once"]
    assert not any("bound" in line for line in of_study(run / "study", tmp_path / "none"))


@pytest.fixture
def published():
    with (RESULTS / "published-curves.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_every_published_value_is_committed_and_no_curve_predicts_what_it_knows(published):
    sizes = {(name, size) for name, curve in CURVES.items() for size in curve["published"]}
    assert {(row["curve"], int(row["gpus"])) for row in published} == sizes
    assert all(not set(curve["known"]) & set(curve["published"]) for curve in CURVES.values())
    assert all(curve["source"] for curve in CURVES.values())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quality] * (name not in QUICK)) for name in CURVES]
)
def test_committed_values_of_curves_are_what_is_predicted_today(program, published, name):
    known = {int(row["gpus"]): row for row in published if row["curve"] == name}
    for row in program("published_curves").compared(CURVES[name]):
        written = known[row["gpus"]]
        assert float(row["predicted"]) == pytest.approx(float(written["predicted"]), rel=1e-3)
        assert float(row["low"]) <= float(row["predicted"]) <= float(row["high"])
        assert str(row["inside"]) == written["inside"]


@pytest.mark.quality
@pytest.mark.parametrize("name", ["periodic", "rare periodic", "loader"])
def test_wall_clock_holds_the_true_time_where_no_trimmed_form_does(program, name):
    found = {row["form"]: row["time"] for row in program("rate_forms").rows(name, 3, studies=12)}
    assert found.pop(WALL_CLOCK) > 0.85
    assert min(found.values()) < 0.1


def test_the_committed_table_of_forms_is_that_of_the_simulation_and_within_the_bounds():
    table = pd.read_csv(RESULTS / "rate-forms" / "coverage.csv")
    own = table[table.form == WALL_CLOCK]
    assert own[["time", "speedup"]].min().min() > 0.93
    assert own[["time", "speedup"]].max().max() < 0.98
    readme = (RESULTS / "README.md").read_text(encoding="utf-8")
    for steps, of_steps in table.groupby("steps"):
        by_form = of_steps.sort_values("launches").groupby("form", sort=False).time.agg(list)
        forms = dict.fromkeys(of_steps.form)
        cells = (" and ".join(f"{100 * share:.0f}%" for share in by_form[form]) for form in forms)
        assert f"| {steps} | {' | '.join(cells)} |\n" in readme


class TestSeedQuality:
    @pytest.fixture
    def quality(self, program):
        return program("seed_quality")

    @pytest.fixture
    def committed(self, quality):
        return pd.read_csv(RESULTS / "seed-quality" / quality.FILE)

    def test_the_page_has_the_committed_table_of_few_false_verdicts_and_most_losses(self, quality, committed):
        page = BENCHMARKS.parent / "docs" / "background" / "statistics.md"
        assert "\n".join(quality.table(committed)) in page.read_text(encoding="utf-8")
        equal_or_twice = committed.filter(regex="^false.*(equal|twice).*after$")
        assert equal_or_twice.shape == (11, 3)
        assert equal_or_twice.to_numpy().max() <= 0.05
        three_times = committed.set_index("lossy_seeds")["false, one scatters three times as much, after"]
        assert three_times[3].max() < 0.06
        assert three_times[1].max() < 0.095
        usual = committed[(committed.lossy_seeds == 3) & (committed.num_exact > 1)]
        found = usual.groupby("correlation")["loss of 3 sd found, after"].min()
        assert found[0.0] >= 0.8
        assert found[0.5] >= 0.79
        assert usual[usual.correlation == 0]["loss of 3 sd found, before"].max() < 0.3

    def test_it_runs_and_the_former_rule_is_the_prediction_interval_of_the_largest_spread(self, quality):
        found = quality.rates(quality.Study(3, 1), 20, np.random.default_rng(1))
        assert set(found) == {f"{case}, {rule}" for case in quality.CASES for rule in quality.RULES}
        assert found["loss of 3 sd found, after"] > 0.5 > found["false, equal scatter, after"]

        def of(*scores, lossy=False):
            return quality.Combination(dict(enumerate(scores)), lossy, 2)

        spread, wide = of(-1.0, 0.0, 1.0), of(-2.0, 0.0, 2.0)
        limit = 4.302653 * 2 * (2 / 3) ** 0.5
        trained = [spread, wide, *(of(*[-part * limit] * 3, lossy=True) for part in (0.99, 1.01))]
        assert quality.before(trained) == ["within", "within", "within", "worse"]
