"""The break-even widths of small networks: table, figures and sentence."""

import itertools
import re

import pytest

from scaling.device_studies.small_networks import GRID, REPORT
from scaling.report.device import device_sentences, device_tables, figures
from scaling.report.device.findings import crossings, ratios
from tests.report.device.conftest import sentences_of, write_figures

(WIDTHS_ANSWER,) = REPORT.answer
THREADS = REPORT.findings[-1]


def cpu_over_gpu(results, arm):
    return ratios(results, results.where(GRID), arm.where, {"device": "cpu"}, ("batch", "width"))


def width_crossings(results, arm):
    return crossings(WIDTHS_ANSWER, results)[arm.name]


POINT = {"network": "mlp", "equal_parameters": 0, "inputs": 64, "depth": 2}


def around(seconds):
    """Ten samples with that median, a percent apart."""
    return [[seconds * (1 + 0.01 * (index - 4.5) / 4.5) for index in range(10)]]


def add_grid(made, *, gpu, batches=(1, 64)):
    """On the CPU a step takes width microseconds x (1 + batch / 64); on the GPU 300, captured 30."""
    for batch, width in itertools.product(batches, (10, 100, 1000, 10000)):
        seconds = 1e-6 * width * (1 + batch / 64)
        point = {**POINT, "width": width, "batch": batch, "facts": {"parameters": width, "samples": batch}}
        for threads, factor in ((1, 2), (4, 1)):
            made.add(around(factor * seconds), threads=threads, step="eager", **point)
        for step, gpu_s in (("eager", 300e-6), ("captured", 30e-6)) if gpu else ():
            made.add(around(gpu_s), device="cuda", threads=3, step=step, **point)


@pytest.fixture
def with_gpu(small):
    made = small()
    add_grid(made, gpu=True)
    return made


@pytest.fixture
def without_gpu(small):
    made = small(has_gpu=False)
    add_grid(made, gpu=False)
    return made


def test_break_even_widths_are_those_of_the_fastest_threads_and_answer_the_question(with_gpu):
    results = with_gpu.results()
    eager, captured = results.gpu_arms
    found = width_crossings(results, eager)
    at = [found[1].at, found[64].at, width_crossings(results, captured)[64].at]
    assert (at, found[64].ends) == (pytest.approx([300 / (1 + 1 / 64), 150, 15], rel=0.02), None)
    assert cpu_over_gpu(results, eager)[64, 1000].ratio == pytest.approx(2000 / 300, rel=0.01)
    last = sentences_of(with_gpu.results())[-1]
    assert re.fullmatch(
        r"When is the GPU worth it for a small network\? Seen in one launch: at every measured batch, GPU "
        r"eager from width 300 on and GPU captured from width 30 on\. For perceptrons of 2 hidden layers "
        r".*GPU eager, at batch 1 from width 300 on.*GPU captured, .*at batch 64 from width 15 on"
        r".* \(seen in one launch\)\.", last,
    )  # fmt: skip
    assert "faster" not in last
    (times,) = device_tables([with_gpu.results()])
    assert len(times.rows) == 8
    assert " to " in times.rows[0][6]  # the interval
    assert sum(len(ids) for ids in times.cells) == 8 * 4


def test_batches_of_one_answer_are_named_together(small):
    made = small()
    for batch, width in itertools.product((1, 64), (10, 100)):
        point = {**POINT, "width": width, "batch": batch, "step": "eager"}
        made.add(around(2e-3), threads=1, **point)
        made.add(around(1e-3), device="cuda", **point)
    last = sentences_of(made.results())[-1]
    assert "GPU eager, at batch 1 and 64 at every measured width (10 to 100)" in last


def test_width_with_threads_that_are_not_measured_yet_is_counted_for_nobody(with_gpu):
    point = {**POINT, "width": 100_000, "batch": 64, "step": "eager"}
    with_gpu.add(around(1.0), threads=1, **point)
    with_gpu.add(planned=True, threads=4, **point)
    with_gpu.add(around(300e-6), device="cuda", **point)
    results = with_gpu.results()
    eager = results.gpu_arms[0]
    assert cpu_over_gpu(results, eager)[64, 100_000] is None
    assert width_crossings(results, eager)[64].last == 10_000
    first, *_ = device_sentences([results])
    assert "1 of 35 points are not measured yet (CPU: 1 of 18; GPU: 0 of 17)" in first


