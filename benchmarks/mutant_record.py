"""A pytest plugin: writes what became of the tests of one mutant, line by line, and keeps to its time.

The environment says where (`MUTANT_RECORD`), how long one test may take (`MUTANT_TEST_LIMIT_S`), and after
how much processor time of all tests no further one is begun (`MUTANT_LIMIT_S`): on a busy machine as many
are run as on a quiet one. A line is `begun TEST`, `ended TEST`, `failed TEST` or `limit`.
"""

from __future__ import annotations

import faulthandler
import os

import pytest

_BEGAN = pytest.StashKey[float]()


def _write(word: str, test: str = "") -> None:
    with open(os.environ["MUTANT_RECORD"], "a", encoding="utf-8") as record:
        record.write(f"{word} {test}\n")


def _processor_s() -> float:
    """Of this process, and of those that it started and waited for."""
    return sum(os.times()[:4])


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test that never ends takes the process with it."""
    _write("begun", nodeid)
    faulthandler.dump_traceback_later(float(os.environ["MUTANT_TEST_LIMIT_S"]), exit=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What the test said; of one that is set up, called and torn down all three count."""
    if report.failed:
        _write("failed", report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """It came to its end."""
    faulthandler.cancel_dump_traceback_later()
    _write("ended", nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is a failure too."""
    if report.failed:
        _write("failed", report.nodeid)


def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on the time counts."""
    session.config.stash[_BEGAN] = _processor_s()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stops after the test during which the time ran out."""
    taken_s = _processor_s() - item.config.stash[_BEGAN]
    if nextitem is not None and taken_s > float(os.environ["MUTANT_LIMIT_S"]):
        _write("limit")
        item.session.shouldstop = "the mutant's time is over"
