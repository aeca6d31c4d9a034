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

`--blind` compares predictions that were made before their cells were measured (results/predictions) with the
cells of the folder that the file is named after, and prints what the model makes of these cells now; then the
folds of `LATER` and of two H100, whose cells are newer than the form of the model. `--probe` prints NCCL's
all-reduce on four GPUs as it is predicted from two, against a probe of four. `--repeats` prints how far
measured cells are off the mean of their own repeats, as a model that knew every mean would be.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from prediction_scores import FOLD_COLUMNS, line, summary, table, write

from scaling.collectives.plan import CodecWork, Exchange
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
LEFT_OUT = ("planted-faults-4xh200", "mnist-4xh200")
LATER = {
    "paper-2xh200": ("paper-2xh200",),
    "learning-*-2xh200": ("learning-cifar-2xh200", "learning-mnist-2xh200"),
}
"""Folders measured after the model and the folds were made: folds of their own, by `--blind`."""
NETWORKS = ("fcn-r", "fcn-s4", "resnet-56", "alexnet-r", "gpt")
CELL_COLUMNS = (
    *("fold", "results", "model", "aggregator", "family", "step", "precision", "wire", "input_placement"),
    *("peer_access", "world_size", "global_batch", "measured_s", "predicted_s", "low_s", "high_s"),
    *("error_ratio", "inside", "workload", "notes"),
)


@dataclass(frozen=True)
class Fold:
    """What is known and what is predicted, and their GPUs; `with_probe`: the probe's messages too;
    `later`: cells of these folders of `LATER` as well."""

    name: str
    knows: Callable[[MeasuredCell], bool]
    predicts: Callable[[MeasuredCell], bool]
    with_probe: bool = True
    known_gpu: str = "h200"
    gpu: str = "h200"
    later: tuple[str, ...] = ()


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


def _cells(*names: str, **values: Any) -> Callable[[MeasuredCell], bool]:
    """Whether a cell is of one of these folders, and has these variables."""
    return lambda cell: folder_of(cell) in names and values.items() <= cell.cell.items()


def _on_h100(results: str, source: str, knows: Callable[[MeasuredCell], bool], gpu: str = "h100") -> Fold:
    """A folder's cells of two H100; `gpu` is what the known cells ran on."""
    return Fold(f"{results} from {source}", knows, _cells(results, world_size=2), False, gpu, "h100")


def _with_own_gpu(results: str) -> Fold:
    one = _cells(results, world_size=1)
    known = _cells("gpt-2xh100")
    return _on_h100(results, "gpt-2xh100 and its own one GPU", lambda cell: known(cell) or one(cell))


AS_THE_RUN_KNEW = (
    Fold(
        "gpt-2xh100, NVLink from one GPU",
        _cells("gpt-2xh100", world_size=1),
        _cells("gpt-2xh100", world_size=2, peer_access=True),
        with_probe=False,
        known_gpu="h100",
        gpu="h100",
    ),
    Fold(
        "gpt-2xh100, host-only from NVLink",
        _cells("gpt-2xh100", peer_access=True),
        _cells("gpt-2xh100", peer_access=False),
        with_probe=False,
        known_gpu="h100",
        gpu="h100",
    ),
)
"""What `scaling run` knew of gpt-2xh100 before each launch."""

LATER_FOLDS = tuple(
    Fold(
        f"{name}, 2 from 1",
        lambda cell: cell.world_size == 1,
        _cells(*folders, world_size=2),
        with_probe=False,
        later=folders,
    )
    for name, folders in LATER.items()
)

H100_FOLDS = (
    *AS_THE_RUN_KNEW,
    *(
        _on_h100(name, "gpt-2xh100", _cells("gpt-2xh100"))
        for name in ("sharded-2xh100", "headline-bf16-2xh100")
    ),
    _with_own_gpu("sharded-2xh100"),
    Fold("H100 from H200", lambda _: True, lambda cell: cell.world_size > 1, False, "h200", "h100"),
    Fold("H200 from H100", lambda _: True, _cells("gpt-2xh200", world_size=2), False, "h100", "h200"),
    *(
        _on_h100(name, "H200", lambda _: True, "h200")
        for name in ("gpt-2xh100", "sharded-2xh100", "headline-bf16-2xh100")
    ),
)


