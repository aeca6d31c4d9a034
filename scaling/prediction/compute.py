"""What a rank computes in a step without any exchange, by its local batch, from measured cells.

1. Cells that exchange nothing are grouped by model, step, precision, memory format, input, augmentation and
   device; of the overlapped step those that DDP wraps apart from those that it does not, of the captured step
   those that go layer by layer (`bucket_mb`) apart from those that update after the backward pass.
2. Those of one local batch are one point. More samples take no less time: points that say so are pooled.
3. Between two points the time is interpolated linearly. Beyond them it goes on along the line through the two
   nearest, between proportion and no change from the nearest one, and says so: `EXTRAPOLATION_SD` for each
   factor of two.
4. Where a step has one point only, the truth is between two bounds: in proportion to the batch (all time
   but the update's is that of samples), and no change (launches and latencies bound it). It is their
   geometric middle, with a 95% interval that holds both. An overlapped step follows the differences of the
   eager step: the host starts its kernels likewise. A captured step does so where these are between the
   bounds.
5. A step that takes over `HOST_BOUND` times the captured one is bound by the processor, which starts its
   kernels: this time is a floor, which does not shrink with the batch, so that all batches that it bounds
   tell one time. It differs between machines by `HOST_SD`, and of several ranks each step takes the slowest
   one's (`HOST_STEP_SD`). Other steps differ by `MACHINE_SD`.
6. Layer by layer the update runs under the backward pass. Where only the captured step that updates after it
   was measured, half of its update is taken as hidden, and the 95% interval holds none and all of it.
7. Where a step was not measured with that input, the one with data on the device or another augmentation
   stands for it, with `OTHER_INPUT_SD`; copies to the GPU come on top (`scaling.prediction.predict`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, fmean, geometric_mean, stdev
from typing import Any

from scaling.axes import Shared, key_of, with_columns
from scaling.errors import PredictionError
from scaling.prediction.estimate import PredictedValue, sd_that_reaches
from scaling.prediction.measured import MeasuredCell

EXTRAPOLATION_SD = 0.10
"""Relative deviation that each factor of two beyond the measured local batches adds. An assumption."""

BORROWED_SD = 0.10
"""The same where a step's dependence on the batch is that of the eager step. An assumption."""

HOST_BOUND = 1.5
"""A step launched by the host that takes so many times the captured one waits for the processor. Measured:
1.2 at most for steps of large layers (FCN), 1.9 to 3.3 for many small ones (ResNet-56 at 32, AlexNet-R)."""

HOST_SD = 0.20
"""Between launches and machines, of steps bound by the processor: ResNet-56, eager, on four machines of a
type took 12.4 to 16.8 ms at a local batch of 32 and 13.5 to 23.5 at 64."""

HOST_STEP_SD = 0.12
"""Between the steps of one launch of one rank, of steps bound by the processor: 11 to 15% of ResNet-56 on one
H200, eager, at local batches of 16 to 64 (compute-curves-h200). Of several ranks a step takes the slowest."""

MACHINE_SD = 0.01
"""The same of other steps: FCN-R 0.3%, GPT-2 small 0.8% between two machines."""

OTHER_INPUT_SD = {"device": 0.10, "pinned": 0.10, "pageable": 0.15, "loader": 0.35}
"""Of a step whose input or augmentation was not measured, by where its data lies: workers that load take time
of the processor, which nothing here tells. Assumptions."""

SLOWEST_SD = 0.01
"""Of a step of several ranks, whose slowest counts: GPUs of one type differ by about that. An assumption."""

BACKWARD_SHARE = 2 / 3
"""Of forward and backward together, where the backward pass was not measured: it has twice the products."""


@dataclass(frozen=True)
class Point:
    """One local batch: the step, and the phases that were measured, in seconds."""

    local_batch: int
    step_s: float
    relative_sd: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Computed:
    """A rank's step without exchange.

    Attributes:
        step_s: all of it, with the update of all parameters.
        update_s: of that, the update.
        backward_s: of that, the backward pass.
        notes: what of it was not measured.
        without_ddp: DDP would wrap the step, and what that costs is not in it.
        without_input: data was on the device; its copies there are not in it.
    """

    step_s: PredictedValue
    update_s: float
    backward_s: float
    notes: tuple[str, ...] = ()
    without_ddp: bool = False
    without_input: bool = False


