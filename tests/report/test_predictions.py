"""Predicted beside measured, and never in its place."""

import csv
import json

import pytest

from scaling.report import write_report
from scaling.report.columns import COLUMNS, to_rows
from scaling.report.formats import MISSING
from scaling.report.predictions import prediction_sentences, prediction_tables, read_predictions
from scaling.report.tables import summary_table

PREDICTED_S = 0.0123456


def predicted(cell_id, seconds=PREDICTED_S, **changes):
    names = {"model": "mlp", "aggregator": "ring", "step": "eager", "world_size": 2, "topology": "a machine"}
    interval = {"iteration_s": seconds, "iteration_s_low": 0.8 * seconds, "iteration_s_high": 1.25 * seconds}
    more = {"compute_s": 0.5 * seconds, "exposed_comm_s": 0.5 * seconds, "notes": ["compute extrapolated"]}
    return {"simulated": True, "cell_id": cell_id, **names, **interval, **more, **changes}


@pytest.fixture
def folder(study):
    measured = study.add_steps([[0.010, 0.010, 0.010]], aggregator="ring", world_size=2)
    planned = study.add(["planned"], aggregator="tree", world_size=2)
    study.folder.write_predictions([predicted(measured), predicted(planned, aggregator="tree")])
    return study.folder


def test_simulated_values_never_enter_a_measured_column(folder):
    page = write_report(folder).page
    rows = list(csv.DictReader((folder.path / "summary.csv").open(newline="")))
    assert [row["iteration_s"] for row in rows] == ["0.01", ""]
    for name in ("summary.csv", "budget.csv"):
        assert "0.0123456" not in (folder.path / name).read_text()
    assert not [column for column in COLUMNS if "simulated" in column]
    assert "Predicted beside measured" in page.read_text()


def test_a_report_with_predictions_has_the_same_summary_as_one_without(folder):
    write_report(folder)
    with_predictions = (folder.path / "summary.csv").read_bytes()
    (folder.path / "predictions.json").unlink()
    write_report(folder)
    assert (folder.path / "summary.csv").read_bytes() == with_predictions


def test_errors_and_intervals_are_of_measured_cells_alone(folder):
    done, planned = read_predictions(folder, to_rows(summary_table(folder)))
    assert done.error_ratio == pytest.approx(0.23456)
    assert done.is_inside
    assert planned.error_ratio is None
    (table,) = prediction_tables([done, planned])
    assert table.section == "prediction"
    assert [row[4] for row in table.rows] == ["+23.5%", MISSING]
    assert "simulated" in table.headings[1]


def test_the_sentence_names_the_worst_cell_and_the_part_that_failed(study):
    spans = {"forward_s": 0.004, "backward_s": 0.005, "communicate_s": 0.001}
    lines = [
        [{"iteration": n, "warmup": False, "step_s": 0.010, **spans} for n in range(3)] for _ in range(2)
    ]
    cell = study.add([lines], aggregator="ring", world_size=2)
    study.folder.write_predictions([predicted(cell, 0.020, compute_s=0.019)])
    found = read_predictions(study.folder, to_rows(summary_table(study.folder)))
    (sentence,) = prediction_sentences(found)
    assert "off by 100.0%" in sentence
    assert "the computation was taken" in sentence
    assert "too long (compute extrapolated)" in sentence


def test_folders_without_predictions_say_nothing(study):
    assert study.folder.predictions() == []
    assert prediction_tables([]) == []
    assert prediction_sentences([]) == []


def test_predictions_are_marked_in_the_file(folder):
    assert json.loads((folder.path / "predictions.json").read_text())["simulated"] is True
