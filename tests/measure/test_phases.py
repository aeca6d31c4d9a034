"""What a step does when, on a clock that the test moves."""

import threading
from contextlib import ExitStack
from functools import partial

import pytest

from scaling.measure.phases import PHASES, UNMARKED, PhaseRecorder


def spans_of(recorder: PhaseRecorder) -> list[tuple[str, str, float, float]]:
    """Of the only step."""
    (sample,) = recorder.take()
    assert sample.spans is not None
    return sample.spans


class TestUnsplitSteps:
    def test_they_have_a_length_and_no_spans(self, clock, recorder):
        with recorder.step(profiled=False) as marks:
            clock.now_s += 1
            with marks.phase("forward"), marks.on_lane("comm")("communicate"), marks.paused():
                clock.now_s += 2
        (sample,) = recorder.take()
        assert (sample.step_s, sample.spans) == (3, None)

    def test_nothing_is_marked_inside(self, clock, recorder):
        before = clock.num_marks
        with recorder.step(profiled=False) as marks:
            assert marks is UNMARKED
            with marks.phase("forward"):
                pass
        assert clock.num_marks - before == 2

    def test_they_keep_their_order_and_are_taken_once(self, clock, recorder):
        for seconds in (3, 1, 2):
            with recorder.step(profiled=False):
                clock.now_s += seconds
        assert [sample.step_s for sample in recorder.take()] == [3, 1, 2]
        assert recorder.take() == []


class TestMainLane:
    def test_phases_are_spans_from_the_steps_start(self, clock, recorder):
        clock.now_s += 50
        with recorder.step(profiled=True) as marks:
            clock.now_s += 1
            with marks.phase("forward"):
                clock.now_s += 2
            with marks.phase("backward"):
                clock.now_s += 4
            clock.now_s += 8
        assert spans_of(recorder) == [("forward", "main", 1, 3), ("backward", "main", 3, 7)]

    def test_phase_that_comes_twice_is_two_spans(self, clock, recorder):
        with recorder.step(profiled=True) as marks:
            for seconds in (1, 2):
                with marks.phase("communicate"):
                    clock.now_s += seconds
        assert spans_of(recorder) == [("communicate", "main", 0, 1), ("communicate", "main", 1, 3)]

    def test_split_step_in_which_nothing_was_marked_has_no_span(self, recorder):
        with recorder.step(profiled=True):
            pass
        assert spans_of(recorder) == []

    def test_clock_is_not_settled_inside_the_measured_window(self, clock, recorder):
        before = clock.num_settled
        with recorder.step(profiled=True) as marks, marks.phase("update"):
            clock.now_s += 1
        assert clock.num_settled == before


class TestLanesBeside:
    def test_they_run_under_main_and_under_each_other(self, clock, recorder):
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            with marks.on_lane("comm")("communicate"):
                clock.now_s += 1
                with marks.on_lane("copy")("h2d"):
                    clock.now_s += 2
            clock.now_s += 4
        beside = [("communicate", "comm", 0, 3), ("backward", "main", 0, 7), ("h2d", "copy", 1, 3)]
        assert spans_of(recorder) == beside

    def test_another_thread_may_mark_them(self, clock, recorder):
        def exchange() -> None:
            with recorder.on_lane("comm")("communicate"):
                clock.now_s += 5

        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            thread = threading.Thread(target=exchange)
            thread.start()
            thread.join()
        assert ("communicate", "comm", 0, 5) in spans_of(recorder)


class TestPaused:
    def test_phase_is_cut_and_the_pause_is_an_exchange_on_the_hook_lane(self, clock, recorder):
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            clock.now_s += 1
            with marks.paused():
                clock.now_s += 2
            clock.now_s += 4
        cut = [("backward", "main", 0, 1), ("communicate", "hook", 1, 3), ("backward", "main", 3, 7)]
        assert spans_of(recorder) == cut

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

    def test_rest_begins_at_once_where_nothing_ran_beside(self, clock, recorder):
        with recorder.step(profiled=True) as marks, marks.phase("backward"):
            clock.now_s += 1
            with marks.paused(until_beside_ends=True):
                clock.now_s += 1
            clock.now_s += 1
        assert ("backward", "main", 2, 3) in spans_of(recorder)


class TestErrors:
    @pytest.mark.parametrize(
        ("lane", "phases", "said"),
        [
            (None, ["foward"], "unknown phase 'foward'; allowed: input, h2d, forward"),
            (None, ["update", "reduce"], "phase 'reduce' inside phase 'update'"),
            ("comm", ["communicate", "reduce"], "phase 'reduce' inside phase 'communicate'"),
        ],
    )
    def test_phase_that_cannot_be_is_an_error_naming_it(self, recorder, lane, phases, said):
        with (
            pytest.raises(ValueError, match=said),
            recorder.step(profiled=True) as marks,
            ExitStack() as inside,
        ):
            for phase in phases:
                inside.enter_context(marks.on_lane(lane)(phase) if lane else marks.phase(phase))

    def test_phase_outside_a_step_is_an_error(self, recorder):
        with pytest.raises(ValueError, match="phase 'update' outside a step"), recorder.phase("update"):
            pass

    @pytest.mark.parametrize("where", ["phase", "beside", "paused"])
    def test_step_that_raised_is_not_recorded_and_the_next_one_is(self, clock, recorder, where):
        def fails() -> None:
            with recorder.step(profiled=True) as marks, marks.phase("forward"):
                clock.now_s += 5
                inside = {
                    "phase": lambda: marks.phase("backward"),
                    "beside": lambda: marks.on_lane("comm")("communicate"),
                    "paused": marks.paused,
                }[where]
                with inside():
                    raise KeyError

        with pytest.raises((KeyError, ValueError)):
            fails()
        with recorder.step(profiled=True) as marks, marks.phase("forward"):
            clock.now_s += 1
        assert spans_of(recorder) == [("forward", "main", 0, 1)]

    def test_phase_that_raised_is_no_span_where_the_step_goes_on(self, clock, recorder):
        with recorder.step(profiled=True) as marks:
            with pytest.raises(KeyError), marks.phase("forward"):
                raise KeyError
            with marks.phase("backward"):
                clock.now_s += 1
        assert spans_of(recorder) == [("backward", "main", 0, 1)]


def test_every_phase_may_be_marked_on_every_lane(recorder):
    with recorder.step(profiled=True) as marks:
        for phase in PHASES:
            with marks.phase(phase), marks.on_lane("comm")(phase), marks.on_lane("copy")(phase):
                pass
    assert len(spans_of(recorder)) == 3 * len(PHASES)