class ComputeModel:
    """Measured steps without exchange.

    Args:
        cells: measured ones; those that exchange are left aside.
    """

    def __init__(self, cells: Iterable[MeasuredCell]) -> None:
        grouped: dict[tuple[Any, ...], dict[int, list[MeasuredCell]]] = defaultdict(lambda: defaultdict(list))
        for cell in cells:
            # Processes on a CPU share its cores and caches: only one alone tells what it computes.
            alone = cell.world_size == 1 or cell.cell.get("device") == "cuda"
            if cell.exchanges_nothing and alone:
                grouped[_key(cell.cell)][int(cell.cell["local_batch"])].append(cell)
        self._curves = {key: _curve_of(by_batch) for key, by_batch in grouped.items()}
        floors = {key: self._with_floor(by_batch) for key, by_batch in grouped.items()}
        self._curves = {key: _curve_of(by_batch) for key, by_batch in floors.items()}

    def step(self, cell: Mapping[str, Any], local_batch: int) -> Computed:
        """The cell's step at that local batch.

        Raises:
            PredictionError: nothing like it was measured.
        """
        curve = self._curve(cell)
        if curve is None:
            if (other := self._with_other_input(cell)) is not None:
                return _of_other_input(cell, self.step(other, local_batch), other)
            raise PredictionError(
                f"no measured cell without exchange of {cell['model_label']}, step {cell['step']}: measure "
                "`none` at world size 1 with that step, precision, memory format, input and augmentation, "
                "and name its folder by --from"
            )
        eager = self._curves.get(_key({**cell, "step": "eager"}, exchanges=False))
        captured = self._captured_curve(cell)
        batches = [point.local_batch for point in curve]
        if len(curve) == 1 and _is_host_bound(curve, captured, batches[0]) and local_batch <= batches[0]:
            note = f"bound by the processor: as long as at local batch {batches[0]}"
            value = PredictedValue.of(curve[0].step_s, "compute", curve[0].relative_sd)
            notes = [note] if local_batch < batches[0] else []
        elif batches[0] <= local_batch <= batches[-1] or (donor := self._donor(cell, curve)) is None:
            value, notes = _along(curve, local_batch)
        else:
            by_host = cell["step"] != "captured"
            nearest = curve[0] if local_batch < batches[0] else curve[-1]
            value, notes = _borrowed(nearest, donor, local_batch, launched_by_host=by_host)
        name = f"compute of {cell['model_label']}, {cell['step']}"
        step = PredictedValue.of(value.value, name, value.relative_sd)
        if captured is not None and step.value > HOST_BOUND * _along(captured, local_batch)[0].value:
            # What launches and machines differed by where it was measured is part of that.
            further = math.sqrt(max(0.0, HOST_SD**2 - value.relative_sd**2))
            step = step.also("launches and machines", further).times(slowest_of(int(cell["world_size"])))
        else:
            step = step.also("launches and machines", MACHINE_SD)
        if cell["step"] == "eager" and eager is None:
            step = step.also("eager as overlapped", BORROWED_SD)
            notes = [*notes, "the eager step was not measured: the overlapped one without DDP stands for it"]
        if int(cell["world_size"]) > 1:
            step = step.also("the slowest of several ranks", SLOWEST_SD)
        phases = eager or curve
        update_s = min(_phase(curve, "update_s", local_batch) or 0.0, 0.9 * step.value)
        if _is_layered(cell) and _key(cell) not in self._curves:
            share = update_s / 2 / step.value
            reach = (1 - share) / (1 - 2 * share)  # from half of it hidden to all; to none is less
            step = step.times(1 - share).also("how much of the update is hidden", sd_that_reaches(reach))
            notes = [
                *notes,
                f"measured without layers: half of its update of {update_s * 1e3:.3g} ms is hidden",
            ]
        backward_s = _phase(phases, "backward_s", local_batch) or BACKWARD_SHARE * (step.value - update_s)
        without_ddp = cell["step"] == "overlapped" and _key(cell)[-2] and _key(cell) not in self._curves
        return Computed(step, update_s, min(backward_s, step.value - update_s), tuple(notes), without_ddp)

    def _with_other_input(self, cell: Mapping[str, Any]) -> dict[str, Any] | None:
        """The same cell with an input that was measured: data on the device, or another augmentation."""
        others: list[dict[str, Any]] = [{"input_placement": "device"}]
        others += [{"augmentation": name} for name in ("none", "standard")]
        others += [{**others[0], **other} for other in others[1:]]
        return next(({**cell, **other} for other in others if self._curve({**cell, **other})), None)

    def _donor(self, cell: Mapping[str, Any], curve: Sequence[Point]) -> list[Point] | None:
        """A curve over more batches, which the cell's own follows beyond what it has of them."""
        keys = [_key({**cell, "step": "eager"}, exchanges=False)] if len(curve) == 1 else []
        if cell["step"] == "overlapped":
            keys.insert(0, _key(cell, exchanges=False))
        curves = [self._curves.get(key, []) for key in keys]
        return next((other for other in curves if len(other) > max(1, len(curve))), None)

    def _with_floor(self, by_batch: Mapping[int, list[MeasuredCell]]) -> dict[int, list[MeasuredCell]]:
        """What the processor bounds takes as long at any batch: all cells that it bounds tell one time."""
        captured = self._captured_curve(next(iter(by_batch.values()))[0].cell)
        bound = [
            batch
            for batch, cells in by_batch.items()
            if _is_host_bound(_curve_of({batch: cells}), captured, batch)
        ]
        all_bound = [
            replace(cell, iteration_s=cell.iteration_s / slowest_of(cell.world_size))
            for batch in bound
            for cell in by_batch[batch]
        ]
        return {batch: all_bound if batch in bound else cells for batch, cells in by_batch.items()}

    def _captured_curve(self, cell: Mapping[str, Any]) -> list[Point] | None:
        """The captured step of the same computation; None for that itself, or where it was not measured."""
        plain = {**cell, "step": "captured", "bucket_mb": None}
        if cell["step"] == "captured":
            return None
        return self._curves.get(_key(plain, exchanges=False)) or self._curves.get(_key(plain))

    def _curve(self, cell: Mapping[str, Any]) -> list[Point] | None:
        # Where DDP's own cost was not measured, the bare step stands for it; for one by layers the whole one.
        keys = [_key(cell), _key(cell, exchanges=False), _key({**cell, "bucket_mb": None}, exchanges=False)]
        if cell["step"] == "eager":  # the host starts the same kernels, but for the update's
            keys.append(_key({**cell, "step": "overlapped"}, exchanges=False))
        return next((self._curves[key] for key in keys if key in self._curves), None)


