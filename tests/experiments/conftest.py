"""A made-up clock, so that what is measured is known."""

import pytest
import torch

import scaling.experiments.base as base

CPU = torch.device("cpu")


class FakeClock:
    """Time passes only where a test says so."""

    chain_s = 0.0

    def __init__(self) -> None:
        self.now = 0.0
        self.num_settled = 0

    def perf_counter(self) -> float:
        return self.now

    def mark(self) -> float:
        return self.now

    def settle(self) -> None:
        self.num_settled += 1

    def seconds(self, start: float, stop: float) -> float:
        return stop - start

    def reuse(self, marks) -> None:
        pass


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    """What `Budget` reads the time from."""
    fake = FakeClock()
    monkeypatch.setattr(base, "clock_for", lambda _: fake)
    monkeypatch.setattr(base.time, "perf_counter", fake.perf_counter)
    return fake


@pytest.fixture
def takes(clock):
    """A step that takes so many seconds of the made-up clock, and counts its calls."""

    def make(seconds: float, first: float | None = None):
        def step() -> None:
            clock.now += first if first is not None and not step.calls else seconds
            step.calls += 1

        step.calls = 0
        return step

    return make
