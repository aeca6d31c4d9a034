"""A recorder of phases on a clock that the test moves."""

import pytest

from scaling.measure.clock import Anchor
from scaling.measure.phases import PhaseRecorder


class FakeClock:
    """A device's clock, and the host's, which runs differently. Marks are used again, as events are.

    Attributes:
        now_s: the device's time.
        drift: seconds of the host in one of the device.
        uncertainty_s: of the next anchors.
        chain_s, is_asynchronous: as a clock has them.
        num_marks: that there are.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.drift = 1.0
        self.uncertainty_s = 0.0
        self.chain_s = 0.0
        self.is_asynchronous = False
        self.num_settled = 0
        self.num_marks = 0
        self._host_s, self._host_at_s = 1000.0, 0.0
        self._free: list[int] = []
        self._pending: dict[int, float] = {}
        self._known: dict[int, float] = {}

    def host_s(self) -> float:
        """The host's time."""
        return self._host_s + self.drift * (self.now_s - self._host_at_s)

    def change_drift(self, drift: float) -> None:
        """From now on."""
        self._host_s, self._host_at_s, self.drift = self.host_s(), self.now_s, drift

    def mark(self) -> int:
        if not self._free:
            self._free.append(self.num_marks)
            self.num_marks += 1
        mark = self._free.pop()
        self._pending[mark] = self.now_s
        return mark

    def settle(self) -> None:
        self.num_settled += 1
        self._known.update(self._pending)
        self._pending = {}

    def seconds(self, start: int, stop: int) -> float:
        assert {start, stop} <= set(self._known), "asked for a mark that is not passed, or given back"
        return self._known[stop] - self._known[start]

    def anchor(self) -> Anchor:
        mark = self.mark()
        self.settle()
        return Anchor(mark, self.host_s(), self.uncertainty_s)

    def reuse(self, marks) -> None:
        for mark in marks:
            del self._known[mark]  # fails if it is not this clock's, or given back twice
            self._free.append(mark)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recorder(clock: FakeClock) -> PhaseRecorder:
    return PhaseRecorder(clock)
