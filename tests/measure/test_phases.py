"""What a step does when, on a clock that the test moves; and what the recorder does with its marks."""

import threading
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest

from scaling.measure import phases
from scaling.measure.clock import Anchor
from scaling.measure.phases import PHASES, UNMARKED, PhaseRecorder


class FakeClock:
    """A device's clock, and the host's, which runs differently. Marks are used again, as events are.

    Attributes:
        now_s: the device's time.
        drift: seconds of the host in one of the device.
        uncertainty_s: of the next anchors.
        chain_s, is_asynchronous: as a clock has them.
        num_marks: that there are.
    """

    def __init__(self):
        self.now_s, self.drift, self.uncertainty_s, self.chain_s = 0.0, 1.0, 0.0, 0.0
        self.is_asynchronous, self.num_settled, self.num_marks = False, 0, 0
        self._host_s, self._host_at_s = 1000.0, 0.0
        self._free, self._pending, self._known = [], {}, {}

    def host_s(self):
        """The host's time."""
        return self._host_s + self.drift * (self.now_s - self._host_at_s)

    def change_drift(self, drift):
        """From now on."""
        self._host_s, self._host_at_s, self.drift = self.host_s(), self.now_s, drift

    def mark(self):
        if not self._free:
            self._free.append(self.num_marks)
            self.num_marks += 1
        mark = self._free.pop()
        self._pending[mark] = self.now_s
        return mark

    def settle(self):
        self.num_settled += 1
        self._known.update(self._pending)
        self._pending = {}

    def seconds(self, start, stop):
        assert {start, stop} <= set(self._known), "asked for a mark that is not passed, or given back"
        return self._known[stop] - self._known[start]

    def anchor(self):
        mark = self.mark()
        self.settle()
        return Anchor(mark, self.host_s(), self.uncertainty_s)

    def reuse(self, marks):
        for mark in marks:
            del self._known[mark]  # fails if it is not this clock's, or given back twice
            self._free.append(mark)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def recorder(clock):
    return PhaseRecorder(clock)


@pytest.fixture
def step(clock, recorder):
    """step(*events): the sample of a split step in which time passes, (seconds) or in a phase of main."""

    def take(*events):
        with recorder.step(profiled=True) as marks:
            for event in events:
                phase, seconds = event if isinstance(event, tuple) else (None, event)
                with marks.phase(phase) if phase else ExitStack():
                    clock.now_s += seconds
        (sample,) = recorder.take()
        return sample

    return take


def spans_of(recorder):
    """Of the only step."""
    (sample,) = recorder.take()
    return sample.spans


def test_unprofiled_steps_have_a_length_and_no_spans_and_keep_their_order(clock, recorder):
    before = clock.num_marks
    with recorder.step(profiled=False) as marks:
        assert marks is UNMARKED
        clock.now_s += 1
        with marks.phase("forward"), marks.on_lane("comm")("communicate"), marks.paused():
            clock.now_s += 2
    assert clock.num_marks - before == 2
    (sample,) = recorder.take()
    assert (sample.step_s, sample.spans) == (3, None)
    for seconds in (3, 1, 2):
        with recorder.step(profiled=False):
            clock.now_s += seconds
    assert [sample.step_s for sample in recorder.take()] == [3, 1, 2]
    assert recorder.take() == []


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        ([1, ("forward", 2), ("backward", 4), 8], [("forward", "main", 1, 3), ("backward", "main", 3, 7)]),
        ([("communicate", 1), ("communicate", 2)], [("communicate", "main", *at) for at in ((0, 1), (1, 3))]),
        ([], []),
    ],
    ids=["two phases", "one twice", "none"],
)
def test_phases_on_main_are_spans_from_the_steps_start(clock, step, events, spans):
    clock.now_s += 50
    assert step(*events).spans == spans


class TestLanesBeside:
    def test_they_run_under_main_and_under_each_other_and_settle_nothing(self, clock, recorder):
        before = clock.num_settled
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            with marks.on_lane("comm")("communicate"):
                clock.now_s += 1
                with marks.on_lane("copy")("h2d"):
                    clock.now_s += 2
            clock.now_s += 4
        assert clock.num_settled == before
        beside = [("communicate", "comm", 0, 3), ("backward", "main", 0, 7), ("h2d", "copy", 1, 3)]
        assert spans_of(recorder) == beside

    def test_another_thread_may_mark_them_and_every_phase_on_every_lane(self, clock, recorder):
        def exchange():
            with recorder.on_lane("comm")("communicate"):
                clock.now_s += 5

        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            thread = threading.Thread(target=exchange)
            thread.start()
            thread.join()
        assert ("communicate", "comm", 0, 5) in spans_of(recorder)
        with recorder.step(profiled=True) as marks:
            for phase in PHASES:
                with marks.phase(phase), marks.on_lane("comm")(phase), marks.on_lane("copy")(phase):
                    pass
        assert len(spans_of(recorder)) == 3 * len(PHASES)


