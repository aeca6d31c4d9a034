"""The table of predicted and measured cells says what it claims."""

import csv
import importlib.util
import statistics
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "prediction-4xh200" / "predictions.csv"


@pytest.fixture(scope="module")
def rows():
    with TABLE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def script():
    path = ROOT / "benchmarks" / "prediction_calibration.py"
    spec = importlib.util.spec_from_file_location("prediction_calibration", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_median_error_on_four_gpus_is_at_most_ten_percent(rows):
    errors = [abs(float(row["error_ratio"])) for row in rows if row["error_ratio"]]
    assert len(errors) > 100
    assert statistics.median(errors) <= 0.10


def test_every_compared_cell_has_four_gpus_and_its_error(rows):
    for row in rows:
        assert row["world_size"] == "4"
        if row["measured_s"] and row["simulated_s"]:
            expected = float(row["simulated_s"]) / float(row["measured_s"]) - 1
            assert float(row["error_ratio"]) == pytest.approx(expected, abs=1e-3)
        else:
            assert not row["error_ratio"]


def test_cells_that_nobody_measured_are_marked_and_have_no_measured_time(rows):
    unmeasured = [row for row in rows if row["results"] == "not measured"]
    assert unmeasured
    assert not [row for row in unmeasured if row["measured_s"]]
    assert {row["model"] for row in unmeasured} == {"fcn-r", "fcn-s4", "resnet-56"}


def test_summary_in_the_readme_is_that_of_the_table(rows):
    readme = (ROOT / "benchmarks" / "results" / "README.md").read_text(encoding="utf-8")
    lines = list(script().summary(rows))
    for line in lines[: lines.index("")]:
        assert line in readme
