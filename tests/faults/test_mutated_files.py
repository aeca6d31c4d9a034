"""Whatever is damaged at random is refused in one message, or read; `SCALING_MUTANTS=20000` tries more."""

import os
from pathlib import Path

import pytest

from tests.faults.mutants import SIZES, grows_faster_than_linearly, growth, try_mutants

pytestmark = pytest.mark.quality

NUM_MUTANTS = int(os.environ.get("SCALING_MUTANTS", "150"))
SEED = os.environ.get("SCALING_MUTANTS_SEED", "ci")


def test_mutants_of_every_kind_are_read_or_refused_in_one_message(tmp_path):
    tried = try_mutants(SEED, NUM_MUTANTS, tmp_path)
    assert (tried.failures, tried.num_mutants) == ({}, NUM_MUTANTS)
    kinds = {name for name, _ in tried.counts}
    assert len(kinds) == 5
    assert all(tried.counts[name, True] > 0 for name in kinds)


def test_calls_grow_with_the_size_of_a_valid_input(tmp_path):
    calls = growth(tmp_path)
    assert len(calls) == 8
    assert not {name: some for name, some in calls.items() if grows_faster_than_linearly(some)}


@pytest.mark.parametrize(("power", "is_told"), [(1, False), (2, True)])
def test_growth_by_squares_is_told(power, is_told):
    assert grows_faster_than_linearly([1000 + 100 * size**power for size in SIZES]) == is_told


def test_a_command_that_raises_is_told(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("topologies.file_format.from_yaml", lambda _: 1 / 0)
    failures = try_mutants(SEED, 12, tmp_path).failures
    assert any("ZeroDivisionError" in problem for problem in failures)
