"""The clocks that phases are marked on: the host's, and a device's by events."""

import time
from types import SimpleNamespace

import pytest
import torch

from scaling.measure import clock as module
from scaling.measure.clock import CudaEventClock, GraphClock, MonotonicClock, clock_for, graphs_can_be_marked


def test_time_between_marks_and_the_anchor_are_the_hosts_on_a_processor():
    clock = clock_for(torch.device("cpu"))
    assert isinstance(clock, MonotonicClock)
    before = time.perf_counter()
    marks = [clock.mark() for _ in range(3)]
    after = time.perf_counter()
    clock.settle()
    assert 0 <= clock.seconds(marks[0], marks[2]) <= after - before
    assert clock.seconds(marks[2], marks[0]) <= 0
    clock.reuse(marks)
    anchor = clock.anchor()
    assert before <= anchor.mark == anchor.host_s <= time.perf_counter()
    assert anchor.uncertainty_s == 0


class FakeDevice:
    """Events that are passed at once, and a host that takes `delays` to hear of it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.delays: list[float] = []
        self.events: list[FakeEvent] = []
        self.num_synchronized = 0

    def synchronize(self) -> None:
        self.num_synchronized += 1


class FakeEvent:
    def __init__(self, device: FakeDevice, options: dict[str, bool]) -> None:
        self._device, self.options = device, options
        self.at_s: float | None = None

    def record(self) -> None:
        self.at_s = self._device.now_s

    def synchronize(self) -> None:
        self._device.now_s += self._device.delays.pop(0)

    def elapsed_time(self, other: "FakeEvent") -> float:
        assert self.at_s is not None
        assert other.at_s is not None
        return (other.at_s - self.at_s) * 1e3


@pytest.fixture
def device(monkeypatch) -> FakeDevice:
    """A device in torch's place."""
    fake = FakeDevice()

    def event(**options: bool) -> FakeEvent:
        fake.events.append(FakeEvent(fake, options))
        return fake.events[-1]

    cuda = SimpleNamespace(Event=event, synchronize=fake.synchronize)
    monkeypatch.setattr(module, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: fake.now_s))
    return fake


class TestEvents:
    def test_events_are_timed_in_seconds_made_once_and_kept_while_they_are_needed(self, device):
        clock = CudaEventClock()
        start = clock.mark()
        device.now_s += 0.25
        assert clock.seconds(start, clock.mark()) == 0.25
        for _ in range(5):
            marks = [clock.mark() for _ in range(3)]
            clock.reuse(marks)
        assert [event.options for event in device.events] == [{"enable_timing": True}] * (2 + 3)
        clock = CudaEventClock()
        kept = clock.mark()
        device.now_s = 7
        clock.reuse([clock.mark()])
        assert clock.mark() is not kept
        assert kept.at_s == 0.25

    def test_anchor_is_the_one_that_the_host_heard_of_soonest_on_the_idle_device(self, device):
        device.now_s = 100.0
        device.delays = [5.0, 3.0, 0.5, 4.0, 2.0]
        anchor = CudaEventClock().anchor()
        assert anchor.mark.at_s == 108.0
        assert (anchor.host_s, anchor.uncertainty_s) == (108.25, 0.25)
        assert (device.delays, device.num_synchronized) == ([], module.ANCHOR_TRIES)

    def test_those_of_a_graph_are_external_which_an_older_torch_cannot_mark(self, device, monkeypatch):
        GraphClock().mark()
        assert device.events[0].options == {"enable_timing": True, "external": True}
        assert graphs_can_be_marked()

        def old_event(*, enable_timing: bool) -> None: ...

        monkeypatch.setattr(module.torch.cuda, "Event", old_event)
        assert not graphs_can_be_marked()


@pytest.mark.gpu
def test_events_of_a_gpu_are_on_the_hosts_clock():
    clock = clock_for(torch.device("cuda"))
    assert isinstance(clock, CudaEventClock)
    first = clock.anchor()
    torch.cuda._sleep(10**8)
    second = clock.anchor()
    passed_s = clock.seconds(first.mark, second.mark)
    doubt_s = first.uncertainty_s + second.uncertainty_s
    assert passed_s == pytest.approx(second.host_s - first.host_s, abs=doubt_s + 1e-5 + passed_s / 1000)
