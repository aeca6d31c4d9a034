"""How good are predictions of what was not measured? Folds over the committed results of H200 GPUs:

    python benchmarks/prediction_quality.py --out benchmarks/results/prediction-quality/after

Each fold fits the model to the cells that it knows and predicts others; that no cell is in both is asserted.

- `4 from 1 and 2`, `2 from 1`, `4 from 1`: a world size from smaller ones. From 1 alone no message of a probe
  is known, and the machine is the shipped file `hgx-h200`.
- `NETWORK from others`: a network's cells of several GPUs from the other networks', and from its own cells of
  one GPU.
- `host-only from NVLink`: cells without access between GPUs from those with it and from the probe of two.

The machine of the others is what the probe of two GPUs measured, with twice the GPUs. Left out: A/A
replicates, cells with planted faults, and `mnist-4xh200`, whose rings and trees were other programs.

Writes cells.csv, a row a predicted cell, and folds.csv, a row a fold and family:

- error: |predicted / measured - 1| of the step; median and 95th percentile.
- coverage: share of cells inside their 95% intervals.
- regret: of each workload (cells of a folder that differ in aggregator and step mode alone, control arms left
  out) what the predicted best takes above the measured best; mean and worst.
- order: share predicted in the right order of the pairs of a workload that differ by over 10% as measured.

`--blind` prints predictions that were committed before the cells were measured, against these, and what the
model makes of the same cells now. `--probe` prints NCCL's all-reduce on four GPUs as it is predicted from
two, against a probe of four.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from scaling.collectives.plan import Codec, Exchange
from scaling.errors import ScalingError
from scaling.prediction.calibration_data import MeasuredFolder, read_samples, transfers_from
from scaling.prediction.fitting import machinery_for, term_of_transfer
from scaling.prediction.measured import MeasuredCell, MeasuredTransfer
from scaling.prediction.predict import Predictor
from scaling.prediction.rows import cell_fields
from scaling.prediction.sources import Sources
from scaling.prediction.strategy import Strategy
from scaling.prediction.what_if import what_if
from scaling.store import ResultsFolder
from scaling.study.predicting import strategy_of
from topologies.errors import TopologyError
from topologies.model import Topology
from topologies.schema import load

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
PROBE = Path(__file__).parent / "results" / "probe-4xh200" / "samples.csv.gz"
BLIND = Path(__file__).parents[1] / "results" / "predictions"
LEFT_OUT = (
    *("planted-faults-4xh200", "mnist-4xh200"),
    *("gpt-2xh100", "sharded-2xh100", "headline-bf16-2xh100"),  # of another GPU than the rest
)
NETWORKS = ("fcn-r", "fcn-s4", "resnet-56", "alexnet-r", "gpt")
CELL_COLUMNS = (
    *("fold", "results", "model", "aggregator", "family", "step", "precision", "wire", "input_placement"),
    *("peer_access", "world_size", "global_batch", "measured_s", "predicted_s", "low_s", "high_s"),
    *("error_ratio", "inside", "workload", "notes"),
)
FOLD_COLUMNS = (
    *("fold", "family", "cells", "not_predicted", "median_error", "p95_error", "coverage", "interval_ratio"),
    *("workloads", "mean_regret", "worst_regret", "pairs", "order"),
)
ALL = "all"


@dataclass(frozen=True)
class Fold:
    """What is known and what is predicted; `with_probe`: the probe's messages, on its machine."""

    name: str
    knows: Callable[[MeasuredCell], bool]
    predicts: Callable[[MeasuredCell], bool]
    with_probe: bool = True


def _of_network(name: str) -> Fold:
    return Fold(
        f"{name} from others",
        lambda cell: cell.cell["model_label"] != name or cell.world_size == 1,
        lambda cell: cell.cell["model_label"] == name and cell.world_size > 1,
    )


