"""What `run` prints above its answer."""

import io
import sys

from rich.console import Console

import scaling.cli
from scaling.analysis.summary import summary_table
from scaling.report import write_report
from scaling.report.terminal import first_lines, render_answer, render_tables


def printed(tables):
    console = Console(width=80, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_long_tables_are_cut_and_short_ones_leave_them_their_room():
    short, long, longer = ["a"] * 3, [f"b{i}" for i in range(50)], [f"c{i}" for i in range(90)]
    shown = first_lines([long, short, longer], 33)
    assert len(shown) == 33
    assert shown == [*long[:13], "", *short, "", *longer[:14], ""]


def test_sentences_of_several_lines_are_not_cut_in_the_middle():
    sentences = ["one\n  line", "two\n  lines", "three"]
    assert first_lines([sentences], 6) == [*sentences, ""]
    assert first_lines([sentences], 5) == []
    shown = first_lines([["one"] * 6, ["two\n  lines"] * 9], 14)
    assert shown == [*["one"] * 6, "", *["two\n  lines"] * 3, ""]
    assert first_lines([]) == first_lines([[]]) == []


def test_no_more_parts_than_have_room_for_some_lines():
    parts = [[f"{number}"] * 20 for number in range(9)]
    assert {line for line in first_lines(parts, 24) if line} == {"0", "1", "2", "3"}


def test_trainings_on_text_show_bits_per_byte(study, epoch_line):
    lines = [epoch_line(1, 1.0, 2.0, 0.31), epoch_line(2, 2.0, 1.386294, 0.37)]
    for aggregator in ("all_reduce", "one_bit"):
        study.add([[lines]], kind="convergence", dataset="text", aggregator=aggregator)
    for tables in (render_answer(summary_table(study.folder)), render_tables(summary_table(study.folder))):
        text = printed(tables)
        assert "bits/byte" in text
        assert "2.000" in text
        assert "37.00%" not in text


def test_trainings_on_text_to_an_accuracy_show_that(study, epoch_line):
    study.add([[[epoch_line(1, 1.0, 2.0, 0.37)]]], kind="convergence", dataset="text", target_accuracy=0.35)
    assert "37.00%" in printed(render_answer(summary_table(study.folder)))


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
    for render in (render_answer, render_tables):
        text = printed(render(table, [ring]))
        assert text.index("peer access off") < text.index("peer access on")
        assert printed(render(table)).index("peer access on") < printed(render(table)).index(
            "peer access off"
        )
    (line,) = [line.rstrip() for line in text.splitlines() if line.startswith("speedup over")]
    assert line == "speedup over 1 GPU, peer access on: 20.0 ms"
    assert text.index("peer access off") < text.index(line) < text.rindex("peer access on")


def test_report_and_run_print_the_chosen_settings_first(study, capsys):
    for peer_access, step_s in ((False, 0.03), (True, 0.01)):
        cell = {"device": "cuda", "peer_access": peer_access}
        study.add_steps([[0.02]] * 3, **cell)
        study.add_steps([[step_s]] * 3, aggregator="ring", world_size=2, **cell)
    made = write_report(study.folder)
    for verb in ("report", "run"):
        sys.modules[f"{scaling.cli.__name__}.{verb}"]._show(made)
        text = capsys.readouterr().out
        assert text.index("peer access on") < text.index("peer access off")
