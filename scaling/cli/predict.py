"""`scaling predict` and `plan`: a study's times on another machine; its cells, launches and time here."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from scaling.cli.options import AsJson, Out, Overrides, OverridesAsInRun, StudyArgument, resolved_study
from scaling.cli.schedule import write_file
from scaling.errors import StudyError

if TYPE_CHECKING:
    from scaling.prediction.predict import Prediction
    from scaling.study.cell import Cell
    from scaling.study.predicting import NotPredicted
    from scaling.study.pruning import CellChoice
    from scaling.study.schema import Study
    from topologies.model import Topology


MAX_UNNAMED_WORKERS = 128  # the largest world size that is predicted when `--world-sizes` is not given


def predict(
    study: Annotated[
        str, Argument(help="A study file, the name of a shipped study, or the folder of `attach`.")
    ],
    overrides: OverridesAsInRun = None,
    topology: Annotated[str, Option(metavar="NAME", help="A shipped machine, or a machine file.")] = "",
    world_sizes: Annotated[
        str | None,
        Option(
            metavar="SIZES", help="Numbers of workers, such as 1,2,4,8,64,1024 (default: those of the study)."
        ),
    ] = None,
    results: Annotated[
        list[Path] | None,
        Option(
            "--from",
            metavar="DIR",
            help="Results folder to predict from: world size 1 gives the computation, larger ones calibrate "
            "the exchange. Repeatable. Default: communication alone.",
        ),
    ] = None,
    samples: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="Samples of `topology probe`, to calibrate the exchange."),
    ] = None,
    source_topology: Annotated[
        str | None, Option(metavar="NAME", help="Machine of --from and --samples, if it is another one.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        Option(
            "--what-if",
            metavar="KEY=VALUE",
            help="Change the machine: nvlink.bandwidth=2x, network.latency=5e-6, peer_access=off, gpus=2x.",
        ),
    ] = None,
    best_order: Annotated[
        bool, Option("--best-order", help="Also search the best GPUs and order of ranks.")
    ] = False,
    measure_next: Annotated[
        Path | None, Option(metavar="FILE", help="Write a study of what would narrow the intervals most.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict time, speedup and exposed communication of every cell; measures nothing."""
    from scaling.prediction.best_order import search
    from scaling.prediction.rows import fastest, text_table
    from scaling.prediction.what_if import what_if
    from scaling.study.predicting import strategy_of
    from topologies.schema import load

    if not topology:
        raise StudyError("name a machine: --topology NAME (see `scaling list topologies`), or a machine file")
    machine = what_if(load(topology), changes or [])
    sizes = _parsed(world_sizes) if world_sizes else None
    asked = _asked(study, overrides or [], machine, sizes, has_next=measure_next is not None)
    if asked.study is None:
        results = [*(results or []), Path(study)]
    sources = _sources(results or [], load(topology), samples or [], source_topology)
    largest = max((cell.world_size for cell in asked.cells if asked.study), default=0)
    if sizes is None and largest > MAX_UNNAMED_WORKERS:
        raise StudyError(
            f"{largest} workers on {machine.name}: above {MAX_UNNAMED_WORKERS}, prediction can take "
            "minutes, and is made only of sizes that you name; give --world-sizes, as in "
            "--world-sizes 1,8,64"
        )
    predictions, rows = predicted(
        asked.cells, machine, sources, known=bool(results), tensor_shapes=asked.tensor_shapes
    )
    rows += [
        {"simulated": True, **refused.cell, "topology": machine.name, "reason": refused.reason}
        for refused in asked.left_out
    ]
    strategies = [strategy_of(cell.to_dict()) for cell in asked.cells] if best_order and asked.study else []
    orders = [order for strategy in strategies if (order := search(strategy, machine)) is not None]
    next_text = (
        _next_measurement(predictions, asked.cells, asked.study, measure_next) if asked.study else None
    )
    if as_json:
        typer.echo(json.dumps([*rows, *orders], indent=1))
    else:
        who = f"{machine.name}, {machine.num_gpus or 'no'} GPUs"
        typer.echo(f"simulated on {who}: nothing here is measured; [95%]{fastest(rows)}\n{text_table(rows)}")
        for order in orders:
            typer.echo(order["text"])
        if next_text:
            typer.echo(f"narrows most: {next_text}")
    _require_predictions(predictions, asked.left_out, machine, topology)


