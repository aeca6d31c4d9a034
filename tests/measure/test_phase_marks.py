"""How the recorder deals with marks: places them in time, shares them, and gives them back to the clock."""

from types import SimpleNamespace

import pytest

from scaling.measure import phases
from scaling.measure.phases import PhaseRecorder


@pytest.fixture
def host(monkeypatch) -> SimpleNamespace:
    """The host's clock that says whether one mark follows another at once; moves when the test says so."""
    fake = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(phases, "time", SimpleNamespace(perf_counter=lambda: fake.now_s))
    return fake


class TestStartsOnTheHostsClock:
    def test_step_starts_when_the_host_says(self, clock, recorder):
        clock.now_s += 3
        expected = clock.host_s()
        with recorder.step(profiled=False):
            clock.now_s += 1
        (sample,) = recorder.take()
        assert sample.start_s == pytest.approx(expected)

    @pytest.mark.parametrize("drift", [0.9, 1.001, 2.0])
    def test_device_whose_clock_drifts_is_followed(self, clock, recorder, drift):
        expected = []
        for change in (drift, 1 / drift, 1.0):
            clock.change_drift(change)
            for _ in range(3):
                clock.now_s += 10
                expected.append(clock.host_s())
                with recorder.step(profiled=True):
                    clock.now_s += 5
            clock.now_s += 2
            taken = recorder.take()
            assert [sample.start_s for sample in taken] == pytest.approx(expected, rel=1e-12)
            # Lengths are the device's own.
            assert [sample.step_s for sample in taken] == [5, 5, 5]
            expected = []

    def test_steps_that_take_no_time_start_all_the_same(self, clock, recorder):
        for _ in range(2):
            with recorder.step(profiled=False):
                pass
        assert [sample.start_s for sample in recorder.take()] == [1000.0, 1000.0]

    def test_uncertainty_is_the_worst_of_all_anchors(self, clock):
        clock.uncertainty_s = 1e-6
        recorder = PhaseRecorder(clock)
        for uncertainty_s, worst in ((3e-6, 3e-6), (2e-6, 3e-6)):
            clock.uncertainty_s = uncertainty_s
            recorder.take()
            assert recorder.uncertainty_s == worst


class TestMarksThatArePlaced:
    def replayed(self, clock) -> tuple[int, int, int]:
        """Marks that somebody else took."""
        marks = []
        for seconds in (1, 2, 0):
            marks.append(clock.mark())
            clock.now_s += seconds
        return tuple(marks)

    def test_they_are_phases_on_main(self, clock, recorder):
        with recorder.step(profiled=True) as marks:
            with marks.phase("input"):
                clock.now_s += 1
            first, second, third = self.replayed(clock)
            recorder.place("forward", first, second)
            recorder.place("backward", second, third)
        (sample,) = recorder.take()
        assert sample.spans == [
            ("input", "main", 0, 1),
            ("forward", "main", 1, 2),
            ("backward", "main", 2, 4),
        ]

    def test_they_are_not_given_back_to_the_recorders_clock(self, clock, recorder):
        foreign = self.replayed(clock)
        for _ in range(3):
            with recorder.step(profiled=True):
                recorder.place("forward", foreign[0], foreign[2])
            recorder.take()
        assert clock.seconds(foreign[0], foreign[2]) == 3

    def test_outside_a_profiled_iteration_there_is_no_place_for_them(self, clock, recorder):
        foreign = self.replayed(clock)
        said = pytest.raises(AssertionError, match="inside a profiled iteration")
        with said, recorder.step(profiled=False):
            recorder.place("forward", foreign[0], foreign[1])


