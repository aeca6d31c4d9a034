"""Calibrated on one and two GPUs, what do four take? Predictions against committed results:

    python benchmarks/prediction_calibration.py --out benchmarks/results/prediction-4xh200 \\
        --curves results/reference/compute-curves-h200

Known to the prediction: the machine file that `kind: transfer` made on two GPUs, with twice the GPUs
(results/reference/transfer-2xh200/probed.yaml, gpus=2x), that study's messages and all-reduces, and every
cell of one or two GPUs in results/reference/budget-2xh200, budget-4xh200, steps-4xh200 and fcn-r-4xh200. Not
known: anything that four GPUs did. `--curves` adds folders of benchmarks/compute_curves.yaml, measured on one
GPU over local batches; in what their environments differ is printed. Writes predictions.csv, a row a cell of
four GPUs: those that the last three folders hold, and the same without access between GPUs where nobody
measured that.

    python benchmarks/prediction_calibration.py --out benchmarks/results/prediction-later-4xh200 \\
        --curves results/reference/compute-curves-h200 --later results/reference/one-bit-step-4xh200

predicts the cells of four GPUs in that folder alone, from the same sources: cells that were measured after
the others had been predicted. In what their environment differs is printed too.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.errors import ScalingError
from scaling.prediction.calibration_data import MeasuredFolder, differences_between
from scaling.prediction.measured import MeasuredCell
from scaling.prediction.predict import Prediction, Predictor
from scaling.prediction.sources import Sources
from scaling.prediction.what_if import what_if
from scaling.store import ResultsFolder
from scaling.study.predicting import strategy_of
from topologies.schema import load

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
STUDIES = ("budget-2xh200", "budget-4xh200", "steps-4xh200", "fcn-r-4xh200")
KNOWN_UP_TO, PREDICTED = 2, 4
COLUMNS = (
    *("results", "model", "aggregator", "step", "input_placement", "peer_access", "world_size"),
    *("measured_s", "simulated_s", "simulated_s_low", "simulated_s_high", "error_ratio", "inside"),
    *("compute_s", "exposed_comm_s", "notes"),
)


def folders(curves: Sequence[Path] = ()) -> list[ResultsFolder]:
    """Those of the committed studies, and further ones."""
    return [*(ResultsFolder(REFERENCE / name) for name in STUDIES), *map(ResultsFolder, curves)]


def sources(curves: Sequence[Path] = ()) -> Sources:
    """Everything that is measured, of whatever size."""
    transfer = ResultsFolder(REFERENCE / "transfer-2xh200")
    cells = [cell for folder in folders(curves) for cell in MeasuredFolder(folder).cells()]
    return Sources(cells, MeasuredFolder(transfer).transfers(), load(transfer.path / "probed.yaml"))


def predictions(
    everything: Sources, later: Sequence[Path] = ()
) -> Iterator[tuple[MeasuredCell | None, Mapping[str, Any], Prediction | str]]:
    """(measured or None, cell, prediction or the reason why there is none); of `later`, theirs alone."""
    machine = what_if(everything.machine, ["gpus=2x"])
    predictor, _ = everything.up_to(KNOWN_UP_TO).predictor(machine, strategy_of)
    measured = [
        cell
        for cell in everything.cells
        if cell.world_size == PREDICTED and not cell.cell.get("aa_replicate", 0)
    ]
    if later:
        for later_cell in (cell for path in later for cell in MeasuredFolder(ResultsFolder(path)).cells()):
            if later_cell.world_size == PREDICTED:
                yield later_cell, later_cell.cell, _predicted(predictor, later_cell.cell)
        return
    seen = {identity(cell.cell) for cell in measured}
    for later_cell in measured:
        yield later_cell, later_cell.cell, _predicted(predictor, later_cell.cell)
    for later_cell in measured:
        host_only = {**later_cell.cell, "peer_access": False}
        if identity(host_only) not in seen:
            seen.add(identity(host_only))
            yield None, host_only, _predicted(predictor, host_only)


def identity(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells cells of the table apart."""
    names = ("model_label", "aggregator_label", "step", "input_placement", "peer_access")
    return tuple(cell.get(name, "device" if name == "input_placement" else None) for name in names)


