"""All tables of a report, in a terminal."""

import io

import pytest
from rich.console import Console

from scaling.analysis.summary import summary_table
from scaling.report import write_report
from scaling.report.terminal import render_tables


def printed(tables):
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_trainings_on_text_show_bits_per_byte(study, epoch_line):
    lines = [epoch_line(1, 1.0, 2.0, 0.31), epoch_line(2, 2.0, 1.386294, 0.37)]
    for aggregator in ("all_reduce", "one_bit"):
        study.add([[lines]], kind="convergence", dataset="text", aggregator=aggregator)
    text = printed(render_tables(summary_table(study.folder)))
    assert "bits/byte" in text
    assert ("2.000" in text, "37.00%" in text) == (True, False)


def test_trainings_on_text_to_an_accuracy_show_that(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, 2.0, 0.37)]]], kind="convergence", dataset="text", target_accuracy=0.35)
    assert "37.00%" in printed(render_tables(summary_table(study.folder)))


@pytest.mark.usefixtures("without_figures")
def test_best_training_on_text_says_the_target_in_bits_per_byte(study, epoch_line):
    lines = [epoch_line(1, 1.0, 2.0, 0.31), epoch_line(2, 2.0, 1.386294, 0.37)]
    study.add([[lines]], kind="convergence", dataset="text", target_bits_per_byte=2.5)
    page = write_report(study.folder).page.read_text()
    assert "2 s to 2.5 bits per byte" in page
    assert '<th scope="col">bits per byte</th>' in page


def test_tables_that_the_answers_choose_stand_first_and_those_without_a_baseline_name_it(study):
    study.add_steps([[0.02]], device="cuda", peer_access=True)
    ring = study.add_steps([[0.01]], aggregator="ring", world_size=2, device="cuda", peer_access=False)
    table = summary_table(study.folder)
    text, unsorted = printed(render_tables(table, [ring])), printed(render_tables(table))
    assert text.index("peer access off") < text.index("peer access on")
    assert unsorted.index("peer access on") < unsorted.index("peer access off")
    (line,) = [line.rstrip() for line in text.splitlines() if line.startswith("speedup over")]
    assert line == "speedup over 1 GPU, peer access on: 20.0 ms"
    assert text.index("peer access off") < text.index(line) < text.rindex("peer access on")
