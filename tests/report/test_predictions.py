"""Predicted and measured, and never in its place."""

import csv
import json

import pytest

from scaling.analysis.columns import columns, to_rows
from scaling.analysis.summary import summary_table
from scaling.report import write_report
from scaling.report.figures.parts import aggregator_looks
from scaling.report.figures.predictions import PredictedPoint, draw_predictions, predicted_points
from scaling.report.formats import MISSING
from scaling.report.predictions import prediction_findings, prediction_tables, read_predictions
from tests.made_studies import iteration, texts_of


def predicted(cell_id, seconds=0.0123456, **changes):
    names = {"model": "mlp", "aggregator": "ring", "step": "eager", "world_size": 2, "topology": "a machine"}
    interval = {"iteration_s": seconds, "iteration_s_low": 0.8 * seconds, "iteration_s_high": 1.25 * seconds}
    more = {"compute_s": 0.5 * seconds, "exposed_comm_s": 0.5 * seconds, "notes": ["compute extrapolated"]}
    return {"simulated": True, "cell_id": cell_id, **names, **interval, **more, **changes}


def read_back(folder):
    return read_predictions(folder, to_rows(summary_table(folder)))


@pytest.fixture
def folder(study):
    measured = study.add_steps([[0.010, 0.010, 0.010]], aggregator="ring", world_size=2)
    planned = study.add(["planned"], aggregator="tree", world_size=2)
    study.folder.write_predictions([predicted(measured), predicted(planned, aggregator="tree")])
    return study.folder


@pytest.mark.usefixtures("without_figures")
def test_simulated_values_never_enter_a_measured_column_nor_change_the_summary(folder):
    page = write_report(folder).page
    rows = list(csv.DictReader((folder.path / "summary.csv").open(newline="")))
    assert [row["iteration_s"] for row in rows] == ["0.01", ""]
    for name in ("summary.csv", "budget.csv"):
        assert "0.0123456" not in (folder.path / name).read_text()
    assert not [column for column in columns() if "simulated" in column]
    assert "Predicted and measured" in page.read_text()
    write_report(folder)
    assert json.loads((folder.path / "predictions.json").read_text())["simulated"] is True
    with_predictions = (folder.path / "summary.csv").read_bytes()
    (folder.path / "predictions.json").unlink()
    write_report(folder)
    assert (folder.path / "summary.csv").read_bytes() == with_predictions


def test_errors_and_intervals_are_of_measured_cells_alone(folder):
    done, planned = read_back(folder)
    assert (done.error_ratio, done.is_inside) == (pytest.approx(0.23456), True)
    assert planned.error_ratio is None
    (table,) = prediction_tables([done, planned])
    assert (table.section, [row[4] for row in table.rows]) == ("prediction", ["+23.5%", MISSING])
    assert "simulated" in table.headings[1]


@pytest.fixture
def measured(study):
    """Predictions of a cell of two workers with those phases, of 10 ms; `measured({...}, 0.020, ...)`."""

    def make(spans, seconds, **changes):
        lines = [iteration(number, 0.010, **spans) for number in range(3)]
        cell = study.add([[lines] * 2], aggregator=changes.get("aggregator", "ring"), world_size=2)
        study.folder.write_predictions([predicted(cell, seconds, **changes)])
        return read_back(study.folder)

    return make


EXCHANGED = {"forward_s": 0.004, "backward_s": 0.005, "communicate_s": 0.001}


def test_the_sentence_names_the_worst_cell_and_the_part_that_failed_and_no_other(measured):
    (sentence,) = texts_of(prediction_findings(measured(EXCHANGED, 0.020, compute_s=0.019)))
    for text in ("off by 100.0%", "the computation was predicted", "too long (compute extrapolated)"):
        assert text in sentence
    notes = ["rates as in the machine file", "models are exchanged every 8 steps"]
    changes = {"compute_s": 0.009, "exposed_comm_s": 0.011, "notes": notes, "remarks": notes[1:]}
    (one,) = measured(EXCHANGED, 0.020, **changes)
    assert "rates as in the machine file" in one.failed_assumption()
    assert "every 8 steps" not in one.failed_assumption()


@pytest.mark.parametrize(("each_s", "seconds", "text"), [
    ({"forward_s": 0.004, "backward_s": 0.005}, 0.020, "the computation was predicted"),
    ({"forward_s": 0.002, "backward_s": 0.002}, 0.004, "the wrong part is not known"),
], ids=["a cell that exchanges nothing blames no exchange", "phases that tell of another time"])  # fmt: skip
def test_what_failed_is_named_where_it_is_known(measured, each_s, seconds, text):
    (one,) = measured(each_s, seconds, aggregator="none", exposed_comm_s=0.0, compute_s=seconds)
    assert text in one.failed_assumption()


@pytest.fixture
def variants(study):
    """Cells that differ in memory format, precision, the peers' access and augmentation alone."""
    last = {"memory_format": "channels_last"}
    changes = [{}, {"tf32": True}, last, {"peer_access": False, "tf32": True, **last}]
    predictions = []
    for change, seconds in zip([*changes, {"augmentation": "standard"}], (10, 11, 12, 13, 10.5), strict=True):
        own = {"tf32": False, "memory_format": None, **change}
        cell = study.add_steps([[0.010] * 3], aggregator="ring", world_size=2, **own)
        predictions.append(predicted(cell, seconds / 1000, **own))
    study.folder.write_predictions(predictions)
    return study.folder


