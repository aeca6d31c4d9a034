"""What `scaling report` and `status` print: one screen, where what has no room is counted, and all tables."""

import shutil
from pathlib import Path

import pytest

import scaling.report.write as writing
from scaling.analysis.findings import Finding
from scaling.analysis.summary import summary_table
from scaling.analysis.transfers import read_transfers
from scaling.errors import StudyError
from scaling.report import write_report
from scaling.report.answer import Answer, limit_word
from scaling.report.device import device_answer_table, device_headline, read_devices
from scaling.report.figures.draw import Formats
from scaling.report.formats import MISSING, spread
from scaling.report.html import first_sentence
from scaling.report.page_tables import DIFFERS, exchange_column
from scaling.report.status import describe_status, status_table, what_is_left
from scaling.report.tables import Table
from scaling.report.terminal import MOST_LINES, WIDTH, height, render_tables, screen, table_lines
from scaling.report.transfer_tables import answer_table
from scaling.report.verdict_text import next_of
from scaling.store import ResultsFolder
from tests.analysis.test_verdict import add, answers
from tests.report.conftest import printed

REFERENCE = Path(__file__).parents[2] / "results/reference"
OF_OTHER_KINDS = sorted(path.name for path in REFERENCE.glob("[dt]*-*") if path.is_dir())
ENDS = {"command": "scaling report DIR --all", "page": "DIR/report.html"}


def is_one_screen(answer):
    lines = screen(answer, **ENDS)
    commands = [line for line in lines if answer.command and answer.command in line]
    assert len(commands) == bool(answer.command)
    assert height(lines) <= MOST_LINES
    return all(len(line) <= WIDTH for line in lines if line not in commands)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", OF_OTHER_KINDS)
def test_device_studies_and_transfers_fit(name, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "draw_figures", lambda *_: ([], []))
    monkeypatch.setattr(writing, "render_page", lambda _: "")
    folder = shutil.copytree(REFERENCE / name, tmp_path / name, ignore=shutil.ignore_patterns("figures"))
    answer = writing.write_all(ResultsFolder(folder), Formats()).content.answer
    assert answer.sentence
    assert is_one_screen(answer)


def test_what_has_no_room_is_counted_and_what_explains_a_table_leaves_it_to_the_rows():
    rows = [[f"workload {number}", "1"] for number in range(50)]
    table = Table("", "", ["workload", "ms"], rows)
    lines = screen(Answer("Yes.", table, explained=[f"detail {number}" for number in range(20)]), **ENDS)
    assert (lines[0], height(lines), "(44 more rows)" in lines) == ("Yes.", MOST_LINES, True)
    shown = [line for line in lines if line.startswith("detail ")]
    assert f"({20 - len(shown)} more details)" in lines
    lines = screen(Answer("Yes.", table, ["Next: more."]), **ENDS)
    assert lines[1] == "Next: more."
    assert sum(line.startswith("workload ") for line in lines) > 15
    assert height(lines) == MOST_LINES


def test_what_limits_how_sure_what_next_and_its_long_command_stand_before_all_else():
    explained = [f"detail {number}" for number in range(40)]
    first = ["Limit: x.", "Not sure: 1 launch.", "Next: more:"]
    command = "scaling run " + "x" * 300
    lines = screen(Answer("Yes.", None, first, command, explained=explained), **ENDS)
    assert lines[:6] == ["Yes.", *first, f"  {command}", ""]
    assert height(lines) == MOST_LINES


def test_trainings_of_one_seed_are_followed_by_three():
    found = next_of(REFERENCE / "compression-2xh200", 1)
    assert (found.overrides, found.out) == (["seed=[0,1,2]"], f"{Path(found.study).parent}-seeds")
    with pytest.raises(StudyError, match="--next 2"):
        next_of(REFERENCE / "compression-2xh200", 2)