class TestPaused:
    def test_pause_cuts_the_phase_and_is_an_exchange_on_the_hook_lane(self, clock, recorder):
        before = clock.num_marks
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            clock.now_s += 1
            with marks.paused():
                clock.now_s += 2
            clock.now_s += 4
        assert clock.num_marks - before == 2 + 4  # of the step; of the phase and the pause
        cut = [("backward", "main", 0, 1), ("communicate", "hook", 1, 3), ("backward", "main", 3, 7)]
        assert spans_of(recorder) == cut
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            clock.now_s += 1
            with marks.paused(until_beside_ends=True):
                clock.now_s += 1
            clock.now_s += 1
        assert ("backward", "main", 2, 3) in spans_of(recorder)

    @pytest.mark.parametrize(
        ("exchanged_s", "rest"),
        [(2, (2, 10)), (7, (7, 10)), (30, (10, 10))],
        ids=["done before", "done while it waits", "done after it"],
    )
    def test_rest_of_the_phase_begins_when_the_lane_comm_is_done(self, clock, recorder, exchanged_s, rest):
        with recorder.step(profiled=True) as marks:
            backward, exchange = marks.phase("backward"), marks.on_lane("comm")("communicate")
            pause = marks.paused(until_beside_ends=True)
            begun = [(0, backward.__enter__), (1, pause.__enter__), (1, exchange.__enter__)]
            ended = [(2, pause), (10, backward), (exchanged_s, exchange)]
            events = [*begun, *((at_s, partial(one.__exit__, None, None, None)) for at_s, one in ended)]
            for at_s, happens in sorted(events, key=lambda event: event[0]):
                clock.now_s = at_s
                happens()
        assert [span[2:] for span in spans_of(recorder) if span[0] == "backward"] == [(0, 1), rest]


class TestErrors:
    @pytest.mark.parametrize(
        ("lane", "inner", "said"),
        [
            (None, ["foward"], "unknown phase 'foward'; allowed: input, h2d, forward"),
            (None, ["update", "reduce"], "phase 'reduce' inside phase 'update'"),
            ("comm", ["communicate", "reduce"], "phase 'reduce' inside phase 'communicate'"),
        ],
    )
    def test_phase_that_cannot_be_is_an_error_naming_it(self, recorder, lane, inner, said):
        expected = pytest.raises(ValueError, match=said)
        with expected, recorder.step(profiled=True) as marks, ExitStack() as inside:
            for phase in inner:
                inside.enter_context(marks.on_lane(lane)(phase) if lane else marks.phase(phase))

    def test_phase_outside_a_step_is_an_error_and_one_that_raised_is_no_span(self, recorder, clock):
        with pytest.raises(ValueError, match="phase 'update' outside a step"), recorder.phase("update"):
            pass
        with recorder.step(profiled=True) as marks:
            with pytest.raises(KeyError), marks.phase("forward"):
                raise KeyError
            with marks.phase("backward"):
                clock.now_s += 1
        assert spans_of(recorder) == [("backward", "main", 0, 1)]

    @pytest.mark.parametrize("inside", [
        lambda marks: marks.phase("backward"), lambda marks: marks.on_lane("comm")("communicate"),
        lambda marks: marks.paused(),
    ], ids=["phase", "beside", "paused"])  # fmt: skip
    def test_step_that_raised_is_not_recorded_and_the_next_one_is(self, clock, recorder, step, inside):
        def fails():
            with recorder.step(profiled=True) as marks, marks.phase("forward"):
                clock.now_s += 5
                with inside(marks):
                    raise KeyError

        for _ in range(3):
            with pytest.raises((KeyError, ValueError)):
                fails()
            assert step(("forward", 1)).spans == [("forward", "main", 0, 1)]


