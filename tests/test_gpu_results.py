"""The committed junit files of the tests of GPUs say where they ran, and that all passed that could run."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[1] / "benchmarks" / "results" / "gpu-tests").glob("*.xml"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def suite(request):
    (one,) = ElementTree.parse(request.param).getroot()
    return one


@pytest.fixture
def facts(suite):
    return {one.get("name"): one.get("value") for one in suite.find("properties")}


def test_it_says_the_hardware_the_commit_and_the_date(facts):
    assert re.fullmatch("[0-9a-f]{40}", facts["commit"])
    assert re.match(r"20\d\d-\d\d-\d\dT", facts["date"])
    for name in ("driver", "torch", "cuda", "nccl", "python", "cpu"):
        assert facts[name] not in ("", "None"), name


def test_nothing_failed_and_what_was_left_out_needs_more_gpus(suite, facts):
    promised = int(facts["SCALING_TEST_GPUS"])
    assert 1 <= promised <= len(facts["gpus"].split(", "))
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    reasons = {left_out.get("message") for left_out in suite.iter("skipped")}
    for reason in reasons:
        needed, seen = map(int, re.fullmatch(r"needs (\d+) GPU\(s\), and torch sees (\d+)", reason).groups())
        assert needed > max(promised, seen)
    assert int(suite.get("tests")) > int(suite.get("skipped"))
