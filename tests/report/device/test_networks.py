"""The reports of `cpu-threads` and `batch-sizes`."""

import numpy as np
import pytest

from scaling.device_studies import batch_sizes, cpu_threads
from scaling.report import write_report
from scaling.report.device import device_sentences, device_tables
from scaling.report.device.drawing import lines_of, points_of
from scaling.report.device.findings import enough as is_enough
from scaling.report.device.findings import needs
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
    def test_fewest_threads_within_a_tie_are_worth_it_by_speedups_over_the_fewest(self, threads):
        found = speedups(threads.results())
        at, values = found["fcn-r"]
        assert ([*at], values[0]) == ([1.0, 2.0, 4.0], pytest.approx([1.0, 100 / 51, 2.0]))
        assert found["lstm"][1][0][-1] == pytest.approx(100 / 120)
        results = threads.results()
        assert worthwhile(results.where({"device": "cpu", "model": "fcn-r"})).text("threads") == "2"
        assert worthwhile(results.where({"device": "cpu", "model": "lstm"})).text("threads") == "1"

    def test_sentence_table_and_figure_answer_the_question(self, threads):
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
    def test_enough_is_the_smallest_batch_near_the_best_of_each_device_which_are_compared(self, batches):
        cpu, gpu = (enough(batches.results().where({"device": device})) for device in ("cpu", "cuda"))
        assert (cpu.text("batch"), cpu.best.per_s()) == ("4", pytest.approx(100.0))
        assert (gpu.text("batch"), gpu.best.per_s()) == ("16", pytest.approx(10_000.0))
        (answer,) = sentences_of(batches.results())
        said = "on the CPU, 4 threads: fcn-r 4 (100 samples/s); on the GPU eager: fcn-r at least 16 ("
        assert said in answer
        assert "the time of a sample on the CPU over that on the GPU: fcn-r 100 times (seen in one" in answer

    def test_page_begins_with_the_short_answer_alone(self, batches):
        told = device_sentences([batches.results()])
        assert told[0].startswith("Which mini-batch does a device need?")
        assert sorted(told) == sorted(sentences_of(batches.results()))
        page = write_report(batches.folder).page.read_text(encoding="utf-8")
        said = page.partition('<section class="answer">')[2].partition("</section>")[0].strip()
        assert said.startswith(
            '<p class="say longer">Which mini-batch does a device need? Seen in one launch: for 90%'
        )
        assert len(said) < 300
        figures = sorted(path.stem for path in (batches.folder.path / "figures").glob("*.svg"))
        assert figures == ["device-batch-sizes-throughput", "device-batch-sizes-time"]

    def test_network_that_is_not_finished_is_compared_with_nothing(self, batches):
        batches.add(planned=True, device="cuda", step="eager", model="fcn-r", batch=64)
        told = sentences_of(batches.results())
        assert not any("on the GPU eager: fcn-r" in text for text in told)
        assert "on the GPU eager for every network" in told[-1]
        assert "the time of a sample" not in told[-1]

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

    def test_line_is_broken_at_a_batch_that_is_not_measured_yet(self, batches):
        batches.add(planned=True, threads=4, step="eager", model="fcn-r", batch=8)
        results, declared = batches.results(), batch_sizes.REPORT.figures[1]
        at, (values, *_) = points_of(declared, results, declared.panels[0], results.where({"device": "cpu"}))
        assert ([*at], [*np.isnan(values)]) == ([1.0, 4.0, 8.0, 16.0], [False, False, True, False])

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