class TestStartsOnTheHostsClock:
    @pytest.mark.parametrize("drift", [0.9, 1.0, 1.001, 2.0])
    def test_device_whose_clock_drifts_is_followed(self, clock, recorder, drift):
        for change in (drift, 1 / drift, 1.0):
            clock.change_drift(change)
            expected = []
            for _ in range(3):
                clock.now_s += 10
                expected.append(clock.host_s())
                with recorder.step(profiled=True):
                    clock.now_s += 5
            clock.now_s += 2
            taken = recorder.take()
            assert [sample.start_s for sample in taken] == pytest.approx(expected, rel=1e-12)
            assert [sample.step_s for sample in taken] == [5, 5, 5]  # lengths are the device's own

    def test_steps_without_length_start_too_and_uncertainty_is_the_worst_of_all(self, clock, recorder):
        for _ in range(2):
            with recorder.step(profiled=False):
                pass
        assert [sample.start_s for sample in recorder.take()] == [1000.0, 1000.0]
        clock.uncertainty_s = 1e-6
        recorder = PhaseRecorder(clock)
        for uncertainty_s, worst in ((3e-6, 3e-6), (2e-6, 3e-6)):
            clock.uncertainty_s = uncertainty_s
            recorder.take()
            assert recorder.uncertainty_s == worst


class TestMarksOfSomebodyElse:
    @pytest.fixture
    def foreign(self, clock):
        """Marks at 0, 1 and 3 s."""
        marks = []
        for seconds in (1, 2, 0):
            marks.append(clock.mark())
            clock.now_s += seconds
        return marks

    def test_they_are_phases_on_main_and_are_not_given_back(self, clock, recorder, foreign):
        first, second, third = foreign
        for _ in range(3):
            clock.now_s = 0
            with recorder.step(profiled=True) as marks:
                with marks.phase("input"):
                    clock.now_s = 1
                recorder.place("forward", first, second)
                recorder.place("backward", second, third)
            placed = [("forward", "main", 0, 1), ("backward", "main", 1, 3)]
            assert sorted(spans_of(recorder)) == sorted([("input", "main", 0, 1), *placed])
        assert clock.seconds(first, third) == 3
        said = pytest.raises(AssertionError, match="inside a profiled iteration")
        with said, recorder.step(profiled=False):
            recorder.place("forward", *foreign[:2])


@pytest.mark.parametrize("chain_s", [0.0, 1e9], ids=["one by one", "shared"])
def test_later_rounds_need_no_more_marks_than_the_first(clock, recorder, chain_s):
    clock.chain_s = chain_s
    counts = []
    for _ in range(5):
        for _ in range(3):
            with recorder.step(profiled=True) as marks:
                for phase in ("forward", "backward"):
                    with marks.phase(phase), marks.on_lane("comm")("communicate"):
                        clock.now_s += 1
                        if phase == "backward":
                            with marks.paused():
                                clock.now_s += 1
        assert len(recorder.take()) == 3
        counts.append(clock.num_marks)
    assert counts == counts[:1] * 5


class TestPhasesThatFollowEachOther:
    @pytest.mark.parametrize(("gap_s", "second", "num_marks"), [(0.5, (1, 2.5), 3), (2, (3, 4), 4)])
    def test_they_share_a_mark_without_a_pause(self, clock, recorder, monkeypatch, gap_s, second, num_marks):
        host = SimpleNamespace(now_s=0.0)
        monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=lambda: host.now_s))
        clock.chain_s = 1.0
        before = clock.num_marks
        with recorder.step(profiled=True) as marks:
            host.now_s += 5
            for phase in ("forward", "backward"):
                with marks.phase(phase):
                    clock.now_s += 1
                host.now_s += gap_s
                clock.now_s += gap_s
        assert clock.num_marks - before == 2 + num_marks
        assert spans_of(recorder) == [("forward", "main", 0, 1), ("backward", "main", *second)]

    def test_first_phase_begins_with_the_step_and_work_beside_by_itself(self, clock, step, recorder):
        clock.chain_s = 1e9
        assert step(1, ("input", 1)).spans == [("input", "main", 0, 2)]
        # A stream waits for the computation before each exchange: that wait is none of it.
        with recorder.step(profiled=True) as marks:
            for _ in range(2):
                phase = marks.on_lane("comm")
                for name in ("communicate", "reduce"):
                    with phase(name):
                        clock.now_s += 1
                clock.now_s += 4
        expected = [("communicate", 0), ("reduce", 1), ("communicate", 6), ("reduce", 7)]
        assert spans_of(recorder) == [(name, "comm", start, start + 1) for name, start in expected]


def test_how_far_the_device_is_behind_is_known_where_it_runs_by_itself(clock, step):
    assert step(("forward", 1)).behind_s is None  # a host that computes is never ahead
    clock.is_asynchronous = True
    clock.change_drift(1.0)
    behind_s = step(("forward", 1), ("backward", 4)).behind_s
    # The host queued both at the same moment, as far as this clock can tell.
    assert set(behind_s) == {"forward", "backward"}
    assert behind_s["backward"] - behind_s["forward"] == pytest.approx(4, abs=0.1)
