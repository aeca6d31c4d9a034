"""The reports of `cpu-threads`, `batch-sizes` and the break-even widths of small networks."""

import itertools
import re

import numpy as np
import pytest

from scaling.device_studies import batch_sizes, cpu_threads
from scaling.device_studies.small_networks import GRID, REPORT
from scaling.report import write_report
from scaling.report.device import device_answer_table, device_sentences, device_tables, figures
from scaling.report.device.drawing import lines_of, points_of
from scaling.report.device.findings import crossings, needs, ratios
from scaling.report.device.findings import enough as is_enough
from tests.report.device.conftest import sentences_of, write_figures


def enough(cells):
    return is_enough(batch_sizes.REPORT.answer[0], cells)


def worthwhile(cells):
    return is_enough(cpu_threads.REPORT.answer[0], cells)


def speedups(results):
    """Network -> threads, and speedups with their intervals."""
    (declared,) = cpu_threads.REPORT.figures
    found = {
        line.name: points_of(declared, results, declared.panels[0], results.where(line.where))
        for line in lines_of(declared, results)
    }
    return {name: points for name, points in found.items() if not np.isnan(points[1][0]).all()}


def exactly(seconds):
    return [[seconds] * 10]


@pytest.fixture
def threads(of):
    """fcn-r is as fast with 2 threads as with 4, within 5%; lstm gains nothing."""
    made = of("cpu-threads", networks=["fcn-r", "lstm"])
    for count, fcn, lstm in ((1, 0.100, 0.100), (2, 0.051, 0.110), (4, 0.050, 0.120)):
        made.add(exactly(fcn), threads=count, model="fcn-r", batch=64, facts={"samples": 64})
        made.add(exactly(lstm), threads=count, model="lstm", batch=16, facts={"samples": 16})
    return made


@pytest.fixture
def batches(of):
    """On the CPU 100 samples/s from batch 4 on; on the GPU 10,000 at the largest batch."""
    made = of("batch-sizes", networks=["fcn-r"])
    for batch, cpu, gpu in ((1, 0.02, 0.001), (4, 0.04, 0.001), (16, 0.16, 0.0016)):
        point = {"model": "fcn-r", "batch": batch}
        made.add(exactly(cpu), threads=4, step="eager", facts={"samples": batch}, **point)
        made.add(exactly(gpu), device="cuda", threads=3, step="eager", facts={"samples": batch}, **point)
    return made


class TestThreads:
    def test_fewest_threads_within_a_tie_are_worth_it_and_answer_the_question(self, threads):
        found = speedups(threads.results())
        at, values = found["fcn-r"]
        assert ([*at], values[0]) == ([1.0, 2.0, 4.0], pytest.approx([1.0, 100 / 51, 2.0]))
        assert found["lstm"][1][0][-1] == pytest.approx(100 / 120)
        results = threads.results()
        assert worthwhile(results.where({"device": "cpu", "model": "fcn-r"})).text("threads") == "2"
        assert worthwhile(results.where({"device": "cpu", "model": "lstm"})).text("threads") == "1"
        (sentence,) = sentences_of(threads.results())
        assert sentence.startswith(
            "How many CPU threads are worth it? Seen in one launch: 1 to 2 of 4: a training step takes 1.0 "
            "to 2.0 times as long with 1 (2 networks). Of 1 to 4,"
        )
        assert "fcn-r 2 (1 takes 2.0 times as long), lstm 1 (1 takes 1.0 times as long) (seen in" in sentence
        (table,) = device_tables([threads.results()])
        assert [row[:3] for row in table.rows[:3]] == [["fcn-r", "64", count] for count in "124"]
        assert [row[-2] for row in table.rows[:3]] == ["1.00", "1.96", "2.00"]
        (figure,) = write_figures(threads.folder, [threads.results()])
        assert figure.name == "device-cpu-threads-speedup"
        assert "fcn-r" in figure.svg.read_text(encoding="utf-8")

    def test_fewest_threads_are_compared_with_themselves_without_an_interval(self, of):
        made = of("cpu-threads", networks=["fcn-r"])
        for count, signs in ((1, (-1, 0, 1)), (2, (1, 0, -1))):
            launches = [[0.1 * (1 + 0.01 * sign)] * 10 for sign in signs]
            made.add(launches, threads=count, model="fcn-r", batch=64)
        ((_, (_, low, high)),) = speedups(made.results()).values()
        assert (low[0], high[0]) == (1.0, 1.0)
        assert low[1] < 1.0 < high[1]

    def test_partly_measured_networks_are_not_answered(self, of):
        made = of("cpu-threads", networks=["fcn-r", "lstm"])
        for count, seconds in ((1, 0.1), (4, 0.04)):
            made.add(exactly(seconds), threads=count, model="fcn-r", batch=64)
        made.add(planned=True, threads=2, model="fcn-r", batch=64)
        made.add(planned=True, threads=1, model="lstm", batch=16)
        made.add(exactly(0.1), threads=4, model="lstm", batch=16)
        answer = sentences_of(made.results())[-1]
        assert "Not answered, as points are missing, on the CPU for every network." in answer

    def test_threads_that_are_not_measured_yet_make_no_speedup(self, threads):
        for count, seconds in ((2, 0.05), (4, 0.03)):
            threads.add(exactly(seconds), threads=count, model="resnet-56", batch=16)
        threads.add(planned=True, threads=1, model="resnet-56", batch=16)
        results = threads.results()
        assert [*speedups(results)] == ["fcn-r", "lstm"]
        (known,) = needs(cpu_threads.REPORT.answer[0], results).values()
        assert [*known] == ["fcn-r", "lstm"]
        first, answer = device_sentences([results])
        assert first.startswith("cpu-threads: 1 of 9 points are not measured yet")
        assert answer.endswith("Not answered, as points are missing, on the CPU for resnet-56.")
        assert {row[-1] for row in device_tables([results])[0].rows if row[0] == "resnet-56"} == {"–"}  # noqa: RUF001

    def test_network_that_was_left_out_with_one_thread_has_no_line(self, of):
        made = of("cpu-threads", networks=["resnet-50"])
        made.add([[]], threads=1, model="resnet-50", batch=2, facts={"left_out": "too slow"})
        assert (speedups(made.results()), worthwhile(made.results().cells)) == ({}, None)
        assert write_figures(made.folder, [made.results()]) == []
        expected = [["resnet-50", "2", "CPU, 1 thread", "left out", "too slow"]]
        assert device_tables([made.results()])[-1].rows == expected


