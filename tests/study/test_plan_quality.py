"""The estimates of `scaling plan` are near what committed studies took."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plan_quality.py"


@pytest.fixture(scope="module")
def plan_quality():
    spec = importlib.util.spec_from_file_location("plan_quality", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["budget-4xh200", "converge-alexnet-2xh200", "gpt-1xh200", "gpt-2xh200", "converge-gpt-cpu"]
)
def test_estimate_is_within_a_factor_of_one_and_a_half(plan_quality, name):
    runs, measured_s, estimated_s = plan_quality.seconds_of(plan_quality.REFERENCE / name)
    assert runs
    assert 1 / 1.5 < estimated_s / measured_s < 1.5
