"""Where the time of a step went, on a clock that the test moves."""

import pytest

from scaling.measure.phases import PHASES, PhaseRecorder


class FakeClock:
    """Marks are numbered; a mark's time is known only after `settle`, as on a device."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_settled = 0
        self._times: list[float] = []
        self._num_known = 0

    def mark(self) -> int:
        self._times.append(self.now_s)
        return len(self._times) - 1

    def settle(self) -> None:
        self.num_settled += 1
        self._num_known = len(self._times)

    def seconds(self, start: int, stop: int) -> float:
        assert max(start, stop) < self._num_known, "asked for a mark that is not in the past"
        return self._times[stop] - self._times[start]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def recorder(clock: FakeClock) -> PhaseRecorder:
    return PhaseRecorder(clock)


def test_step_is_split_into_its_phases(clock, recorder):
    with recorder.step():
        clock.now_s += 1
        with recorder.phase("forward"):
            clock.now_s += 2
        with recorder.phase("backward"):
            clock.now_s += 4
        clock.now_s += 8
    assert recorder.take() == [{"step_s": 15, "forward_s": 2, "backward_s": 4}]


def test_phase_that_comes_twice_is_added_up(clock, recorder):
    with recorder.step():
        for seconds in (1, 2):
            with recorder.phase("communicate"):
                clock.now_s += seconds
            with recorder.phase("reduce"):
                clock.now_s += 10
    assert recorder.take() == [{"step_s": 23, "communicate_s": 3, "reduce_s": 20}]


def test_phases_never_take_longer_than_the_step(clock, recorder):
    for number in range(5):
        with recorder.step():
            for phase in PHASES:
                with recorder.phase(phase):
                    clock.now_s += number
    for row in recorder.take():
        assert row.pop("step_s") == sum(row.values())


def test_steps_keep_their_order_and_are_taken_once(clock, recorder):
    for seconds in (3, 1, 2):
        with recorder.step():
            clock.now_s += seconds
    assert [row["step_s"] for row in recorder.take()] == [3, 1, 2]
    assert recorder.take() == []


def test_phase_that_did_not_occur_has_no_entry(recorder):
    with recorder.step():
        pass
    assert recorder.take() == [{"step_s": 0}]


def test_clock_is_not_settled_inside_the_measured_window(clock, recorder):
    with recorder.step(), recorder.phase("update"):
        clock.now_s += 1
    assert clock.num_settled == 0
    recorder.take()
    assert clock.num_settled == 1


def test_unknown_phase_is_an_error_with_the_names_allowed(recorder):
    with (
        pytest.raises(ValueError, match="unknown phase 'foward'; allowed: input, h2d, forward"),
        recorder.step(),
        recorder.phase("foward"),
    ):
        pass


def test_phase_inside_a_phase_is_an_error_naming_both(recorder):
    with (
        pytest.raises(ValueError, match="phase 'reduce' inside phase 'update'"),
        recorder.step(),
        recorder.phase("update"),
        recorder.phase("reduce"),
    ):
        pass


def test_step_that_raised_is_not_recorded_and_the_next_one_is(clock, recorder):
    def fails() -> None:
        with recorder.step(), recorder.phase("forward"):
            clock.now_s += 5
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with recorder.step(), recorder.phase("forward"):
        clock.now_s += 1
    assert recorder.take() == [{"step_s": 1, "forward_s": 1}]