def test_without_a_gpu_there_is_no_answer_and_its_columns_are_empty_and_told(without_gpu):
    sentences = sentences_of(without_gpu.results())
    assert "4 threads take less time than 1: at batch 1 and 64 at every measured width" in sentences[0]
    assert "That is not answered here. This machine has no GPU" in sentences[-1]
    table, *_ = device_tables([without_gpu.results()])
    missing = ["GPU eager: ms a step", "GPU captured: ms a step", "CPU / GPU, least of each"]
    assert (table.headings[-3:], {text for row in table.rows for text in row[-3:]}) == (missing, {"–"})  # noqa: RUF001
    assert any("no GPU that torch can use" in remark for remark in table.remarks)


def test_point_that_the_cpu_left_out_is_named_and_counted_for_nobody(with_gpu):
    point = {**POINT, "width": 100_000, "batch": 64}
    with_gpu.add([[]], step="eager", facts={"left_out": "a step took 9 s"}, **point)
    with_gpu.add(around(300e-6), device="cuda", step="eager", **point)
    results = with_gpu.results()
    eager = results.gpu_arms[0]
    assert cpu_over_gpu(results, eager)[64, 100_000] is None
    assert width_crossings(results, eager)[64].at == pytest.approx(150, rel=0.02)
    named = ["perceptron", "64", "2", "64", "100,000", "CPU, 1 thread", "left out", "a step took 9 s"]
    assert device_tables([results])[-1].rows == [named]
    with_gpu.add(device="cuda", step="eager", failed="rank 0: a bug", **{**POINT, "width": 7, "batch": 1})
    assert device_tables([with_gpu.results()])[-1].rows[0][-2:] == ["failed", "rank 0: a bug"]


@pytest.mark.parametrize(("cell", "remark"), [
    ({"planned": True}, "1 of 33 points are not measured yet"),
    ({"facts": {"load_average": 9.0}}, "load average reached 9.0 on 4 cores"),
], ids=["planned", "busy"])  # fmt: skip
def test_remarks_tell_points_that_are_missing_and_a_busy_machine(with_gpu, cell, remark):
    with_gpu.add(around(1.0), step="eager", **cell, **{**POINT, "width": 7, "batch": 1})
    assert any(remark in one for one in device_tables([with_gpu.results()])[-1].remarks)


def test_threads_have_a_break_even_width_too(small):
    made = small(has_gpu=False)
    for width, few, many in ((10, 1e-4, 2e-4), (1000, 1e-2, 5e-3)):
        made.add(around(few), threads=1, step="eager", **{**POINT, "width": width, "batch": 1})
        made.add(around(many), threads=2, step="eager", **{**POINT, "width": width, "batch": 1})
    (all_threads,) = crossings(THREADS, made.results()).values()
    assert all_threads[1].at == pytest.approx(100, rel=0.02)


def test_recurrent_networks_are_compared_at_equal_parameters(with_gpu):
    for network, seconds in (("lstm", 6e-3), ("mlp", 2e-3)):
        point = {**POINT, "network": network, "equal_parameters": 10_000, "width": 41, "batch": 64}
        with_gpu.add(around(seconds), step="eager", facts={"parameters": 10_000}, **point)
    first = sentences_of(with_gpu.results())[0]
    assert first.startswith("On the CPU, in multiples")
    assert "takes 3.0 times at 10,000 parameters" in first


def test_figures_are_drawn_with_a_gpu_and_without(with_gpu, without_gpu):
    names = [figure.name for figure in write_figures(with_gpu.folder, [with_gpu.results()])]
    assert names == ["device-small-networks-break-even", "device-small-networks-widths"]
    names = [figure.name for figure in write_figures(without_gpu.folder, [without_gpu.results()])]
    assert names[-1] == "device-small-networks-widths"


def test_every_batch_has_a_panel_and_what_is_left_over_is_empty(small):
    made = small(has_gpu=False)
    add_grid(made, gpu=False, batches=(1, 8, 64))
    (drawn,) = figures(made.results())
    panels = drawn.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["batch 1", "batch 8", "batch 64", ""]
    assert [axes.axison for axes in panels] == [True, True, True, False]


def test_nothing_measured_yet_draws_nothing(small):
    made = small()
    made.add(step="eager", planned=True, **{**POINT, "width": 7, "batch": 1})
    assert write_figures(made.folder, [made.results()]) == []
    assert sentences_of(made.results())