def _key(cell: Mapping[str, Any], *, exchanges: bool | None = None) -> tuple[Any, ...]:
    wrapped = cell.get("aggregator") != "none" if exchanges is None else exchanges
    return (
        *key_of(with_columns(Shared.CURVE), cell),
        cell["step"] == "overlapped" and wrapped,
        _is_layered(cell),
    )


def _is_layered(cell: Mapping[str, Any]) -> bool:
    """Whether a captured step exchanges and updates layer by layer."""
    return cell["step"] == "captured" and cell.get("bucket_mb") is not None


def _of_other_input(cell: Mapping[str, Any], computed: Computed, other: Mapping[str, Any]) -> Computed:
    """What was computed of `other`, for a cell that differs from it in its input alone."""
    names = [name for name in ("input_placement", "augmentation") if cell.get(name) != other.get(name)]
    changed = ", ".join(f"{name}={other[name]} for {cell.get(name)}" for name in names)
    sd = OTHER_INPUT_SD.get(str(cell.get("input_placement", "device")), max(OTHER_INPUT_SD.values()))
    return replace(
        computed,
        step_s=computed.step_s.also("input that was not measured", sd),
        notes=(*computed.notes, f"compute measured with another input: {changed}"),
        without_input="input_placement" in names,
    )


def _is_host_bound(curve: Sequence[Point], captured: Sequence[Point] | None, local_batch: int) -> bool:
    """Whether the processor bounds the step at that batch, as the captured one tells."""
    if captured is None:
        return False
    return _along(curve, local_batch)[0].value > HOST_BOUND * _along(captured, local_batch)[0].value


def slowest_of(num_ranks: int) -> float:
    """What a step bound by the processor takes on the slowest of so many ranks, over one rank's median."""
    return 1 + HOST_STEP_SD * NormalDist().inv_cdf((num_ranks - 0.375) / (num_ranks + 0.25))


def _curve_of(by_batch: Mapping[int, Sequence[MeasuredCell]]) -> list[Point]:
    return _rising([_point(batch, cells) for batch, cells in sorted(by_batch.items())])


def _point(local_batch: int, cells: Sequence[MeasuredCell]) -> Point:
    step_s = geometric_mean(cell.iteration_s for cell in cells)
    spread = stdev(cell.iteration_s for cell in cells) / step_s if len(cells) > 1 else 0.0
    names = {name for cell in cells for name in cell.phases}
    phases = {
        name: fmean(cell.phases[name] for cell in cells if name in cell.phases) for name in sorted(names)
    }
    return Point(local_batch, step_s, max(spread, *(cell.relative_sd for cell in cells)), phases)


def _rising(points: Sequence[Point]) -> list[Point]:
    """Neighbours of which the larger batch takes less time get their mean, with their spread."""
    blocks: list[list[Point]] = []
    for point in points:
        blocks.append([point])
        while len(blocks) > 1 and fmean(p.step_s for p in blocks[-1]) < fmean(p.step_s for p in blocks[-2]):
            blocks[-2:] = [[*blocks[-2], *blocks[-1]]]
    return [pooled for block in blocks for pooled in _pooled(block)]


