"""predicted.csv and the figure of it: every cell that was predicted before it was measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import matplotlib
import pandas as pd

from scaling.analysis.columns import Row, has_no_model
from scaling.analysis.summary import table_csv
from scaling.axes import axis
from scaling.report.figures.draw import Drawn, SavedFigure, save
from scaling.report.figures.predictions import PredictedPoint, draw_predictions
from scaling.report.figures.style import SETTINGS, aggregator_looks
from scaling.report.predictions import PredictedCell
from scaling.store import ResultsFolder

SOURCE = "predicted.csv"
DIGITS = 9
"""Significant ones in predicted.csv."""

COLUMNS = (
    *("cell_id", "model", "dataset", "aggregator", "step", "world_size", "local_batch", "peer_access"),
    *("precision", "memory_format", "augmentation"),
    *("topology", "simulated_s", "simulated_s_low", "simulated_s_high"),
    *("measured_s", "measured_s_low", "measured_s_high", "error_ratio", "is_inside", "failed_assumption"),
)

CAPTION = (
    "Each cell's iteration as it was simulated before it was measured (column simulated_s of predicted.csv, "
    "upright bar: 95% interval of its inputs) against what was measured then (measured_s, level bar: its 95% "
    "interval); bars are cut off at the frame. On the dashed line the prediction was right, in the grey band "
    "within 10%; above it the prediction was too long."
)


def write_predictions(
    folder: ResultsFolder, predicted: Sequence[PredictedCell], rows: Iterable[Row]
) -> list[SavedFigure]:
    """Writes predicted.csv and the figure; nothing where nothing was predicted.

    Args:
        folder: where they go.
        predicted: cells, measured or not.
        rows: the summary, so that an aggregator looks the same in every figure.

    Raises:
        StoreError: a file cannot be written.
    """
    if not predicted:
        return []
    table = pd.DataFrame([_row(one) for one in predicted], columns=list(COLUMNS))
    folder.write_text(SOURCE, table_csv(table, digits=DIGITS))
    points = predicted_points(predicted)
    if not points:
        return []
    labels = [row["aggregator"] for row in rows if not has_no_model(row)]
    looks = aggregator_looks([*labels, *(point.aggregator for point in points)])
    title = f"Predicted against measured, {len(points)} cell{'s' if len(points) > 1 else ''}"
    with matplotlib.rc_context(SETTINGS):
        figure = draw_predictions(title, points, looks)
        return [save(folder, Drawn("predicted", title, CAPTION, figure, SOURCE))]


def predicted_points(predicted: Iterable[PredictedCell]) -> list[PredictedPoint]:
    """Those that were measured since."""
    return [_point(one, one.measured) for one in predicted if one.measured and one.error_ratio is not None]


def _point(one: PredictedCell, measured: Row) -> PredictedPoint:
    low_s, high_s = measured.get("iteration_s_low"), measured.get("iteration_s_high")
    values = one.predicted
    return PredictedPoint(
        str(values["model"]),
        str(values["aggregator"]),
        1e3 * measured["iteration_s"],
        None if low_s is None else 1e3 * low_s,
        None if high_s is None else 1e3 * high_s,
        1e3 * values["iteration_s"],
        1e3 * values["iteration_s_low"],
        1e3 * values["iteration_s_high"],
        values.get("peer_access") is False,
        f"{one.name}: {1e3 * values['iteration_s']:.4g} ms predicted, "
        f"{1e3 * measured['iteration_s']:.4g} measured, {one.error_ratio or 0.0:+.1%}",
    )


def _row(one: PredictedCell) -> Row:
    row: Row = {name: one.predicted.get(name) for name in COLUMNS}
    row |= {
        **{own.key: own.show(one.predicted.get(own.name)) for own in map(axis, ("tf32", "memory_format"))},
        "simulated_s": one.predicted["iteration_s"],
        "simulated_s_low": one.predicted["iteration_s_low"],
        "simulated_s_high": one.predicted["iteration_s_high"],
    }
    if one.measured and one.error_ratio is not None:
        row |= {
            "measured_s": one.measured["iteration_s"],
            "measured_s_low": one.measured.get("iteration_s_low"),
            "measured_s_high": one.measured.get("iteration_s_high"),
            "error_ratio": one.error_ratio,
            "is_inside": one.is_inside,
            "failed_assumption": one.failed_assumption(),
        }
    return row
