"""Published curves: each names its source, and the committed values are what the model predicts today."""

import csv
from pathlib import Path

import pytest
import yaml

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DOCUMENT = yaml.safe_load((BENCHMARKS / "published_curves" / "curves.yaml").read_text(encoding="utf-8"))
CURVES = {curve["name"]: curve for curve in DOCUMENT["curves"]}
QUICK = ("ResNet-50, PyTorch DDP", "ResNet-50, Caffe2", "Llama 3.1 8B, FSDP")


@pytest.fixture
def committed():
    with (BENCHMARKS / "results" / "published-curves.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def published_curves(program):
    return program("published_curves")


def test_every_value_is_committed_and_no_curve_predicts_what_it_knows(committed):
    sizes = {(name, size) for name, curve in CURVES.items() for size in curve["published"]}
    assert {(row["curve"], int(row["gpus"])) for row in committed} == sizes
    assert all(not set(curve["known"]) & set(curve["published"]) for curve in CURVES.values())
    assert all(curve["source"] for curve in CURVES.values())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.quality] * (name not in QUICK)) for name in CURVES]
)
def test_committed_values_are_what_is_predicted_today(published_curves, committed, name):
    rows = list(published_curves.compared(CURVES[name]))
    known = {int(row["gpus"]): row for row in committed if row["curve"] == name}
    for row in rows:
        written = known[row["gpus"]]
        assert float(row["predicted"]) == pytest.approx(float(written["predicted"]), rel=1e-3)
        assert float(row["low"]) <= float(row["predicted"]) <= float(row["high"])
        assert str(row["inside"]) == written["inside"]