def steps_on(directory: Path, topology: str, world_sizes: str) -> list[dict[str, Any]]:
    """Rows of a folder's study, predicted from it; says which were not. Raises StudyError: none was."""
    from topologies.schema import load

    machine = load(topology)
    asked = _asked(str(directory / "study.yaml"), [], machine, _parsed(world_sizes), has_next=False)
    predictions, rows = predicted(asked.cells, machine, _sources([directory], machine), known=True)
    reasons = [refused.reason for refused in asked.left_out]
    reasons += [row["reason"] for row in rows if "reason" in row]
    for reason in dict.fromkeys(reasons):
        typer.echo(f"not predicted: {reason}", err=True)
    _require_predictions(predictions, asked.left_out, machine, topology)
    return rows


def _sources(
    results: list[Path], machine: Topology, samples: Sequence[Path] = (), source_topology: str | None = None
) -> Any:
    from scaling.prediction.calibration_data import sources_of

    sources, notes = sources_of(results, samples, machine, source_topology)
    for note in notes:
        typer.echo(note, err=True)
    return sources


@dataclass(frozen=True)
class _Asked:
    cells: list[Any]  # of a study, or mappings of an attached script
    left_out: list[NotPredicted]  # those that the machine has no place for
    study: Study | None
    tensor_shapes: str = ""  # of a script


def _asked(
    study: str, overrides: list[str], machine: Topology, sizes: list[int] | None, *, has_next: bool
) -> _Asked:
    from scaling.prediction.attached import cells_of_script, is_of_script
    from scaling.store import ResultsFolder
    from scaling.study.overrides import load_study
    from scaling.study.predicting import NotPredicted, cells_on

    script = ResultsFolder(Path(study)) if Path(study, "study.yaml").is_file() else None
    if script is None or not is_of_script(script):
        loaded = load_study(study, overrides)
        of_study, left_out = cells_on(loaded, machine, sizes)
        return _Asked(list(of_study), list(left_out), loaded)
    if overrides or has_next:
        raise StudyError(f"{study} is of an attached script: it takes no KEY=VALUE and no --measure-next")
    of_script, shapes, no_place = cells_of_script(script, machine, sizes)
    was_host_only = any(record.cell.get("peer_access") is False for record in script.runs())
    if was_host_only and any(cell["peer_access"] is None for cell in of_script):
        typer.echo(
            f"{study} was measured without peer access (NCCL_P2P_DISABLE or NCCL_P2P_LEVEL was set). What "
            "follows is with it; without: --what-if peer_access=off", err=True,
        )  # fmt: skip
    refused = [NotPredicted({"world_size": size}, reason) for size, reason in no_place]
    return _Asked(list(of_script), refused, None, shapes)