def measured(
    gpu: str = "h200", *, later: Sequence[str] = ()
) -> tuple[tuple[MeasuredCell, ...], tuple[MeasuredTransfer, ...]]:
    """The cells of all committed folders whose GPU has that word in its name, and a probe's messages."""
    cells, transfers = _with_replicates(gpu)
    kept = (cell for cell in cells if not cell.cell.get("aa_replicate"))
    left_out = {folder for folders in LATER.values() for folder in folders} - {*later}
    return tuple(cell for cell in kept if folder_of(cell) not in left_out), transfers


@cache
def _with_replicates(gpu: str) -> tuple[tuple[MeasuredCell, ...], tuple[MeasuredTransfer, ...]]:
    """The same with the second cells of A/A pairs."""
    folders = [path for path in sorted(REFERENCE.iterdir()) if (path / "study.yaml").is_file()]
    cells: list[MeasuredCell] = []
    transfers: list[MeasuredTransfer] = []
    for path in folders:
        if path.name in LEFT_OUT or path.name.startswith("device-") or not _has(path, gpu):
            continue
        folder = MeasuredFolder(ResultsFolder(path))
        cells += [cell for cell in folder.cells() if cell.cell["device"] == "cuda"]
        transfers += folder.transfers()
    return tuple(cells), tuple(transfers)


def _has(path: Path, gpu: str) -> bool:
    """Whether a folder's environment names such a GPU."""
    environment = ResultsFolder(path).environment()
    return any(gpu in str(found.get("name", "")).lower() for found in environment.get("gpus") or ())


def folder_of(cell: MeasuredCell) -> str:
    return Path(cell.source).name


@cache
def _strategy(cell_text: str, tensor_shapes: str) -> Strategy:
    return strategy_of(json.loads(cell_text), tensor_shapes)


def strategy(cell: Mapping[str, Any], tensor_shapes: str = "") -> Strategy:
    """`strategy_of`, once for all folds."""
    return _strategy(json.dumps(dict(cell), sort_keys=True), tensor_shapes)


def machine_of(fold: Fold) -> Topology:
    """Of the known cells: four GPUs as a probe of two found them, or as shipped; of two H100 as detected."""
    if fold.known_gpu == "h100":
        return load(REFERENCE / "gpt-2xh100" / "topology.yaml")
    if not fold.with_probe:
        return load("hgx-h200")
    return what_if(load(REFERENCE / "transfer-2xh200" / "probed.yaml"), ["gpus=2x"])


def predictor_of(fold: Fold) -> Predictor:
    """The model, fitted to what the fold knows."""
    cells, transfers = measured(fold.known_gpu, later=fold.later)
    known = [cell for cell in cells if fold.knows(cell)]
    predicted = {id(cell) for cell in measured(fold.gpu, later=fold.later)[0] if fold.predicts(cell)}
    assert not predicted & {id(cell) for cell in known}, f"{fold.name} knows what it predicts"
    machine = machine_of(fold)
    sources = Sources(known, transfers if fold.with_probe else (), machine)
    own = load(REFERENCE / fold.later[0] / "topology.yaml") if fold.later else None
    return sources.predictor(own or machine_of(replace(fold, known_gpu=fold.gpu)), strategy)[0]


def rows_of(fold: Fold) -> list[dict[str, Any]]:
    """A row a predicted cell; seconds, errors positive where the prediction is too long."""
    predictor = predictor_of(fold)
    cells, _ = measured(fold.gpu, later=fold.later)
    return [_row(fold.name, cell, predictor) for cell in cells if fold.predicts(cell)]


