"""What is read from a folder of device cells, and what the summary says of them."""

import sys
from types import SimpleNamespace

import pytest

from scaling.analysis.columns import to_rows
from scaling.analysis.study_scatter import MODERATED
from scaling.analysis.summary import summary_table
from scaling.device_studies.declaration import EXPERIMENTS, BreakEven, Report
from scaling.errors import StoreError
from scaling.report.device import device_tables, with_devices
from scaling.report.device.tables import remarks
from tests.report.device.conftest import sentences_of, write_figures

STEPS = [0.010, 0.011, 0.012, 0.010, 0.013, 0.011]


def rows_of(made):
    return to_rows(with_devices(summary_table(made.folder), [made.results()]))


def test_variables_step_and_facts_are_columns(small):
    made = small()
    made.add([STEPS], width=10, batch=8, step="eager", facts={"samples": 8, "parameters": 870}, threads=2)
    (row,) = rows_of(made)
    own = {"kind": "device", "experiment": "small-networks", "width": 10, "batch": 8, "step": "eager"}
    own |= {"threads": 2, "parameters": 870, "state": "done", "speedup": None}
    assert {name: row[name] for name in own} == own
    assert (row["iteration_s"], row["iteration_form"]) == (pytest.approx(0.011), "median of steps")
    assert row["samples_per_s"] == pytest.approx(8 / (sum(STEPS) / len(STEPS))), "a median is no rate"
    assert row["iteration_s_low"] <= row["iteration_s"] <= row["iteration_s_high"]


def test_other_phases_have_their_own_columns(small):
    made = small()
    made.add([STEPS], phase="predict", width=10)
    (row,) = rows_of(made)
    assert row["predict_seconds"] == pytest.approx(0.011)
    assert row["predict_seconds_low"] <= row["predict_seconds"] <= row["predict_seconds_high"]
    assert row["iteration_s"] is None


def test_what_was_left_out_is_empty_and_has_its_reason(small):
    made = small()
    made.add([[]], width=8192, facts={"left_out": "out of memory: 9 GB"})
    made.add([STEPS], width=10)
    rows = {row["width"]: row for row in rows_of(made)}
    assert (rows[8192]["iteration_s"], rows[8192]["left_out"]) == (None, "out of memory: 9 GB")
    assert (rows[10]["iteration_s"], rows[10]["left_out"]) == (pytest.approx(0.011), None)


def test_launches_are_kept_apart(small):
    made = small()
    made.add([[0.010] * 6, [0.012] * 6, [0.014] * 6], width=10)
    (cell,) = made.results().cells
    assert (cell.estimate().method, cell.estimate().median) == (MODERATED, pytest.approx(0.012))


def test_without_device_cells_the_summary_is_as_it_was(small):
    made = small()
    made.add([STEPS], width=10)
    table = summary_table(made.folder)
    assert with_devices(table, []) is table


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
