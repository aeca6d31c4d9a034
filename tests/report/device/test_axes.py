"""Timing studies over an axis: which cells are compared, what is fastest, and from where on a line is."""

import pytest

from scaling.analysis.noise import scatter_of
from scaling.report.device.axes import axis_sentences, axis_tables, over_axes
from scaling.report.figures.base import FigureInput
from scaling.report.figures.draw import draw_figures
from tests.analysis.test_verdict import add
from tests.made_studies import study
from tests.report.conftest import cells_of, groups_of, rows_of

__all__ = ["study"]
ON_GPUS = {"device": "cuda", "step": "overlapped"}


def found(study):
    return [*over_axes(rows_of(study), scatter_of([*cells_of(study).values()]))]


def drawn(study):
    figures, failures = draw_figures(study.folder, FigureInput(rows_of(study), cells_of(study)))
    assert not failures
    return {figure.name.partition("-mlp")[0] for figure in figures}


def columns(table):
    return dict(zip(table.headings, zip(*table.rows, strict=True), strict=True))


def test_bucket_sizes_are_compared_on_the_most_workers(study):
    for size in (2, 4):
        for bucket_mb, step_s in ((25.0, 1.0), (4.0, 2.0), (100.0, 3.0)):
            add(study, "ring", size, step_s, bucket_mb=bucket_mb, **ON_GPUS)
        add(study, "none", size, 0.5, **ON_GPUS)
    (one,) = found(study)
    assert (one.axis, one.group) == ("bucket_mb", groups_of(study)[0])
    expected = [(4.0, 4), (25.0, 4), (100.0, 4)]
    assert [(cell.value("bucket_mb"), cell.value("world_size")) for cell in one.results.cells] == expected
    (said,) = axis_sentences([one])
    assert said.startswith("Least time of a step by bucket size in MiB (mlp on synthetic,")
    assert (said.endswith(": 25."), drawn(study)) == (True, {"rate", "by-bucket_mb"})


@pytest.mark.parametrize(("size", "is_said"), [(4, True), (2, False)])
@pytest.mark.parametrize("run", ["planned", "failed: out of memory"])
def test_value_without_a_time_is_named_where_it_could_be_the_fastest(study, run, size, is_said):
    for bucket_mb, step_s in ((25.0, 1.0), (4.0, 2.0), (100.0, 3.0)):
        add(study, "ring", 4, step_s, bucket_mb=bucket_mb, **ON_GPUS)
    study.add([run], aggregator="ring", world_size=size, bucket_mb=50.0, **ON_GPUS)
    said = [*axis_sentences(found(study))][1:]
    assert said == ["Not measured, of bucket size in MiB: 50; the fastest may be there."] * is_said


@pytest.mark.parametrize("sizes", [(25.0,), (25.0, 100.0)])
def test_fewer_than_three_numbers_are_no_axis(study, sizes):
    for bucket_mb in sizes:
        add(study, "ring", 2, 1.0, bucket_mb=bucket_mb, **ON_GPUS)
    assert found(study) == []


def test_words_are_bars_in_their_order(study):
    for size in (1, 2):
        for placement, step_s in (("pageable", 3.0), ("device", 1.0)):
            study.add_steps([[step_s / size]], world_size=size, input_placement=placement)
    (one,) = found(study)
    shown = {cell.value("input_placement"): cell.median() for cell in one.results.cells}
    assert list(shown.items()) == [("device", 0.5), ("pageable", 1.5)]
    (said,) = axis_sentences([one])
    assert said.endswith(": device (pageable 3.0 times as long) (seen in one launch).")
    assert drawn(study) == {"speedup", "rate", "by-input_placement"}


def test_a_line_takes_less_time_than_the_first_from_where_they_cross(study):
    for batch, ring_s in ((16, 0.4), (64, 0.2), (256, 0.1)):
        add(study, "all_reduce", 2, 0.2 * 2**0.5, global_batch=batch, local_batch=batch // 2)
        add(study, "ring", 2, ring_s, global_batch=batch, local_batch=batch // 2)
    (one,) = found(study)
    assert (one.axis, one.group) == ("batch", None)  # cells of different batches are in groups of their own
    (table,) = axis_tables([one])
    told = columns(table)
    assert told["aggregator"] == ("all_reduce", "ring")
    assert told["fastest"] == ("256", "256")  # by sample
    dash, crossing = told["less time than all_reduce"]
    assert not dash.isalpha()
    assert (crossing.startswith("from 32 ["), told["x as long"][1].startswith("64.00 ±")) == (True, True)
    assert [*axis_sentences([one])] == ["Least time of a sample by batch: 256 for all_reduce and for ring."]


def test_times_that_do_not_differ_are_a_tie(study):
    for threads, step_s in ((1, 0.5), (2, 0.4), (4, 0.4)):
        add(study, "ring", 2, step_s, threads=threads)
    (one,) = found(study)
    assert [*axis_sentences([one])] == ["Least time of a step by threads: 2 or 4 (a tie within 3%)."]


def test_cells_that_differ_in_more_than_the_axis_are_not_compared(study):
    for threads, batch_norm in ((1, "replica"), (2, "replica"), (4, "synchronous")):
        add(study, "ring", 2, 0.5, threads=threads, batch_norm=batch_norm)
    assert found(study) == []
