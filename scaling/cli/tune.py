"""`scaling tune`: the best buckets for DDP's exchange, by a model and then by measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from scaling.cli.options import Out, Overrides, StudyArgument, note
from scaling.cli.run import measured, workers
from scaling.errors import ScalingError
from scaling.files.texts import folded

if TYPE_CHECKING:
    from scaling.analysis.findings import Finding
    from scaling.analysis.samples import CellResult
    from scaling.cli.run import Begun
    from scaling.prediction.buckets import ExchangeCurve, Gradients, Partition
    from scaling.store import ResultsFolder
    from scaling.study.schema import Study


def tune(
    study: StudyArgument,
    overrides: Overrides = None,
    out: Out = None,
    count: Annotated[int, Option(min=1, max=1000, help="Most partitions that are measured for a cell.")] = 3,
) -> None:
    """Find the best gradient buckets of a study's overlapped cells; keep DDP's own unless others are faster.

    A probe of two cells shows when gradients are ready and what exchanges take. The best partitions by that
    are measured with DDP's default and the step without exchange, then the fastest again with the default.
    """
    from scaling.prediction.buckets import to_measure
    from scaling.report.text import text_of
    from scaling.store.files import part_of
    from scaling.study.overrides import load_study
    from scaling.study.prepare import this_machine
    from scaling.study.resolve import resolve
    from scaling.study.tuning import cells_to_tune, deciding_study, measured_study, probe_study
    from scaling.training.ddp import TAKES_SIZES

    with workers("local") as begun:
        loaded = load_study(study, overrides or [])
        resolved = resolve(loaded, this_machine(begun[0].launcher.num_nodes))
        cells = cells_to_tune(loaded, resolved)
        out = out or Path("results") / f"{loaded.name}-tune"
        probe = probe_study(loaded, resolved, cells)
        folder = _measured(probe, part_of(out, "probe"), begun)
        models = [_Model.of(probed) for probed in _cells_by_part(probe, folder)]
        best = [
            to_measure(one.gradients, one.curve, one.default, count, takes_sizes=TAKES_SIZES)
            for one in models
        ]
        sizes = [
            [partition.sizes_for_ddp(model.gradients) for partition in of_model]
            for model, of_model in zip(models, best, strict=True)
        ]
        screening = measured_study(loaded, resolved, cells, sizes)
        folder = _measured(screening, part_of(out, "buckets"), begun)
        fastest = [_fastest(screened) for screened in _cells_by_part(screening, folder)]
        deciding = deciding_study(screening, loaded, resolved, cells, fastest)
        folder = _measured(deciding, part_of(out, "buckets"), begun)
    for cell, model, measured_cells in zip(cells, models, _cells_by_part(screening, folder), strict=True):
        setting = replace(cell, bucket_mb=None, bucket_sizes_mb=None).describe()
        lines = text_of(model.finding(measured_cells)).split(" // ")
        typer.echo("\n".join([f"{setting}:", *(folded("  ", line, indent=4) for line in lines)]))
    note(f"report: {folder.path / 'report.html'}; of the probe: {out / 'probe' / 'report.html'}")


def _measured(study: Study, out: Path, begun: Begun) -> ResultsFolder:
    from scaling.store.files import write_whole
    from scaling.study.tuning import text_of

    file = out.with_suffix(".yaml")
    write_whole(file, text_of(study).encode())
    outcome = measured(str(file), [], out, begun)
    for line in outcome.rest():
        note(line)
    if outcome.is_failure:
        raise typer.Exit(1)
    return outcome.folder


def _cells_by_part(study: Study, folder: ResultsFolder) -> list[list[CellResult]]:
    from scaling.analysis.samples import read_cells
    from scaling.study.prepare import this_machine
    from scaling.study.resolve import resolve

    by_id = {cell.cell_id: cell for cell in read_cells(folder)}
    by_part = [study.model_copy(update={"parts": (part,)}) for part in study.parts]
    return [
        [by_id[cell_id] for cell_id in resolve(part_study, this_machine()).cells] for part_study in by_part
    ]


def _fastest(screened: Sequence[CellResult]) -> tuple[float, ...] | None:
    """The sizes of the candidate that was fastest in the launches that all have; None without candidates."""
    from scaling.analysis.tuned import fastest
    from scaling.bucket import DDP_BUCKETS_MB
    from scaling.study.tuning import SCREENING_LAUNCHES

    candidates = [cell for cell in screened if _sizes_of(cell) not in ((), DDP_BUCKETS_MB)]
    best = fastest(candidates, SCREENING_LAUNCHES)
    return None if best is None else _sizes_of(best)


def _sizes_of(cell: CellResult) -> tuple[float, ...]:
    """Of its buckets; () of the control arm."""
    return tuple(cell.cell["bucket_sizes_mb"] or ())


@dataclass(frozen=True)
class _Model:
    """What the probe shows of one cell: its gradients, the curve of its exchange, and DDP's own buckets."""

    gradients: Gradients
    curve: ExchangeCurve
    default: Partition

    @classmethod
    def of(cls, probed: Sequence[CellResult]) -> _Model:
        from scaling.analysis.tuned import bucket_times
        from scaling.bucket import DDP_BUCKETS_MB
        from scaling.prediction.buckets import ExchangeCurve, Gradients, of_default

        if any(";" in str(record.summary.get("tensor_shapes")) for cell in probed for record in cell.done):
            raise ScalingError("tune is for gradients of one dtype: DDP fills buckets of each dtype apart")
        times = sorted(map(bucket_times, probed), key=lambda cell: len(cell.num_bytes), reverse=True)
        gradients = Gradients(times[0].ready_s, times[0].num_bytes)
        curve = ExchangeCurve.of(
            [pair for cell in times for pair in zip(cell.num_bytes, cell.exchange_s, strict=True)]
        )
        return cls(gradients, curve, of_default(DDP_BUCKETS_MB, gradients, curve))

    def finding(self, measured: Sequence[CellResult]) -> Finding:
        from scaling.analysis.tuned import tuned_buckets
        from scaling.bucket import DDP_BUCKETS_MB
        from scaling.prediction.buckets import best_partition, of_default
        from scaling.study.tuning import CONTROL
        from scaling.training.ddp import TAKES_SIZES

        sizes = {cell.cell_id: tuple(cell.cell["bucket_sizes_mb"] or ()) for cell in measured}
        control = next((cell.cell_id for cell in measured if cell.cell["aggregator"] == CONTROL), None)
        default = next(cell_id for cell_id, sizes_mb in sizes.items() if sizes_mb == DDP_BUCKETS_MB)
        candidates = [cell_id for cell_id in sizes if cell_id not in (control, default)]
        finding = tuned_buckets(measured, default, candidates, control)
        chosen = of_default(sizes[finding.cells[0]], self.gradients, self.curve)
        model = {
            "sizes_mb": chosen.sizes_mb,
            "takes_sizes": TAKES_SIZES,
            "num_buckets": len(chosen.ends),
            "num_gradients": len(self.gradients.num_bytes),
            "bound_s": best_partition(self.gradients, self.curve).end_s,
            "end_s": chosen.end_s,
            "default_end_s": self.default.end_s,
        }
        return replace(finding, values={**finding.values, **model})