class TestMarksAreUsedAgain:
    def step(self, clock, recorder) -> None:
        with recorder.step(profiled=True) as marks:
            for phase in ("forward", "backward"):
                with marks.phase(phase), marks.on_lane("comm")("communicate"):
                    clock.now_s += 1
                    if phase == "backward":
                        with marks.paused():
                            clock.now_s += 1

    @pytest.mark.parametrize("chain_s", [0.0, 1e9], ids=["one by one", "shared"])
    def test_rounds_need_no_more_than_the_first(self, clock, recorder, chain_s):
        clock.chain_s = chain_s
        counts = []
        for _ in range(5):
            for _ in range(3):
                self.step(clock, recorder)
            assert len(recorder.take()) == 3
            counts.append(clock.num_marks)
        assert counts == counts[:1] * 5

    def test_step_that_raised_spoils_nothing(self, clock, recorder):
        for _ in range(3):
            with pytest.raises(KeyError), recorder.step(profiled=True) as marks, marks.phase("forward"):
                raise KeyError
            self.step(clock, recorder)
            (sample,) = recorder.take()
            assert sample.step_s == 3


class TestPhasesThatFollowEachOther:
    def marked(self, clock, host, recorder, gap_s: float) -> tuple[int, list[tuple[str, str, float, float]]]:
        """Two phases, the second `gap_s` after the first on the host; (marks that it took, spans)."""
        clock.chain_s = 1.0
        before = clock.num_marks
        with recorder.step(profiled=True) as marks:
            host.now_s += 5
            for phase in ("forward", "backward"):
                with marks.phase(phase):
                    clock.now_s += 1
                host.now_s += gap_s
                clock.now_s += gap_s
        num_marks = clock.num_marks - before
        (sample,) = recorder.take()
        return num_marks, sample.spans

    def test_they_share_a_mark_where_the_host_hardly_paused(self, clock, host, recorder):
        num_marks, spans = self.marked(clock, host, recorder, gap_s=0.5)
        assert spans == [("forward", "main", 0, 1), ("backward", "main", 1, 2.5)]
        assert num_marks == 2 + 3

    def test_they_have_their_own_where_it_did(self, clock, host, recorder):
        num_marks, spans = self.marked(clock, host, recorder, gap_s=2)
        assert spans == [("forward", "main", 0, 1), ("backward", "main", 3, 4)]
        assert num_marks == 2 + 4

    def test_first_phase_begins_with_the_step(self, clock, host, recorder):
        clock.chain_s = 1.0
        with recorder.step(profiled=True) as marks:
            clock.now_s += 1
            with marks.phase("input"):
                clock.now_s += 1
        (sample,) = recorder.take()
        assert sample.spans == [("input", "main", 0, 2)]

    def test_pause_takes_no_mark_more_than_its_two_ends(self, clock, host, recorder):
        before = clock.num_marks
        with recorder.step(profiled=True) as marks, marks.phase("backward"), marks.paused():
            pass
        assert clock.num_marks - before == 2 + 4

    def test_work_beside_follows_nothing_of_another_call(self, clock, host, recorder):
        """A stream waits for the computation before each exchange: that wait is none of it."""
        clock.chain_s = 1.0
        with recorder.step(profiled=True) as marks:
            for _ in range(2):
                phase = marks.on_lane("comm")
                with phase("communicate"):
                    clock.now_s += 1
                with phase("reduce"):
                    clock.now_s += 1
                clock.now_s += 4
        (sample,) = recorder.take()
        assert sample.spans == [
            ("communicate", "comm", 0, 1),
            ("reduce", "comm", 1, 2),
            ("communicate", "comm", 6, 7),
            ("reduce", "comm", 7, 8),
        ]


class TestHowFarTheDeviceIsBehind:
    def test_it_is_known_of_forward_and_backward_where_the_device_runs_by_itself(self, clock, recorder):
        clock.is_asynchronous = True
        clock.change_drift(1.0)
        with recorder.step(profiled=True) as marks:
            with marks.phase("forward"):
                clock.now_s += 1
            with marks.phase("backward"):
                clock.now_s += 4
        (sample,) = recorder.take()
        # The host queued both at the same moment, as far as this clock can tell.
        assert set(sample.behind_s) == {"forward", "backward"}
        assert sample.behind_s["backward"] - sample.behind_s["forward"] == pytest.approx(4, abs=0.1)

    def test_a_host_that_computes_is_never_ahead(self, clock, recorder):
        with recorder.step(profiled=True) as marks, marks.phase("forward"):
            clock.now_s += 1
        (sample,) = recorder.take()
        assert sample.behind_s is None
