"""What is read of device cells, and how they compare in words: over devices and over axes."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.decisions import Difference
from scaling.analysis.noise import scatter_of
from scaling.analysis.study_scatter import MODERATED
from scaling.analysis.summary import summary_table
from scaling.device_studies.declaration import EXPERIMENTS, BreakEven, Report
from scaling.errors import StoreError
from scaling.report.device import device_tables, with_devices
from scaling.report.device.axes import axis_sentences, axis_tables, over_axes
from scaling.report.device.comparisons import crossing, crossing_text, least, reached, rounded, times_of
from scaling.report.device.tables import remarks
from scaling.report.figures.base import FigureInput
from scaling.report.figures.draw import draw_figures
from tests.analysis.test_verdict import add
from tests.made_studies import study
from tests.report.conftest import cells_of, groups_of, rows_of
from tests.report.device.conftest import sentences_of, write_figures


def exact(*pairs):
    """Ratios of one launch."""
    return {at: Difference(math.log(value), None, None) for at, value in pairs}


def known(ratio, half):
    """A ratio whose 95% interval reaches `half` to both sides, as logarithms."""
    return Difference(math.log(ratio), half / 1.96, 1e6)


POWER_LAW = exact(*((width, (width / 300) ** 1.5) for width in (10, 100, 1000, 10000)))
BETWEEN = {100: known(0.5, 0.6), 10000: known(2.0, 0.6)}


@pytest.mark.parametrize(("points", "at"), [
    (POWER_LAW, 300), (exact((1000, 4.0), (10, 0.1), (100, 0.25)), 100 * 10**0.5),
    (exact((1, 2.0), (10, 0.5), (100, 2.0)), 10 * 10**0.5), (BETWEEN, 1000),
], ids=["a power law, exactly", "points of any order", "the last of several", "with intervals"])  # fmt: skip
def test_devices_break_even_where_their_ratio_is_one(points, at):
    assert crossing(points) == crossing(dict(reversed(points.items())))
    assert crossing(points).at == pytest.approx(at)


def test_interval_is_where_its_ends_break_even():
    found = crossing(BETWEEN)
    # The most favourable ratios go from 0.91 to 3.6 over the same way.
    assert found.ends == (pytest.approx(136, rel=0.01), pytest.approx(1e6 / 136, rel=0.01))


@pytest.mark.parametrize(("points", "text"), [
    (POWER_LAW, "from batch 300 on"), (exact((1, 2.0), (8, 3.0)), "at every measured batch (1 to 8)"),
    (exact((1, 0.5), (8, 0.7)), "at no measured batch (1 to 8)"),
    (exact((1, 1.0), (10, 1.0)), "at no measured batch (1 to 10)"),  # equal times are no win
    ({10: known(0.9, 0.4), 100: known(1.1, 0.4)}, "from batch 33 [below 10, above 100] on"),
    ({1: known(1.1, 0.3), 8: known(3.0, 0.3)}, "at every measured batch (1 to 8; undecided at some)"),
    ({1: known(2.0, 0.3), 8: known(3.0, 0.3)}, "at every measured batch (1 to 8)"),
    ({1: None}, "not measured"),
])  # fmt: skip
def test_where_a_device_takes_less_time_is_said(points, text):
    found = crossing(points)
    assert crossing_text(found, "batch") == text
    assert bool(found and found.is_between) == text.startswith("from")


@pytest.mark.parametrize(("value", "text"), [
    (1.26, "1.3"), (8.0, "8"), (12.6, "13"), (126, "130"), (1264, "1,300"), (126_400, "130,000"),
])  # fmt: skip
def test_break_even_points_have_two_digits(value, text):
    assert rounded(value) == text


@pytest.mark.parametrize(("differences", "text"), [
    ([known(2.0, 0.1)], "2.0 times"),
    ([known(1.005, 0.01)], "1.0 times (a tie within 3%)"),
    ([known(1.1, 0.2)], "1.1 times (undecided)"), ([Difference(0.1, None, None)], "1.1 times"),
    ([known(2.0, 0.1), known(1.1, 0.2)], "1.1 to 2.0 times (undecided for 1 of 2)"),
    # Each alone is significant at 5%; of five together none is.
    ([known(1.1, 0.09)] * 5, "1.1 times (undecided for 5 of 5)"),
])  # fmt: skip
def test_ratios_say_what_the_launches_leave_open(differences, text):
    assert times_of(differences) == text


def test_least_and_near_the_least_are_what_launches_do_not_show_to_take_longer(of):
    made = of("batch-sizes")
    for batch, launches in ((1, (1.00, 1.05, 0.96)), (2, (1.01, 0.97, 1.04)), (4, (3.0, 3.1, 2.9))):
        made.add([[seconds] * 7 for seconds in launches], batch=batch, model="m")
    assert sorted(cell.point["batch"] for cell in least(made.results().cells)) == [1, 2]
    made = of("cpu-threads")
    # Two threads take 3% more than four, give or take 5%: whether two are enough is open.
    for threads, launches in ((1, (2.0, 2.1, 1.9)), (2, (1.03, 1.09, 0.98)), (4, (1.0, 0.96, 1.05))):
        made.add([[seconds] * 7 for seconds in launches], threads=threads, model="m", batch=1)
    found = reached(made.results().cells, "threads", 1.03)
    assert found.text("threads") == "2 to 4 (undecided)"
    assert replace(found, is_bound=True).text("threads") == "2 to 4 or more (undecided)"


def test_cells_of_one_device_share_their_launches(of):
    """What a launch does to all of its cells cancels, whatever their threads."""
    made = of("cpu-threads")
    for threads, factor in ((1, 2.0), (2, 1.5), (4, 1.0), (8, 0.9), (16, 0.8)):
        made.add([[shared * factor] * 7 for shared in (1.0, 1.4, 0.7)], threads=threads, model="m", batch=1)
    first, *_, last = made.results().cells
    assert last.difference(first).interval[1] < 2.51
    assert first.estimate().high > 2.2


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


def test_fewer_than_three_numbers_and_cells_that_differ_in_more_are_no_axis(study):
    for bucket_mb in (25.0, 100.0):
        add(study, "ring", 2, 1.0, bucket_mb=bucket_mb, **ON_GPUS)
        assert found(study) == []
    for threads, batch_norm in ((1, "replica"), (2, "replica"), (4, "synchronous")):
        add(study, "ring", 2, 0.5, threads=threads, batch_norm=batch_norm)
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


STEPS = [0.010, 0.011, 0.012, 0.010, 0.013, 0.011]


def device_rows(made):
    return to_rows(with_devices(summary_table(made.folder), [made.results()]))


def test_variables_steps_facts_other_phases_and_reasons_are_columns(small):
    made = small()
    made.add([STEPS], width=10, batch=8, step="eager", facts={"samples": 8, "parameters": 870}, threads=2)
    made.add([STEPS], phase="predict", width=20)
    made.add([[0.010] * 6, [0.012] * 6, [0.014] * 6], width=30)
    made.add([[]], width=8192, facts={"left_out": "out of memory: 9 GB"})
    steps, predicted, _, left_out = sorted(device_rows(made), key=lambda row: row["width"])
    own = {"kind": "device", "experiment": "small-networks", "width": 10, "batch": 8, "step": "eager"}
    own |= {"threads": 2, "parameters": 870, "state": "done", "speedup": None, "left_out": None}
    assert {name: steps[name] for name in own} == own
    assert (steps["iteration_s"], steps["iteration_form"]) == (pytest.approx(0.011), "median of steps")
    assert steps["samples_per_s"] == pytest.approx(8 / (sum(STEPS) / len(STEPS))), "a median is no rate"
    assert steps["iteration_s_low"] <= steps["iteration_s"] <= steps["iteration_s_high"]
    assert (predicted["predict_seconds"], predicted["iteration_s"]) == (pytest.approx(0.011), None)
    assert predicted["predict_seconds_low"] <= 0.011 <= predicted["predict_seconds_high"]
    assert (left_out["iteration_s"], left_out["left_out"]) == (None, "out of memory: 9 GB")
    (launched,) = [cell.estimate() for cell in made.results().cells if cell.point["width"] == 30]
    assert (launched.method, launched.median) == (MODERATED, pytest.approx(0.012)), "launches are kept apart"
    table = summary_table(made.folder)
    assert with_devices(table, []) is table, "without cells of devices"


@pytest.mark.parametrize(("rows", "message"), [
    ([], "nothing that it measured was recorded"), ([{"phase": "step"}], "neither a sample nor a fact"),
])  # fmt: skip
def test_done_run_without_rows_or_with_one_of_no_kind_is_an_error(small, rows, message):
    made = small()
    cell_id = made.add([STEPS], width=10)
    (made.folder.path / "runs" / cell_id / "0" / "rank0.jsonl").unlink()
    made.folder.sample_writer(cell_id, 0, 0)(rows)
    with pytest.raises(StoreError, match=message):
        made.results()


def test_cells_are_in_the_order_of_their_variables_and_a_gpu_that_was_asked_for_is_missing(small):
    made = small(has_gpu=False)
    for width in (8192, 10, 128):
        made.add([STEPS], width=width)
    results = made.results()
    assert ([cell.point["width"] for cell in results.cells], results.missing) == ([10, 128, 8192], ["cuda"])


def test_experiment_that_declares_nothing_has_a_table_of_all(of):
    made = of("someones-own")
    made.add([STEPS], colour="red", facts={"accuracy": 0.5})
    made.add([[]], colour="blue", facts={"left_out": "too blue"})
    table, left_out = device_tables([made.results()])
    assert [row[0] for row in table.rows] == ["blue", "red"]
    assert (table.rows[1][table.headings.index("accuracy")], left_out.rows[0][0]) == ("0.5", "blue")
    assert left_out.rows[0][-1] == "too blue"


def test_experiment_that_declares_nothing_is_answered_from_its_points(of):
    made = of("someones-own")
    for size, cpu, gpu in ((10, 1e-3, 4e-3), (1000, 16e-3, 4e-3)):
        made.add([[cpu] * 10], size=size)
        made.add([[gpu] * 10], device="cuda", size=size)
    told = sentences_of(made.results())
    assert told == ["The GPU takes less time than the CPU: GPU eager from size 100 on (seen in one launch)."]
    (figure,) = write_figures(made.folder, [made.results()])
    assert figure.name == "device-someones-own-times"


def test_experiment_that_declares_nothing_names_the_word_of_least_time(of):
    made = of("someones-own")
    for way, seconds in (("loop", 4e-3), ("sum", 1e-3)):
        made.add([[seconds] * 10], way=way)
    (told,) = sentences_of(made.results())
    assert told == "Least time of a step on the CPU: sum (loop 4.0 times as long) (seen in one launch)."


def test_declaration_of_an_installed_experiment_is_read(of, monkeypatch):
    class Own:
        report = Report("Which size?", ("size",), answer=(BreakEven("The GPU wins, in sizes: ", "size"),))

    monkeypatch.setitem(sys.modules, "someones_package", SimpleNamespace(Own=Own))
    monkeypatch.setitem(EXPERIMENTS._built_in, "own-sizes", "someones_package:Own")
    made = of("own-sizes")
    for size, cpu in ((10, 1e-3), (1000, 16e-3)):
        made.add([[cpu] * 10], size=size)
        made.add([[4e-3] * 10], device="cuda", size=size)
    (told,) = sentences_of(made.results())
    assert told == "Which size? The GPU wins, in sizes: GPU eager from 100 on (seen in one launch)."


def test_long_steps_are_in_rates_and_a_remark_says_so(small):
    made = small()
    steps = [0.010] * 11 + [0.130]
    made.add([steps, steps], width=10, batch=8, step="eager", facts={"samples": 8}, threads=2)
    results = made.results()
    (cell,) = results.cells
    assert cell.per_s() == pytest.approx(8 / 0.020)
    remark = next(text for text in remarks(results) if "above the median" in text)
    assert "in 1 of 1 points (at most 100%)" in remark