FOLDS = (
    Fold("4 from 1 and 2", lambda cell: cell.world_size <= 2, lambda cell: cell.world_size == 4),
    Fold("2 from 1", lambda cell: cell.world_size == 1, lambda cell: cell.world_size == 2, with_probe=False),
    Fold("4 from 1", lambda cell: cell.world_size == 1, lambda cell: cell.world_size == 4, with_probe=False),
    *map(_of_network, NETWORKS),
    Fold(
        "host-only from NVLink",
        lambda cell: cell.cell.get("peer_access") is not False,
        lambda cell: cell.cell.get("peer_access") is False and cell.world_size > 1,
    ),
)


@cache
def measured() -> tuple[tuple[MeasuredCell, ...], tuple[MeasuredTransfer, ...]]:
    """The cells of GPUs in all committed folders, and the probe's messages."""
    folders = [path for path in sorted(REFERENCE.iterdir()) if (path / "study.yaml").is_file()]
    cells: list[MeasuredCell] = []
    transfers: list[MeasuredTransfer] = []
    for path in folders:
        if path.name in LEFT_OUT or path.name.startswith("device-"):
            continue
        folder = MeasuredFolder(ResultsFolder(path))
        cells += [cell for cell in folder.cells() if cell.cell["device"] == "cuda"]
        transfers += folder.transfers()
    return tuple(cell for cell in cells if not cell.cell.get("aa_replicate")), tuple(transfers)


@cache
def _strategy(cell_text: str, tensor_shapes: str) -> Strategy:
    return strategy_of(json.loads(cell_text), tensor_shapes)


def strategy(cell: Mapping[str, Any], tensor_shapes: str = "") -> Strategy:
    """`strategy_of`, once for all folds."""
    return _strategy(json.dumps(dict(cell), sort_keys=True), tensor_shapes)


def machine_of(fold: Fold) -> Topology:
    """Four GPUs as a probe of two found them; as shipped where no fold knows two."""
    if not fold.with_probe:
        return load("hgx-h200")
    return what_if(load(REFERENCE / "transfer-2xh200" / "probed.yaml"), ["gpus=2x"])


def predictor_of(fold: Fold) -> Predictor:
    """The model, fitted to what the fold knows."""
    cells, transfers = measured()
    known = [cell for cell in cells if fold.knows(cell)]
    predicted = {id(cell) for cell in cells if fold.predicts(cell)}
    assert not predicted & {id(cell) for cell in known}, f"{fold.name} knows what it predicts"
    machine = machine_of(fold)
    sources = Sources(known, transfers if fold.with_probe else (), machine)
    return sources.predictor(machine, strategy)[0]


def rows_of(fold: Fold) -> list[dict[str, Any]]:
    """A row a predicted cell; seconds, errors positive where the prediction is too long."""
    predictor = predictor_of(fold)
    return [row for cell in measured()[0] if fold.predicts(cell) for row in [_row(fold, cell, predictor)]]


def _row(fold: Fold, cell: MeasuredCell, predictor: Predictor) -> dict[str, Any]:
    values = cell.cell
    row = dict.fromkeys(CELL_COLUMNS, "") | {
        "fold": fold.name,
        "results": Path(cell.source).name,
        "model": values["model_label"],
        "aggregator": values["aggregator_label"],
        "step": values["step"],
        "precision": values.get("precision") or ("tf32" if values.get("tf32") else "float32"),
        "wire": values.get("wire") or "",
        "input_placement": values.get("input_placement", "device"),
        "peer_access": values.get("peer_access"),
        "world_size": cell.world_size,
        "global_batch": values["global_batch"],
        "measured_s": cell.iteration_s,
        "workload": _workload(cell),
    }
    try:
        plan = strategy(values, cell.tensor_shapes)
        prediction = predictor.predict(plan)
    except (ScalingError, TopologyError) as error:
        return row | {"family": "other", "notes": f"not predicted: {error}"}
    row["family"] = family_of(plan)
    if prediction.iteration is None:
        return row | {"notes": f"not predicted: {'; '.join(prediction.notes)}"}
    low, high = prediction.iteration.interval
    return row | {
        "predicted_s": prediction.iteration.value,
        "low_s": low,
        "high_s": high,
        "error_ratio": prediction.iteration.value / cell.iteration_s - 1,
        "inside": low <= cell.iteration_s <= high,
    }