def test_lstm_begins_with_speed_and_accuracy_of_each_implementation():
    experiments = read_devices(ResultsFolder(REFERENCE / "device-lstm-fused-h200"))
    table = device_answer_table(experiments)
    expected = [[where, name] for where in ("CPU", "GPU") for name in ("elementary", "cell", "fused")]
    assert [row[:2] for row in table.rows] == expected
    assert {row[table.headings.index("x fused")] for row in table.rows if row[1] == "fused"} == {"1.0"}
    assert "11 times as long on the GPU" in device_headline(experiments)


def test_device_studies_begin_with_a_row_a_network_a_batch_a_choice_or_a_way():
    def table(name):
        return device_answer_table(read_devices(ResultsFolder(REFERENCE / f"device-{name}")))

    batches = table("batch-sizes-h200")
    assert batches.headings[:2] == ["network", "CPU: batch"]
    assert batches.rows[2] == ["resnet-56", "64", "788", "64", "8.42 k", "11"]
    assert len(batches.rows) == len(batches.cells) == 7
    assert table("cpu-threads-h200").rows[0] == ["fcn-r", "16", "5.00 k", "7.5"]
    widths = table("small-networks-h200")
    assert widths.headings == ["batch", "GPU eager", "GPU captured"]
    assert widths.rows[1][:2] == ["8", "from width 400 on"]
    assert table("small-networks-cpu") is None
    choices = table("kernel-choices-h200")
    cases = {(row[0], row[2]) for row in choices.rows}
    assert cases >= {("ResNet 3x3", "GPU"), ("2048x26752", "CPU")}
    assert table("surface-regression-h200").rows[-1] == ["GPU captured", "0.245", "0.0082", "0.454"]


def test_transfers_begin_with_a_row_a_link():
    table = answer_table(read_transfers(ResultsFolder(REFERENCE / "transfer-2xh200")))
    assert table.rows == [
        ["host to GPU", "256 MiB", "55.1", "54.3"],
        ["GPU to host", "256 MiB", "55.0", "55.0"],
        ["GPU to GPU", "256 MiB", "390", "385"],
        ["all-reduce", "1 GiB", MISSING, "329"],
        ["all-reduce, host-only", "1 GiB", MISSING, "26.9"],
    ]
    assert [len(ids) for ids in table.cells] == [1] * 5
    assert answer_table([]) is None


def exchange(cell_id, kind):
    times = {"exchange_overhead_s": 0.1, "exposed_by_difference_s": 0.3}
    return {"cell_id": cell_id, "aggregator": "ring", **times, "exposed_check": Finding(kind, (), {})}


def test_mark_of_an_exchange_stands_where_it_tells_rows_apart():
    for num_marked, shown in ((1, 1), (2, 2), (3, 0)):
        kinds = ["exposed_times_differ"] * num_marked + ["exposed_times_agree"] * (4 - num_marked)
        rows = [exchange(str(place), kind) for place, kind in enumerate(kinds)]
        column = exchange_column(rows)
        assert sum(DIFFERS in column.text(row) for row in rows) == shown


def test_texts_begin_with_a_sentence_and_no_interval_above_100_percent_is_a_number():
    assert first_sentence("Time of 1.5 ms. More. Else.") == ("Time of 1.5 ms.", "More. Else.")
    assert first_sentence("One alone.") == ("One alone.", "")
    expected = ["", "<0.1%", "1.3%", "50%", "100%", ">100%"]
    assert [spread(half) for half in (None, 0.0001, 0.013, 0.5, 1.0, 3.61)] == expected


def test_words_of_a_table_are_folded_and_numbers_are_aligned():
    row = ["a name of many words " * 4, "1.5", "an aggregator of many words " * 3]
    (head, *_), (first, *more) = table_lines(Table("", "", ["workload", "ms", "aggregator"], [row]))
    assert all(len(line) <= WIDTH for line in (head, first, *more))
    assert " ".join(line[:20] for line in (first, *more)).split()[:2] == ["a", "name"]
    assert head.index("ms") + 2 == first.index("1.5") + 3


def test_limit_that_the_noise_hides_is_not_named(study):
    add(study, "none", 1, 1.0)
    add(study, "all_reduce", 2, 0.6)
    (one,) = answers(study)
    one.values["losses"] = {"is_resolved": False}
    assert limit_word(one) == "unknown (noise)"


