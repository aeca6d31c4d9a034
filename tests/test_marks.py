"""What becomes of tests that are marked `gpu` or `sampled`: by the GPUs there are, and by who runs them."""

import itertools
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import _draw

pytest_plugins = ["pytester"]

SETTINGS = """\
[pytest]
addopts = --strict-markers -p no:xdist -p no:cacheprovider -p no:hypothesispytest
markers =
    gpu(count=1): needs that many CUDA devices
"""

TESTS = """\
import pytest

@pytest.mark.gpu
def test_one(): pass

@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.gpu(2))])
class TestSeveral:
    def test_two(self, count): pass

@pytest.mark.gpu(4)
def test_four(): pass

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="Triton is too old")
def test_other_reason(): pass

@pytest.mark.gpu
@pytest.mark.xfail(strict=True)
def test_known_to_fail(): assert False

@pytest.mark.skipif(True, reason="not here")
def test_without_gpu(): pass
"""


@pytest.fixture
def machine(pytester, monkeypatch):
    """machine(promised, visible): a folder with the suite above, on a machine with that many GPUs."""

    def made(promised: str | None, visible: int) -> None:
        monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
        monkeypatch.delenv("SCALING_TEST_GPUS", raising=False)
        if promised is not None:
            monkeypatch.setenv("SCALING_TEST_GPUS", promised)
        pytester.makeini(SETTINGS)
        pytester.makeconftest(Path(__file__).with_name("conftest.py").read_text(encoding="utf-8"))
        pytester.makepyfile(TESTS)

    return made


@pytest.fixture
def run(pytester, machine):
    """run(promised, visible): the suite there; name -> how it ended."""

    def ended(promised: str | None, visible: int, *options: str) -> dict[str, str]:
        machine(promised, visible)
        result = pytester.inline_run(*options)
        return {
            report.nodeid.partition("::")[2]: f"{report.outcome}: {said(report)}"
            for report in result.getreports("pytest_runtest_logreport")
            if report.when == "call" or not report.passed
        }

    return ended


def said(report: pytest.TestReport) -> str:
    if getattr(report, "wasxfail", None) is not None:
        return "xfail"
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")


NEEDS = "Skipped: needs {} GPU(s), and torch sees {}"


def test_without_a_promise_what_needs_more_gpus_is_left_out_and_says_how_many(run):
    assert run(None, 0) == {
        **dict.fromkeys(["test_one", "TestSeveral::test_two[1]"], "skipped: " + NEEDS.format(1, 0)),
        "TestSeveral::test_two[2]": "skipped: " + NEEDS.format(2, 0),
        "test_four": "skipped: " + NEEDS.format(4, 0),
        **dict.fromkeys(["test_other_reason", "test_known_to_fail"], "skipped: " + NEEDS.format(1, 0)),
        "test_without_gpu": "skipped: Skipped: not here",
    }


def test_promised_gpus_that_are_not_there_are_failures(run):
    ended = run("2", 1)
    promise = "failed: SCALING_TEST_GPUS=2, and this was "
    assert ended == {
        **dict.fromkeys(["test_one", "TestSeveral::test_two[1]"], "passed: "),
        "TestSeveral::test_two[2]": promise + NEEDS.format(2, 1),
        "test_four": "skipped: " + NEEDS.format(4, 1),
        "test_other_reason": promise + "Skipped: Triton is too old",
        "test_known_to_fail": "skipped: xfail",
        "test_without_gpu": "skipped: Skipped: not here",
    }


def test_where_there_are_more_than_promised_they_are_used(run):
    ended = run("1", 4)
    ran = {"test_one", "TestSeveral::test_two[1]", "TestSeveral::test_two[2]", "test_four"}
    assert {name for name, how in ended.items() if how == "passed: "} == ran


def test_a_promise_that_is_no_number_is_refused(machine, pytester):
    machine("two", 2)
    refused = pytester.runpytest_inprocess()
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["ERROR: SCALING_TEST_GPUS is 'two'; it takes a number of GPUs, as 2"])


def test_junit_file_says_where_when_and_of_what_the_tests_ran(run, pytester):
    run("2", 2, "--junitxml", "junit.xml")
    (suite,) = ElementTree.parse(pytester.path / "junit.xml").getroot()
    said = {one.get("name"): one.get("value") for one in suite.find("properties")}
    assert (said["torch"], said["SCALING_TEST_GPUS"]) == (torch.__version__, "2")
    assert {"date", "commit", "files differ from the commit", "cpu", "gpus", "driver", "nccl"} <= set(said)
    assert [suite.get(ended) for ended in ("tests", "errors", "failures", "skipped")] == ["7", "1", "0", "3"]


class Case:
    """What the draw sees of a test's case."""

    def __init__(self, **params):
        self.nodeid = f"test_it[{'-'.join(map(str, params.values()))}]"
        self.callspec = SimpleNamespace(params=params)
        self.marks = {"sampled": SimpleNamespace(args=(8,))}
        self.add_marker = lambda name: self.marks.setdefault(name, name)
        self.get_closest_marker = self.marks.get


@pytest.mark.parametrize("shape", [(40,), (5, 8), (3, 4, 7)])
def test_each_value_of_each_parameter_is_run_by_make_test_all_and_one_case_in_eight_by_make_test(shape):
    every = itertools.product(*map(range, shape))
    drawn = [Case(**dict(zip("abc", values, strict=False))) for values in every]
    _draw(drawn)
    left_out = [case for case in drawn if "every_case" in case.marks]
    in_make_test = [case for case in drawn if not {"every_case", "quality"} & set(case.marks)]
    run = [case for case in drawn if case not in left_out]
    assert len(in_make_test) == -(-len(drawn) // 8)
    assert len(run) <= len(in_make_test) + sum(shape)
    for number, name in zip(shape, "abc", strict=False):
        assert {case.callspec.params[name] for case in run} == set(range(number))
    again = [Case(**case.callspec.params) for case in drawn]
    _draw(again)
    assert [case.marks.keys() for case in again] == [case.marks.keys() for case in drawn]
