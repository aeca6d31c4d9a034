"""When buckets are ready and what their exchanges take, from spans of which that is known."""

import pytest

from scaling.analysis.samples import read_cells
from scaling.analysis.tuned import bucket_times
from scaling.errors import ScalingError
from tests.made_studies import split


def profiled(ready_s, exchanges, number=3, wait_s=0.001):
    """A profiled line: hooks that hold the computation up, and exchanges (start, end) with a division."""
    waits = [(ready + k * wait_s, ready + (k + 1) * wait_s) for k, ready in enumerate(ready_s)]
    hooks = [("communicate", "hook", *wait) for wait in waits]
    comm = []
    for start, end in exchanges:
        comm += [("communicate", "comm", start, end - 0.0001), ("reduce", "comm", end - 0.0001, end)]
    return split(number, 0.1, *hooks, *comm)


def cell_of(study, ranks, num_bytes=(100, 200)):
    summary = {"bucket_bytes": list(num_bytes)} if num_bytes else {}
    study.add_split([[0.1] * 3], ranks, summary=summary, **{"step": "overlapped", "aggregator": "all_reduce"})
    return read_cells(study.folder)[0]


def test_a_bucket_is_ready_on_the_last_rank_and_its_exchange_takes_what_it_does_there(study):
    early = [profiled([0.010, 0.020], [(0.010, 0.032), (0.032, 0.040)])]
    late = [profiled([0.030, 0.031], [(0.030, 0.032), (0.032, 0.040)])]
    times = bucket_times(cell_of(study, [early, late]))
    assert (times.num_bytes, times.ready_s) == ((100, 200), pytest.approx((0.030, 0.031)))
    assert times.exchange_s == pytest.approx((0.002, 0.008))


def test_it_is_the_median_of_the_profiled_iterations(study):
    lines = [
        profiled([ready, 0.05], [(0.05, 0.06), (0.06, 0.07)], 3 + k)
        for k, ready in enumerate((1e-2, 2e-2, 9e-2))
    ]
    assert bucket_times(cell_of(study, [lines])).ready_s == pytest.approx((0.02, 0.05))


def test_sizes_of_an_older_folder_are_given(study):
    cell = cell_of(study, [[profiled([0.01, 0.02], [(0.01, 0.02), (0.02, 0.03)])]], num_bytes=None)
    with pytest.raises(ScalingError, match="no profiled iterations of DDP's buckets"):
        bucket_times(cell)
    assert bucket_times(cell, (8, 4)).num_bytes == (8, 4)


def test_other_numbers_of_buckets_are_refused(study):
    cell = cell_of(study, [[profiled([0.01, 0.02], [(0.01, 0.02), (0.02, 0.03)])]], num_bytes=(1, 2, 3))
    with pytest.raises(ScalingError, match="are not of 3 buckets"):
        bucket_times(cell)