def _pooled(block: Sequence[Point]) -> list[Point]:
    if len(block) == 1:
        return list(block)
    step_s = fmean(point.step_s for point in block)
    spread = stdev(point.step_s for point in block) / step_s
    return [replace(point, step_s=step_s, relative_sd=max(spread, point.relative_sd)) for point in block]


def _along(curve: Sequence[Point], local_batch: int) -> tuple[PredictedValue, list[str]]:
    batches = [point.local_batch for point in curve]
    relative_sd = max(point.relative_sd for point in curve)
    if len(curve) == 1:
        return _between_bounds(curve[0], local_batch)
    value = _line(curve, [point.step_s for point in curve], local_batch)
    if batches[0] <= local_batch <= batches[-1]:
        return PredictedValue.of(value, "compute", relative_sd), []
    nearest = curve[0] if local_batch < batches[0] else curve[-1]
    low, high = sorted((nearest.step_s, nearest.step_s * local_batch / nearest.local_batch))
    value = min(max(value, low), high)
    note = f"compute extrapolated to local batch {local_batch}; measured from {batches[0]} to {batches[-1]}"
    beyond = max(batches[0] / local_batch, local_batch / batches[-1])
    spread = math.hypot(relative_sd, EXTRAPOLATION_SD * math.log2(max(beyond, 1.0)))
    return PredictedValue.of(value, "compute", spread), [note]


def _between_bounds(point: Point, local_batch: int) -> tuple[PredictedValue, list[str]]:
    """From a single batch: the middle between proportion and no change; the interval holds both."""
    if local_batch == point.local_batch:
        return PredictedValue.of(point.step_s, "compute", point.relative_sd), []
    fixed_s = min(point.phases.get("update_s", 0.0), 0.9 * point.step_s)
    in_proportion = fixed_s / point.step_s + (1 - fixed_s / point.step_s) * local_batch / point.local_batch
    ratio = math.sqrt(in_proportion)
    note = (
        f"compute measured at local batch {point.local_batch} alone, {point.step_s * 1e3:.4g} ms: for "
        f"{local_batch} the middle between in proportion and as long as there"
    )
    spread = math.hypot(point.relative_sd, sd_that_reaches(ratio))
    return PredictedValue.of(point.step_s * ratio, "compute", spread), [note]


def _borrowed(
    point: Point, eager: Sequence[Point], local_batch: int, *, launched_by_host: bool
) -> tuple[PredictedValue, list[str]]:
    """The eager step's change on top of the one batch; `launched_by_host`: kernel by kernel, as there."""
    there, notes = _along(eager, local_batch)
    here, _ = _along(eager, point.local_batch)
    value = max(point.step_s + there.value - here.value, 0.1 * point.step_s)
    spread = math.sqrt(point.relative_sd**2 + there.relative_sd**2 + BORROWED_SD**2)
    note = (
        f"compute measured up to local batch {point.local_batch}; its change to {local_batch} is that of "
        "the step without DDP, or the eager one"
    )
    if launched_by_host:
        return PredictedValue.of(value, "compute", spread), [note, *notes]
    in_proportion = point.step_s * local_batch / point.local_batch
    low, high = sorted((in_proportion, point.step_s))
    if 1 / (1 + BORROWED_SD) <= value / in_proportion <= 1 + BORROWED_SD:
        value = min(max(value, low), high)
    if not low <= value < 0.99 * high:
        scaled, why = _between_bounds(point, local_batch)
        return scaled, [f"{why[0]}; the eager step's change, to {value * 1e3:.4g} ms, tells nothing of it"]
    note += f", and the interval reaches to proportion, {in_proportion * 1e3:.4g} ms"
    spread = max(spread, sd_that_reaches(value / in_proportion))
    return PredictedValue.of(value, "compute", spread), [note, *notes]


def _line(curve: Sequence[Point], values: Sequence[float], local_batch: int) -> float:
    """On the line through the two points around, or the two nearest; never below a tenth of the least."""
    if local_batch in [point.local_batch for point in curve]:
        return values[[point.local_batch for point in curve].index(local_batch)]
    above = next((i for i, point in enumerate(curve) if point.local_batch > local_batch), len(curve) - 1)
    right = max(above, 1)
    a, b = curve[right - 1].local_batch, curve[right].local_batch
    value = values[right - 1] + (values[right] - values[right - 1]) * (local_batch - a) / (b - a)
    return max(value, 0.1 * min(values))


def _phase(curve: Sequence[Point], name: str, local_batch: int) -> float | None:
    known = [point for point in curve if name in point.phases]
    if not known:
        return None
    if len(known) == 1:
        return known[0].phases[name]
    return _line(known, [point.phases[name] for point in known], local_batch)
