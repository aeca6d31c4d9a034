"""What the kernel says of a process: the cores it may use, and how long it waited for one."""

import os

from scaling.measure import host


def written(path, text):
    file = path / "schedstat"
    file.write_text(text)
    return file


def test_waiting_for_a_core_is_in_seconds_of_the_window(tmp_path):
    before = host.reading(written(tmp_path, "5000000000 250000000 10\n"))
    after = host.reading(written(tmp_path, "6000000000 750000000 20\n"))
    found = host.summary(before, after)
    assert found["queued_s"] == 0.5
    assert found["window_s"] == after.at_s - before.at_s
    assert found["cores"] == sorted(os.sched_getaffinity(0))


def test_a_kernel_that_does_not_count_says_nothing(tmp_path):
    for file in (tmp_path / "missing", written(tmp_path, "0 0 1\n"), written(tmp_path, "no numbers")):
        reading = host.reading(file)
        assert reading.queued_s is None
        assert host.summary(reading, reading)["queued_s"] is None