@pytest.mark.usefixtures("without_figures")
def test_names_and_the_file_tell_memory_formats_precisions_and_augmentation_apart(variants):
    found = read_back(variants)
    marks = ["", ", tf32", ", channels_last", ", host-only, channels_last, tf32", ", augmented"]
    names = [f"mlp, ring, eager, 2 workers{mark}" for mark in marks]
    assert [one.name for one in found] == names
    assert f"Worst: {names[3]}, 30.0%" in texts_of(prediction_findings(found))[0]
    (table,) = prediction_tables(found)
    assert [row[0] for row in table.rows] == names
    assert [point.text.partition(":")[0] for point in predicted_points(found)] == names
    write_report(variants)
    columns = ("cell_id", "precision", "memory_format", "augmentation")
    files = [csv.DictReader((variants.path / f"{name}.csv").open()) for name in ("predicted", "summary")]
    own, summary = ({tuple(row[name] for name in columns) for row in rows} for rows in files)
    assert (own, len({row[1:] for row in own})) == (summary, 5)


class TestFigure:
    def test_is_drawn_of_measured_cells_and_its_values_stand_in_a_file(self, folder):
        report = write_report(folder)
        drawn = [path.name for path in (folder.path / "figures").glob("predicted.*")]
        assert sorted(drawn) == ["predicted.svg"]
        done, planned = csv.DictReader((folder.path / "predicted.csv").open(newline=""))
        assert float(done["error_ratio"]) == pytest.approx(0.23456)
        assert float(done["simulated_s"]) / float(done["measured_s"]) - 1 == pytest.approx(0.23456)
        assert done["is_inside"] == "True"
        assert planned["measured_s"] == planned["error_ratio"] == planned["failed_assumption"] == ""
        assert planned["simulated_s"] == done["simulated_s"]
        assert "predicted.csv" in report.page.read_text()

    def test_is_left_out_where_nothing_was_predicted_or_measured_since(self, study):
        assert (study.folder.predictions(), prediction_tables([]), prediction_findings([])) == ([], [], [])
        planned = study.add(["planned"], aggregator="tree", world_size=2)
        write_report(study.folder)
        assert not (study.folder.path / "predicted.csv").exists()
        study.folder.write_predictions([predicted(planned, aggregator="tree")])
        write_report(study.folder)
        assert (study.folder.path / "predicted.csv").exists()
        assert not list((study.folder.path / "figures").glob("predicted*"))

    def test_every_network_has_a_panel_with_diagonal_band_and_points_in_their_looks(self):
        points = [
            point("fcn-r", "ring", 10.0), point("fcn-r", "tree", 1000.0), point("resnet-56", "ring", 5.0),
        ]  # fmt: skip
        axes = draw_predictions("title", points, aggregator_looks(["ring", "tree"])).axes
        assert [one.get_title(loc="left") for one in axes] == ["fcn-r", "resnet-56"]
        for one in axes:
            (band,) = one.collections
            diagonal = next(line for line in one.lines if line.get_linestyle() == "--")
            assert list(diagonal.get_xdata()) == list(diagonal.get_ydata()) == list(one.get_xlim())
            assert {round(y / x, 3) for x, y in band.get_paths()[0].vertices} == {0.9, 1.1}
            assert one.get_xscale() == one.get_yscale() == "log"
            assert 3 <= len(one.get_xticks()) <= 7
        looks = aggregator_looks(["ring", "tree"])
        hollow = point("net", "tree", 8.0, predicted_ms=6.0, is_hollow=True)
        (axes,) = draw_predictions("title", [point("net", "ring", 10.0), hollow], looks).axes
        drawn = {
            (line.get_xdata()[0], line.get_ydata()[0], line.get_color(), line.get_markerfacecolor())
            for line in axes.lines
            if line.get_marker() in (looks["ring"].marker, looks["tree"].marker) and line.get_alpha() != 0
        }
        ring, tree = looks["ring"].colour, looks["tree"].colour
        assert drawn >= {(10.0, 10.0, ring, ring), (8.0, 6.0, tree, "white")}


def point(network, aggregator, measured_ms, predicted_ms=None, *, is_hollow=False):
    value = measured_ms if predicted_ms is None else predicted_ms
    return PredictedPoint(
        network, aggregator, measured_ms, None, None, value, 0.8 * value, 1.2 * value, is_hollow, "a cell"
    )


@pytest.mark.usefixtures("without_figures")
def test_the_sentence_has_median_percentile_and_worst_of_the_file(study):
    cells = [study.add_steps([[0.010] * 3], aggregator="ring", world_size=2, seed=seed) for seed in range(5)]
    times = [0.0101, 0.0096, 0.011, 0.0125, 0.0103]
    study.folder.write_predictions([predicted(cell, s) for cell, s in zip(cells, times, strict=True)])
    write_report(study.folder)
    rows = list(csv.DictReader((study.folder.path / "predicted.csv").open(newline="")))
    errors = sorted(abs(float(row["error_ratio"])) for row in rows)
    assert errors == pytest.approx([0.01, 0.03, 0.04, 0.10, 0.25])
    at_95 = 0.10 + 0.8 * (0.25 - 0.10)  # between the last two, 0.95 x 4 = 3.8
    (sentence,) = texts_of(prediction_findings(read_back(study.folder)))
    assert f"off by 4.0% (median), {100 * at_95:.1f}% (95th percentile)" in sentence
    assert "25.0%" in sentence