def _predicted(predictor: Predictor, cell: Mapping[str, Any]) -> Prediction | str:
    try:
        prediction = predictor.predict(strategy_of(cell))
    except ScalingError as error:
        return str(error)
    return prediction if prediction.iteration is not None else "; ".join(prediction.notes)


def rows(
    predictions: Iterable[tuple[MeasuredCell | None, Mapping[str, Any], Prediction | str]],
) -> list[dict[str, Any]]:
    """The table; seconds, errors as ratios, positive where the prediction is too long."""
    table = []
    for measured, cell, prediction in predictions:
        row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
        row |= {
            "results": Path(measured.source).name if measured else "not measured",
            "model": cell["model_label"],
            "aggregator": cell["aggregator_label"],
            "step": cell["step"],
            "input_placement": cell.get("input_placement", "device"),
            "peer_access": cell.get("peer_access"),
            "world_size": cell["world_size"],
        }
        if measured:
            row["measured_s"] = f"{measured.iteration_s:.6g}"
        if isinstance(prediction, str):
            row["notes"] = f"not predicted: {prediction}"
        else:
            row |= _values(prediction, measured)
        table.append(row)
    return sorted(
        table,
        key=lambda row: (
            row["results"] == "not measured",
            row["results"],
            str(row["model"]),
            row["step"],
            row["aggregator"],
            not row["peer_access"],
        ),
    )


def _values(prediction: Prediction, measured: MeasuredCell | None) -> dict[str, Any]:
    assert prediction.iteration is not None
    assert prediction.compute is not None
    low, high = prediction.iteration.interval
    values: dict[str, Any] = {
        "simulated_s": f"{prediction.iteration.value:.6g}",
        "simulated_s_low": f"{low:.6g}",
        "simulated_s_high": f"{high:.6g}",
        "compute_s": f"{prediction.compute.value:.6g}",
        "exposed_comm_s": f"{prediction.exposed_exchange.value:.6g}",
        "notes": "; ".join(prediction.notes),
    }
    if measured:
        values["error_ratio"] = f"{prediction.iteration.value / measured.iteration_s - 1:+.4f}"
        values["inside"] = "yes" if low <= measured.iteration_s <= high else "no"
    return values


def has_access(row: Mapping[str, Any]) -> bool:
    """Whether GPUs reach each other; of rows that were read from the file as well."""
    return str(row["peer_access"]) == "True"


def summary(table: list[dict[str, Any]]) -> Iterator[str]:
    """Medians of the errors, all and by group."""
    compared = [row for row in table if row["error_ratio"]]
    groups: dict[str, list[dict[str, Any]]] = {"all": compared}
    for row in compared:
        access = "NVLink" if has_access(row) else "host-only"
        for name in (f"{row['results']}, {access}", f"{row['model']}", f"step {row['step']}"):
            groups.setdefault(name, []).append(row)
    yield "| cells | number | median error | 95th percentile | inside the 95% interval |"
    yield "|---|---|---|---|---|"
    for name, rows in groups.items():
        errors = sorted(abs(float(row["error_ratio"])) for row in rows)
        high = errors[max(0, -(-95 * len(errors) // 100) - 1)]
        inside = sum(row["inside"] == "yes" for row in rows) / len(rows)
        yield f"| {name} | {len(rows)} | {statistics.median(errors):.1%} | {high:.1%} | {inside:.0%} |"
    yield ""
    yield "Misses of more than 10%:"
    for row in sorted(compared, key=lambda row: -abs(float(row["error_ratio"]))):
        if abs(float(row["error_ratio"])) > 0.10:
            yield (
                f"{float(row['error_ratio']):+.0%}  {row['model']}, {row['aggregator']}, {row['step']}, "
                f"{'NVLink' if has_access(row) else 'host-only'} ({row['results']}): "
                f"{float(row['measured_s']) * 1e3:.2f} ms measured, "
                f"{float(row['simulated_s']) * 1e3:.2f} simulated"
            )


def main() -> None:
    """Writes the table and prints its summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--curves", type=Path, action="append", default=[])
    parser.add_argument("--later", type=Path, action="append", default=[])
    options = parser.parse_args()
    for note in differences_between([*folders(options.curves), *map(ResultsFolder, options.later)]):
        print(note, file=sys.stderr)
    table = rows(predictions(sources(options.curves), options.later))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "predictions.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(table)
    print("\n".join(summary(table)))


if __name__ == "__main__":
    main()
