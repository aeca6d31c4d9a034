"""Ranks of a host that nobody has seen yet."""

import os

import pytest

from launchers.rank_info import RankInfo
from launchers.watch.start import GRACE_S, Present

BEGAN_S = 1000.0


@pytest.fixture
def present(monkeypatch):
    def make(**environ):
        monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        found = Present(RankInfo(0, 0, 2, 2, "torchrun", table="torchrun"), BEGAN_S)
        found.pids[0] = os.getpid()
        return found

    return make


def test_ranks_that_are_started_by_hand_have_as_long_as_ranks_wait(present):
    late_s = BEGAN_S + 50 * GRACE_S
    assert present().trouble(late_s, 60.0) is None


def test_ranks_that_a_launcher_starts_at_once_have_left_if_they_are_not_there(present):
    found = present(TORCHELASTIC_RUN_ID="none")
    assert found.trouble(BEGAN_S + 50 * GRACE_S, 60.0) == (1, "left first")
    assert found.trouble(BEGAN_S, 60.0) is None