def family_of(plan: Strategy) -> str:
    """Of aggregators: no exchange, a codec, by the host, a library's own, or our schedules."""
    stages = [stage for bucket in plan.buckets for stage in bucket]
    exchanges = [stage for stage in stages if isinstance(stage, Exchange)]
    if not plan.cell.get("exchanges", True) or not exchanges:
        return "no exchange"
    if any(isinstance(stage, Codec) and stage.where == "rank" for stage in stages):
        return "codec"
    if any(stage.schedule.num_hosts or stage.library == "mpi" for stage in exchanges):
        return "host"
    return "library" if all(stage.native for stage in exchanges) else "schedule"


def _workload(cell: MeasuredCell) -> str:
    names = ("model_label", "scaling", "global_batch", "world_size", "peer_access", "precision", "tf32")
    more = ("input_placement", "memory_format", "augmentation", "accumulate", "optimizer", "momentum")
    return "/".join([Path(cell.source).name, *(str(cell.cell.get(name)) for name in (*names, *more))])


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a fold and family, and one of all families."""
    for fold in dict.fromkeys(row["fold"] for row in rows):
        of_fold = [row for row in rows if row["fold"] == fold]
        for family in (ALL, *sorted({row["family"] for row in of_fold})):
            chosen = [row for row in of_fold if family in (ALL, row["family"])]
            yield {"fold": fold, "family": family, **figures(chosen)}


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the columns of folds.csv say of these cells; empty where there is nothing to say."""
    known = [row for row in rows if row["error_ratio"] != ""]
    values: dict[str, Any] = dict.fromkeys(FOLD_COLUMNS[2:], "")
    values |= {"cells": len(rows), "not_predicted": len(rows) - len(known)}
    if not known:
        return values
    errors = sorted(abs(row["error_ratio"]) for row in known)
    values["median_error"] = statistics.median(errors)
    values["p95_error"] = errors[max(0, math.ceil(0.95 * len(errors)) - 1)]
    values["coverage"] = statistics.fmean(row["inside"] for row in known)
    values["interval_ratio"] = statistics.median(row["high_s"] / row["low_s"] for row in known)
    workloads = _rivals(known)
    regrets = [regret(rivals) for rivals in workloads]
    pairs = [right for rivals in workloads for right in ordered_right(rivals)]
    values |= {"workloads": len(regrets), "pairs": len(pairs)}
    if regrets:
        values |= {"mean_regret": statistics.fmean(regrets), "worst_regret": max(regrets)}
    if pairs:
        values["order"] = statistics.fmean(pairs)
    return values