class TestBatches:
    def test_enough_is_the_smallest_batch_near_the_best_which_the_page_says_shortly(self, batches):
        cpu, gpu = (enough(batches.results().where({"device": device})) for device in ("cpu", "cuda"))
        assert (cpu.text("batch"), cpu.best.per_s()) == ("4", pytest.approx(100.0))
        assert (gpu.text("batch"), gpu.best.per_s()) == ("16", pytest.approx(10_000.0))
        (answer,) = sentences_of(batches.results())
        said = "on the CPU, 4 threads: fcn-r 4 (100 samples/s); on the GPU eager: fcn-r at least 16 ("
        assert said in answer
        assert "the time of a sample on the CPU over that on the GPU: fcn-r 100 times (seen in one" in answer
        told = device_sentences([batches.results()])
        assert told[0].startswith("Which mini-batch does a device need?")
        assert sorted(told) == sorted(sentences_of(batches.results()))
        page = write_report(batches.folder).page.read_text(encoding="utf-8")
        said = page.partition('<section class="answer">')[2].partition("</section>")[0].strip()
        assert said.startswith(
            '<p class="say longer">Which mini-batch does a device need? Seen in one launch: for 90%'
        )
        sentence, _, table = said.partition("<h3>")
        assert len(sentence) < 300
        assert table.startswith("The least that is enough</h3>")
        figures = sorted(path.stem for path in (batches.folder.path / "figures").glob("*.svg"))
        assert figures == ["device-batch-sizes-throughput", "device-batch-sizes-time"]

    def test_network_that_is_not_finished_is_compared_with_nothing_and_its_line_is_broken(self, batches):
        batches.add(planned=True, device="cuda", step="eager", model="fcn-r", batch=64)
        told = sentences_of(batches.results())
        assert not any("on the GPU eager: fcn-r" in text for text in told)
        assert "on the GPU eager for every network" in told[-1]
        assert "the time of a sample" not in told[-1]
        table = device_answer_table([batches.results()])
        assert (table.headings, table.rows) == (
            ["network", "CPU: batch", "CPU: samples/s"],
            [["fcn-r", "4", "100"]],
        )
        batches.add(planned=True, threads=4, step="eager", model="fcn-r", batch=8)
        results, declared = batches.results(), batch_sizes.REPORT.figures[1]
        at, (values, *_) = points_of(declared, results, declared.panels[0], results.where({"device": "cpu"}))
        assert ([*at], [*np.isnan(values)]) == ([1.0, 4.0, 8.0, 16.0], [False, False, True, False])

    def test_smaller_batches_that_are_not_measured_yet_change_nothing(self, of):
        made = of("batch-sizes", networks=["fcn-r"])
        point = {"device": "cuda", "step": "eager", "model": "fcn-r"}
        made.add(planned=True, batch=1, **point)
        for batch, seconds in ((4, 0.001), (16, 0.002), (64, 0.0079)):
            made.add(exactly(seconds), facts={"samples": batch}, batch=batch, **point)
        assert enough(made.results().cells).text("batch") == "16"
        made.add(planned=True, batch=8, **point)
        assert enough(made.results().cells) is None
        assert "on the GPU eager for every network" in sentences_of(made.results())[-1]

    def test_without_a_gpu_the_answer_says_so_and_its_columns_are_empty(self, of):
        made = of("batch-sizes", has_gpu=False, networks=["fcn-r"])
        made.add(exactly(0.1), threads=4, step="eager", model="fcn-r", batch=1, facts={"samples": 1})
        said = "on the CPU, 4 threads: fcn-r at least 1 (10.0 samples/s) (seen in one launch). This machine"
        assert f"{said} has no" in sentences_of(made.results())[-1]
        table, *_ = device_tables([made.results()])
        empty = [text for name, text in zip(table.headings, table.rows[0], strict=True) if "GPU" in name]
        assert empty == ["–"] * 6  # noqa: RUF001
        assert any("the columns of the GPU are empty" in remark for remark in table.remarks)

    def test_batch_that_does_not_fit_is_told(self, batches):
        reason = "out of memory: CUDA out of memory. Tried to allocate 9 GiB"
        point = {"model": "fcn-r", "batch": 64, "step": "eager"}
        batches.add([[]], device="cuda", facts={"left_out": reason}, **point)
        table, left_out = device_tables([batches.results()])
        assert table.rows[-1] == ["fcn-r", "64", *["–"] * 6]  # noqa: RUF001
        assert left_out.rows == [["fcn-r", "64", "GPU eager", "left out", reason]]


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
