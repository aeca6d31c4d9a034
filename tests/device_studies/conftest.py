"""A made-up clock, so that what is measured is known; what a point gives, in short."""

import itertools
from unittest.mock import Mock

import pytest
import torch

from scaling.device_studies.base import Budget

CPU = torch.device("cpu")
SHORT = Budget(seconds=0.001, min_samples=6, max_samples=6, limit_s=float("inf"))


def measured(experiment, point):
    """The rows of a point, as the runner hands it over."""
    kept = {key: value for key, value in point.items() if key not in ("only_device", "threads")}
    return list(experiment.measure(kept, CPU, SHORT))


def fact(rows, name):
    """Its value, or values of a list; None where there is none."""
    return next((row.get("value", row.get("y")) for row in rows if row.get("fact") == name), None)


def phases(rows):
    return list(dict.fromkeys(row["phase"] for row in rows if "phase" in row))


class FakeClock:
    """Time passes only where a test says so."""

    chain_s = 0.0
    is_asynchronous = False

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def mark(self) -> float:
        return self.now

    def settle(self) -> None:
        pass

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def reuse(self, marks) -> None:
        pass


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    """What `Budget` reads the time from."""
    fake = FakeClock()
    monkeypatch.setattr("scaling.measure.clock.clock_for", lambda _: fake)
    monkeypatch.setattr("scaling.device_studies.base.time.perf_counter", fake.perf_counter)
    return fake


@pytest.fixture
def takes(clock):
    """A step that takes so many seconds of the made-up clock, the first call perhaps others."""

    def make(seconds: float, first: float | None = None):
        times = itertools.chain([seconds if first is None else first], itertools.repeat(seconds))
        return Mock(side_effect=lambda: setattr(clock, "now", clock.now + next(times)))

    return make