def test_trainings_on_text_show_bits_per_byte(study, epoch_line):
    lines = [epoch_line(1, 1.0, 2.0, 0.31), epoch_line(2, 2.0, 1.386294, 0.37)]
    for aggregator in ("all_reduce", "one_bit"):
        study.add([[lines]], kind="convergence", dataset="text", aggregator=aggregator)
    text = printed(render_tables(summary_table(study.folder)))
    assert "bits/byte" in text
    assert ("2.000" in text, "37.00%" in text) == (True, False)
    study.add([[lines[1:]]], kind="convergence", dataset="text", target_accuracy=0.35)
    assert "37.00%" in printed(render_tables(summary_table(study.folder))), "where that is the target"


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


def runs_of(world_size, *states, reason=None, aggregator="ring", num_waiting=0):
    return {"kind": "iteration", "world_size": world_size, "aggregator": aggregator, "states": list(states),
            "reason": reason, "num_waiting": num_waiting}  # fmt: skip


def test_runs_that_are_left_are_counted_by_world_size_and_what_another_launch_must_do():
    rows = [runs_of(1, "done", "planned"), runs_of(2, "planned", "running"), runs_of(2, "planned", "done")]
    expected = "4 of 7 runs are left: 1 with 1 worker, 3 with 2 workers; the same `run` or `submit` goes on"
    assert what_is_left([*rows, runs_of(4, "done")]) == expected
    assert what_is_left([runs_of(1, "done")]) == "nothing is left of 1 runs"
    expected = "nothing is left of 2 runs; 1 failed, `--retry-failed` runs them again"
    assert what_is_left([runs_of(1, "done", "failed")]) == expected
    waiting = runs_of(2, "planned", "planned", reason="the launch lacks mpi", num_waiting=2)
    expected = "2 of 3 runs are left: 2 with 2 workers; 2 of them need another launch, as said above"
    assert what_is_left([runs_of(1, "done"), waiting]) == expected
    assert what_is_left([runs_of(1, "planned"), waiting]) == (
        "3 of 3 runs are left: 1 with 1 worker, 2 with 2 workers; the same `run` or `submit` goes on; "
        "2 of them need another launch, as said above"
    )


def test_cells_that_differ_in_augmentation_are_told_apart(study):
    study.add(["planned"], aggregator="ring")
    study.add(["planned"], aggregator="ring", augmentation="standard")
    assert [row["name"] for row in status_table(study.folder)] == ["ring", "ring, augmentation standard"]


def test_text_has_a_line_a_cell_and_the_rest_at_the_end_all_folded_to_80_columns():
    text = describe_status([runs_of(2, "failed", reason="no memory"), runs_of(1, "planned", aggregator=None)])
    cells, left = text.splitlines()[:2], text.splitlines()[2]
    expected = [["iteration", "2", "x", "ring", "failed", "no", "memory"], ["iteration", "1", "x", "planned"]]
    assert ([line.split() for line in cells], left.startswith("1 of 2 runs are left")) == (expected, True)
    name = "kernel-choices, convolution, AlexNet 11x11, 64, older-interface, float32, 64 MiB, cuda"
    reason = "rank 0: RuntimeError: " + "the library has no such algorithm, " * 4
    rows = [
        runs_of(1, "failed", reason=reason, aggregator=name),
        runs_of(1, *["done"] * 8, "planned", "planned", aggregator="all_reduce, overlapped, peer access off"),
    ]
    text = describe_status(rows)
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    assert reason.strip() in words
    assert "8 done, 2 planned" in words
    assert text.splitlines()[1].startswith(" " * 18 + "64, older-interface")
    states = [*["done"] * 8, "planned", "planned", "running", "failed"]
    first, second, *_ = describe_status([runs_of(1, *states, aggregator=name)]).splitlines()
    assert (len(first), first[-20:]) == (80, "8 done, 2 planned, 1")
    assert second.endswith("64   running, 1 failed")