def _parsed(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d{0,4}(,[1-9]\d{0,4})*", text):
        raise StudyError(f"--world-sizes {text!r:.60}: give numbers below 100000, as in 1,2,4,8,64")
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def predicted(
    cells: list[Any], machine: Topology, sources: Any, *, known: bool, tensor_shapes: str = ""
) -> tuple[list[Prediction], list[dict[str, Any]]]:
    """Predictions, and rows, with the reason where there is none. StudyError: all are another device's."""
    from scaling.prediction.rows import reason_row, row_of
    from scaling.prediction.terms import of_other_device
    from scaling.study.predicting import predict_cells, strategy_of

    predictor, compute = sources.predictor(machine, strategy_of, lambda note: typer.echo(note, err=True))
    used = predictor if known else predictor.exchange_only()
    predictions, failed = predict_cells(cells, used, tensor_shapes)
    refusals = [of_other_device(prediction.cell, machine) for prediction in predictions]
    if known and refusals and all(refusals):
        raise StudyError(f"nothing was predicted: {refusals[0]}")
    ids = {json.dumps(cell.to_dict(), sort_keys=True): cell.id for cell in cells if not tensor_shapes}

    def identity(cell: Any) -> str | None:
        return ids.get(json.dumps(dict(cell), sort_keys=True))

    used_compute = compute if known else None
    rows = [row_of(one, used_compute, identity(one.cell)) for one in predictions]
    rows += [reason_row(one.cell, machine.name, one.reason, identity(one.cell)) for one in failed]
    return predictions, rows


def _next_measurement(
    predictions: list[Prediction], cells: list[Cell], study: Study, path: Path | None
) -> str | None:
    """What would narrow the intervals most, in a line; its study is written to `path`."""
    from scaling.prediction.narrowing import next_measurement
    from scaling.study.pruning import study_of_cell

    measurement = next_measurement(predictions)
    if path is not None:
        if measurement is None:
            raise StudyError("--measure-next: no interval would be narrower: name results by --from")
        cell_to_measure = next(cell for cell in cells if cell.to_dict() == dict(measurement.cell))
        write_file(
            path, study_of_cell(study, replace(cell_to_measure, **measurement.changes), repeats=3).encode()
        )
    return measurement.text if measurement else None


def _require_predictions(
    predictions: list[Prediction], refused: list[NotPredicted], machine: Topology, topology: str
) -> None:
    """Refuses where nothing was predicted; offers machines that are large enough for all that was not."""
    from topologies.schema import load, shipped

    sizes = [int(refusal.cell["world_size"]) for refusal in refused if "world_size" in refusal.cell]
    names = {gpu.name for gpu in machine.machine.of_kind("gpu")}
    larger = [
        name
        for name in shipped()
        if (other := load(name)).num_gpus >= max(sizes, default=1) > machine.num_gpus
        and {gpu.name for gpu in other.machine.of_kind("gpu")} == names
    ]
    offer = f"; with enough of them there are --topology {', '.join(larger)}" if larger else ""
    has = f"{topology} has {machine.num_gpus} GPUs{offer}"
    if not predictions:
        raise StudyError(f"nothing was predicted: {has}")
    if larger:
        typer.echo(f"{max(sizes)} workers were not predicted: {has}", err=True)


def _judged(
    study: str,
    overrides: list[str] | None,
    results: list[Path],
    topology: str | None,
    budget: str | None,
    write: Path | None,
    *,
    skip_dominated: bool,
) -> list[CellChoice]:
    """Which cells to measure, and which not, and why; those to measure are written as a study."""
    from scaling.study.cell import AvailableMachine
    from scaling.study.overrides import load_study
    from scaling.study.pruning import judge, parse_budget, study_of
    from scaling.study.resolve import resolve
    from topologies.schema import load

    limit = parse_budget(budget) if budget else None
    if not results:
        raise StudyError("name results to predict from: --from DIR, with world size 1 measured at least")
    if topology is None:
        paths = [path / name for path in results for name in ("probed.yaml", "topology.yaml")]
        topology = next((str(path) for path in paths if os.path.lexists(path)), None)
    if topology is None:
        raise StudyError(
            f"{', '.join(map(str, results))}: no probed.yaml or topology.yaml there; name the "
            "machine: --topology NAME"
        )
    machine = load(topology)
    loaded = load_study(study, overrides or [])
    cores = sum(device.cores or 0 for device in machine.machine.of_kind("cpu")) or 1
    available = AvailableMachine(len(machine.machine.of_kind("gpu")), cores, machine.num_nodes)
    cells = resolve(loaded, available)
    trained = [cell for cell in cells.trained if cell.kind == "iteration" and not cell.aa_replicate]
    rows = predicted(trained, machine, _sources(results, machine), known=True)[1]
    verdicts = judge(trained, rows, cells.repeats, limit, skip_dominated=skip_dominated)
    if write is not None:
        write_file(write, study_of(loaded, verdicts, cells).encode())
    return verdicts


def plan(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    skip_dominated: Annotated[
        bool, Option("--skip-dominated", help="Predict which cells can be the fastest, and skip the rest.")
    ] = False,
    budget: Annotated[
        str | None, Option(metavar="TIME", help="Keep only what fits into this time: 10m, 90s, 2h.")
    ] = None,
    results: Annotated[
        list[Path] | None, Option("--from", metavar="DIR", help="Results folder to predict from.")
    ] = None,
    topology_name: Annotated[
        str | None, Option("--topology", metavar="NAME", help="Machine to predict for (default: this one).")
    ] = None,
    write: Annotated[
        Path | None, Option(metavar="FILE", help="Write a study of the cells to measure.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the cells and launches of a study and an estimate of the time; runs nothing."""
    if skip_dominated or budget:
        from scaling.study.pruning import describe

        sources = results or ([out] if out else [])
        verdicts = _judged(
            study, overrides, sources, topology_name, budget, write, skip_dominated=skip_dominated
        )
        chosen = [verdict.as_dict() for verdict in verdicts]
        typer.echo(json.dumps(chosen, indent=1) if as_json else describe(verdicts))
        return
    from scaling.study.planning import describe_plan, plan_as_dict

    resolved = resolved_study(study, overrides)
    folder = out or Path("results") / resolved.name
    text = (
        json.dumps(plan_as_dict(resolved, folder), indent=1) if as_json else describe_plan(resolved, folder)
    )
    typer.echo(text)