def _rivals(rows: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["family"] != "no exchange":
            grouped[row["workload"]].append(row)
    return [rivals for rivals in grouped.values() if len(rivals) > 1]


def regret(rivals: Sequence[Mapping[str, Any]]) -> float:
    """What the predicted best takes above the measured best, as a ratio of the latter."""
    chosen = min(rivals, key=lambda row: float(row["predicted_s"]))
    best = min(float(row["measured_s"]) for row in rivals)
    return float(chosen["measured_s"]) / best - 1


def ordered_right(rivals: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    """Of each pair that differs by over 10% as measured: whether it is predicted in that order."""
    for pair in combinations(rivals, 2):
        fast, slow = sorted(pair, key=lambda row: float(row["measured_s"]))
        if slow["measured_s"] > 1.10 * fast["measured_s"]:
            yield bool(fast["predicted_s"] < slow["predicted_s"])


def blind() -> Iterator[str]:
    """Of each committed file of predictions: its errors, and the model's now on the same cells."""
    cells = measured()[0]
    now = {fold: predictor_of(fold) for fold in FOLDS if fold.name == "gpt from others"}  # once for all files
    for path in sorted(BLIND.glob("*-predicted.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = [row for row in content if row.get("iteration_s")]
        pairs = [
            (cell, row)
            for cell in cells
            for row in rows
            if cell.world_size > 1
            and all(row.get(name) == value for name, value in cell_fields(cell.cell).items())
        ]
        if not pairs:
            yield f"{path.name}: none of its cells is measured"
            continue
        yield line(f"{path.name}, as committed", pairs)
        for fold, predictor in now.items():
            again = [(cell, _row(fold, cell, predictor)) for cell, _ in pairs if fold.predicts(cell)]
            names = {"iteration_s": "predicted_s", "iteration_s_low": "low_s", "iteration_s_high": "high_s"}
            now_rows = [
                (cell, {name: row[column] for name, column in names.items()})
                for cell, row in again
                if row["predicted_s"]
            ]
            if now_rows:
                yield line(f"{path.name}, the same cells by the model as it is", now_rows)


def probe() -> Iterator[str]:
    """The library's all-reduce on four GPUs, from its curves on two."""
    fold = FOLDS[0]
    calibration, machine = predictor_of(fold).calibration, machine_of(fold)
    machinery = machinery_for(machine, measured()[1], machine)
    yield "| all_reduce on 4 GPUs | measured, us | predicted, us [95%] | predicted / measured |"
    yield "|---|---|---|---|"
    for transfer in transfers_from(read_samples(PROBE)):
        if transfer.operation != "all_reduce" or transfer.num_ranks != 4 or transfer.num_bytes < 1 << 20:
            continue
        term = term_of_transfer(transfer, machinery)
        assert term is not None
        predicted = calibration.seconds(term)
        low, high = predicted.interval
        access = "host-only" if transfer.host_only else "NVLink"
        size = f"{transfer.num_bytes >> 20} MiB, {access}"
        yield (
            f"| {size} | {1e6 * transfer.seconds:.1f} | {1e6 * predicted.value:.1f} "
            f"[{1e6 * low:.1f}, {1e6 * high:.1f}] | {predicted.value / transfer.seconds:.2f} |"
        )


def line(name: str, pairs: Sequence[tuple[MeasuredCell, Mapping[str, Any]]]) -> str:
    """Median error, largest and coverage."""
    ratios = [row["iteration_s"] / cell.iteration_s - 1 for cell, row in pairs]
    inside = sum(row["iteration_s_low"] <= cell.iteration_s <= row["iteration_s_high"] for cell, row in pairs)
    return (
        f"{name}: {len(pairs)} cells, median error {statistics.median(map(abs, ratios)):.1%}, largest "
        f"{max(map(abs, ratios)):.1%}, {inside} inside; {sum(ratio < 0 for ratio in ratios)} too fast"
    )


def table(folds: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """folds.csv in Markdown."""
    yield "| fold | family | cells | median error | 95th percentile | coverage | regret (worst) | order |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in folds:
        shown = [_percent(row[name]) for name in ("median_error", "p95_error", "coverage")]
        lost = (
            f"{_percent(row['mean_regret'])} ({_percent(row['worst_regret'])})" if row["workloads"] else "-"
        )
        yield (
            f"| {row['fold']} | {row['family']} | {row['cells'] - row['not_predicted']} of {row['cells']} | "
            f"{' | '.join(shown)} | {lost} | {_percent(row['order'])} |"
        )


def _percent(value: Any) -> str:
    return "-" if value == "" else f"{value:.1%}"


def write(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """As CSV, numbers to five digits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()}
            )


def main() -> None:
    """Writes the tables and prints that of the folds, with the worst misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    if options.blind or options.probe:
        print("\n".join(blind() if options.blind else probe()))
        return
    rows = [row for fold in FOLDS for row in rows_of(fold)]
    folds = list(summary(rows))
    if options.out:
        write(options.out / "cells.csv", CELL_COLUMNS, rows)
        write(options.out / "folds.csv", FOLD_COLUMNS, folds)
    print("\n".join(table(folds)))


if __name__ == "__main__":
    main()