def _row(fold: str, cell: MeasuredCell, predictor: Predictor) -> dict[str, Any]:
    values = cell.cell
    row = dict.fromkeys(CELL_COLUMNS, "") | {
        "fold": fold,
        "results": folder_of(cell),
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
    if any(isinstance(stage, CodecWork) and stage.where == "rank" for stage in stages):
        return "codec"
    if any(stage.schedule.num_hosts or stage.library == "mpi" for stage in exchanges):
        return "host"
    return "library" if all(stage.native for stage in exchanges) else "schedule"


def _workload(cell: MeasuredCell) -> str:
    names = ("model_label", "scaling", "global_batch", "world_size", "peer_access", "precision", "tf32")
    more = ("input_placement", "memory_format", "augmentation", "accumulate", "optimizer", "momentum")
    return "/".join([folder_of(cell), *(str(cell.cell.get(name)) for name in (*names, *more))])


def blind() -> Iterator[str]:
    """Of each file of predictions: its errors on its own GPU, and the model's now on the same cells."""
    again = {"gpt-2xh200": (FOLDS[NETWORKS.index("gpt") + 3],), "gpt-2xh100": AS_THE_RUN_KNEW}
    for path in sorted(BLIND.glob("*-predicted.json")):
        name = path.stem.removesuffix("-predicted")
        rows = [row for row in json.loads(path.read_text(encoding="utf-8")) if row.get("iteration_s")]
        compared = [
            _compared(cell, row)
            for cell in measured(name.rpartition("x")[2])[0]
            for row in rows
            if folder_of(cell) == name and cell.world_size > 1
            if all(row.get(field) == value for field, value in cell_fields(cell.cell).items())
        ]
        if not compared:
            yield f"{path.name}: no cell of {name} is measured"
            continue
        yield line(f"{path.name}, as committed", compared)
        for fold in again.get(name, ()):
            yield line(f"{fold.name}, by the model as it is", rows_of(fold))
    yield from (line(fold.name, rows_of(fold)) for fold in LATER_FOLDS)


def _compared(cell: MeasuredCell, row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "error_ratio": row["iteration_s"] / cell.iteration_s - 1,
        "inside": row["iteration_s_low"] <= cell.iteration_s <= row["iteration_s_high"],
    }


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


def repeats(world_size: int) -> str:
    """How far cells are off the true mean of their setting, from repeats in other folders and A/A pairs.

    A deviation from the mean of n repeats counts sqrt(n / (n - 1)) times: that mean holds the cell itself.
    Steps bound by the processor count by their share of all cells of that world size.
    """
    by_setting: dict[tuple[Any, ...], list[MeasuredCell]] = defaultdict(list)
    for cell in _with_replicates("h200")[0]:
        if cell.world_size == world_size:
            values = cell.cell
            names = ("aggregator_label", "step", "wire", "bucket_mb", "threads")
            kernels = strategy(values, cell.tensor_shapes).codes_by_tensor
            setting = _workload(cell).partition("/")[2], kernels, *(values.get(name) for name in names)
            by_setting[setting].append(cell)
    off = []
    for cells in by_setting.values():
        logs = [math.log(cell.iteration_s) for cell in cells]
        unbiased = math.sqrt(len(logs) / (len(logs) - 1)) if len(logs) > 1 else math.nan
        off += [
            (math.expm1(unbiased * abs(log - fmean(logs))), _by_processor(cell))
            for log, cell in zip(logs, cells, strict=True)
            if len(logs) > 1
        ]
    share = fmean(_by_processor(cell) for cell in measured()[0] if cell.world_size == world_size)
    bound = sum(is_bound for _, is_bound in off)
    weights = {True: share / bound, False: (1 - share) / (len(off) - bound)}
    beyond = next(
        size for size, _ in sorted(off) if sum(weights[kind] for other, kind in off if other <= size) >= 0.95
    )
    return (
        f"{len(off)} cells with repeats on {world_size} GPUs, {bound} bound by the processor: 95% are less "
        f"than {beyond:.1%} off the true mean of their setting, if {share:.0%} are bound so"
    )


def _by_processor(cell: MeasuredCell) -> bool:
    """Whether it is a step of many small kernels that the host starts."""
    return cell.cell["model_label"] in ("resnet-56", "alexnet-r") and cell.cell["step"] != "captured"


def main() -> None:
    """Writes the tables and prints that of the folds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--probe", action="store_true")
    parser.add_argument("--repeats", action="store_true")
    options = parser.parse_args()
    if options.repeats:
        print("\n".join(map(repeats, (2, 4))))
        return
    if options.probe:
        print("\n".join(probe()))
        return
    if options.blind:
        print("\n".join(blind()))
    rows = [row for fold in (H100_FOLDS if options.blind else FOLDS) for row in rows_of(fold)]
    folds = list(summary(rows))
    if options.out:
        write(options.out / "cells.csv", CELL_COLUMNS, rows)
        write(options.out / "folds.csv", FOLD_COLUMNS, folds)
    print("\n".join(table(folds)))


if __name__ == "__main__":
    main()
