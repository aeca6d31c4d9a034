"""Other programs are told before a measurement."""

import pytest

from scaling.doctor import host
from topologies.detect import load_text
from topologies.detect_host import busy_ratio

BEFORE = "cpu  1\ncpu0 100 0 50 800 50 0 0 0 0 0\ncpu1 0 0 0 1000 0 0 0 0 0 0\ncpu2 0 0 0 0 0 0 0 0 0 0\n"
AFTER = "cpu  1\ncpu0 180 0 50 810 60 0 0 0 80 0\ncpu1 10 0 0 1090 0 0 0 0 0 0\ncpu2 900 0 0 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(("cores", "ratio"), [((0,), 0.8), ((1,), 0.1), ((0, 1), 0.45)])
def test_busy_part_of_the_cores_that_may_be_used(tmp_path, cores, ratio):
    stat = tmp_path / "stat"
    stat.write_text(BEFORE)
    assert busy_ratio(cores, stat, lambda: stat.write_text(AFTER) and None) == pytest.approx(ratio)


def test_system_without_counters_tells_nothing(tmp_path):
    assert busy_ratio((0,), tmp_path / "stat", lambda: None) is None
    assert load_text(lambda _: None) == ""


def test_doctor_warns_of_other_programs():
    assert load_text(lambda _: 0.1) == ""
    line = host.load(load_text(lambda _: 0.85))
    said = "other programs take 85% of the cores: times will be too long and scatter"
    assert ((line.state, line.text), host.load("").state) == (("warning", said), "ok")
