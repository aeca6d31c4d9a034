"""How far a study is, on a clock that the test moves."""

import io
from types import SimpleNamespace

import pytest

from scaling.study.progress import LineProgress, progress_for, remaining_s


@pytest.fixture
def clock() -> SimpleNamespace:
    """Seconds that move when the test says so."""
    return SimpleNamespace(now_s=1000.0)


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def progress(stream: io.StringIO, clock: SimpleNamespace) -> LineProgress:
    return LineProgress(stream, lambda: clock.now_s)


@pytest.mark.parametrize(("num_done", "num_left", "seconds"), [(3, 2, 40), (0, 2, None), (3, 0, 0)])
def test_rest_takes_as_long_per_run_as_what_is_done_in_a_minute(num_done, num_left, seconds):
    assert remaining_s(60, num_done, num_left) == seconds


class TestLines:
    def test_line_comes_every_half_minute(self, progress, stream, clock):
        for _ in range(120):
            progress.update(0, 10, "2 workers")
            clock.now_s += 1
        assert stream.getvalue().splitlines() == ["0/10 runs, 2 workers, unknown time left"] * 3

    def test_line_says_what_is_under_way_and_how_long_it_will_take(self, progress, stream, clock):
        progress.update(0, 10, "2 workers: iteration mlp, ring")
        clock.now_s += 90
        progress.update(4, 10, "2 workers: iteration mlp, ring")
        assert stream.getvalue() == "4/10 runs, 2 workers: iteration mlp, ring, 2:15 left\n"

    def test_runs_that_were_over_at_the_start_tell_nothing_of_the_pace(self, progress, stream, clock):
        progress.update(6, 10, "1 worker")
        clock.now_s += 40
        progress.update(8, 10, "1 worker")
        assert stream.getvalue() == "8/10 runs, 1 worker, 0:40 left\n"

    def test_hours_are_minutes(self, progress, stream, clock):
        progress.update(0, 3, "1 worker")
        clock.now_s += 3605
        progress.update(1, 3, "1 worker")
        assert "120:10 left" in stream.getvalue()

    def test_what_a_person_should_read_comes_at_once(self, progress, stream):
        progress.say("launch of 2 workers ended with exit code 1")
        assert stream.getvalue() == "launch of 2 workers ended with exit code 1\n"


def test_stream_that_is_no_terminal_gets_lines(stream):
    with progress_for(stream) as progress:
        assert isinstance(progress, LineProgress)


def test_terminal_gets_a_bar_that_takes_the_same_calls(monkeypatch, stream):
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    with progress_for(stream) as progress:
        progress.update(0, 4, "2 workers")
        progress.update(2, 4, "2 workers")
        progress.say("[rank0]: no such file [/tmp/x]")
    assert "[rank0]: no such file [/tmp/x]" in stream.getvalue()
    assert "2/4" in stream.getvalue()
