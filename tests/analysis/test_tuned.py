"""Other buckets are used only where they are shown to be faster than DDP's own."""

import pytest

from scaling.analysis.noise import scatter_of
from scaling.analysis.samples import read_cells
from scaling.analysis.tuned import bucket_times, fastest, tuned_buckets
from scaling.errors import ScalingError
from scaling.report.text import text_of
from tests.made_studies import split

DDP = {"step": "overlapped", "world_size": 2, "aggregator": "all_reduce"}


def found(study, times_ms, launches=(1.0, 1.004, 1 / 1.004, 1.002, 1 / 1.002), control_ms=None):
    """The finding for cells with these times; the first is the default."""
    ids = []
    for number, time in enumerate(times_ms):
        steps = [[time / 1000 * factor] * 3 for factor in (launches[number:] + launches[:number])]
        ids.append(study.add_steps(steps, bucket_sizes_mb=[1.0, 25.0 + number], **DDP))
    control = None
    if control_ms is not None:
        steps = [[control_ms / 1000 * factor] * 3 for factor in launches]
        control = study.add_steps(steps, step="overlapped", world_size=2, aggregator="none")
    return ids, tuned_buckets(read_cells(study.folder), ids[0], ids[1:], control)


def test_the_fastest_that_is_shown_to_be_faster_is_used(study):
    ids, finding = found(study, [10.0, 9.0, 8.0, 12.0], control_ms=7.0)
    assert (finding.cells[0], finding.values["gain"]["ratio"]) == (ids[2], pytest.approx(0.8, rel=1e-3))
    assert finding.values["gain"]["high"] < 0.85
    assert finding.values["left"]["ratio"] == pytest.approx(8 / 7, rel=1e-3)
    assert finding.values["control_s"] == pytest.approx(0.007)


ALL = (1.0, 1.004, 1 / 1.004, 1.002, 1 / 1.002)


@pytest.mark.parametrize(("times_ms", "launches"), [
    ([10.0, 9.99, 10.01], ALL), ([10.0, 12.0], ALL), ([10.0], ALL), ([10.0, 5.0], (1.0,)),
])  # fmt: skip
def test_the_default_stays_where_none_is_shown_to_be_faster(study, times_ms, launches):
    ids, finding = found(study, times_ms, launches)
    assert (finding.cells[0], finding.values["gain"]) == (ids[0], None)
    assert len(finding.values["tried"]) == len(times_ms) - 1


def test_only_what_is_faster_has_to_be_shown(study):
    """One of two candidates, at a two-sided p value that Holm's correction would double to above 5%."""
    ids, finding = found(study, [10.0, 8.3, 10.5], launches=(1.0, 1.12, 0.93, 1.05, 0.9))
    assert 0.025 < scatter_of(read_cells(study.folder)).difference(ids[0], ids[1]).p_value < 0.05
    assert finding.cells[0] == ids[1]


def test_the_fastest_is_that_of_the_launches_that_all_have(study):
    first = study.add_steps([[s] * 3 for s in (1.0, 1.0, 0.1)], bucket_sizes_mb=[1.0], **DDP)
    second = study.add_steps([[s] * 3 for s in (0.9, 1.0)], bucket_sizes_mb=[2.0], **DDP)
    cells = read_cells(study.folder)
    assert ([fastest(cells, number).cell_id for number in (2, 3)], fastest([], 2)) == ([second, first], None)


def test_it_says_how_many_launches_would_show_a_difference(study):
    _, finding = found(study, [10.0, 9.985, 10.5])
    _, larger = found(study, [10.0, 9.97, 10.5])
    assert finding.values["needed"] > larger.values["needed"] > 5
    assert f"repeats={larger.values['needed']}." in text_of(
        type(larger)(larger.kind, (), {**larger.values, **dict.fromkeys(("num_gradients", "num_buckets"), 4),
                                       "bound_s": 0.1, "default_end_s": 0.1})
    )  # fmt: skip
    assert found(study, [10.0, 10.1])[1].values["needed"] is None


def test_many_candidates_are_tested_together(study):
    """What would be faster by itself at 5% is not where it is the luckiest of nineteen."""
    alone = [10.0, 9.9]
    _, finding = found(study, alone)
    lucky = finding.values["gain"]
    ids, together = found(study, [*alone, *[10.0] * 18])
    assert lucky is not None
    assert together.cells[0] == ids[0]


def test_it_is_said_in_words(study):
    model = {"sizes_mb": (0.5, 3.25), "takes_sizes": True, "num_buckets": 2, "num_gradients": 40}
    model |= {"bound_s": 0.006, "end_s": 0.006, "default_end_s": 0.0075}
    _, finding = found(study, [10.0, 8.0], control_ms=7.0)
    text = text_of(type(finding)(finding.kind, finding.cells, {**finding.values, **model}))
    assert text.startswith("Use bucket_mb=[[0.5, 3.25]]: 8.00 ms a step instead of 10.0 with DDP's default")
    assert "bucket_cap_mb_list=[0.5, 3.25]" in text
    assert "no buckets of the 40 gradients end their exchange before 6.00 ms" in text
    said = text_of(type(finding)(finding.kind, (), {**finding.values, **model, "gain": None}))
    assert said.startswith("Keep DDP's default buckets: 10.0 ms a step")


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
    return read_cells(study.folder)[-1]


def test_a_bucket_is_ready_on_the_last_rank_in_the_median_and_its_exchange_takes_what_it_does_there(study):
    early = [profiled([0.010, 0.020], [(0.010, 0.032), (0.032, 0.040)])]
    late = [profiled([0.030, 0.031], [(0.030, 0.032), (0.032, 0.040)])]
    times = bucket_times(cell_of(study, [early, late]))
    assert (times.num_bytes, times.ready_s) == ((100, 200), pytest.approx((0.030, 0.031)))
    assert times.exchange_s == pytest.approx((0.002, 0.008))
    exchanges, ready_s = [(0.05, 0.06), (0.06, 0.07)], (1e-2, 2e-2, 9e-2)
    lines = [profiled([ready, 0.05], exchanges, 3 + k) for k, ready in enumerate(ready_s)]
    assert bucket_times(cell_of(study, [lines])).ready_s == pytest.approx((0.02, 0.05))


def test_sizes_of_an_older_folder_are_given_and_other_numbers_of_buckets_are_refused(study):
    cell = cell_of(study, [[profiled([0.01, 0.02], [(0.01, 0.02), (0.02, 0.03)])]], num_bytes=None)
    with pytest.raises(ScalingError, match="no profiled iterations of DDP's buckets"):
        bucket_times(cell)
    assert bucket_times(cell, (8, 4)).num_bytes == (8, 4)
    cell = cell_of(study, [[profiled([0.01, 0.02], [(0.01, 0.02), (0.02, 0.03)])]], num_bytes=(1, 2, 3))
    with pytest.raises(ScalingError, match="are not of 3 buckets"):
        bucket_times(cell)
