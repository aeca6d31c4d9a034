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
   one's (`HOST_STEP_SD`). Other steps differ by `MACHINE_SD`. What cells differed by where they were
   measured is a part of that.
6. Layer by layer the update runs under the backward pass. Where only the captured step that updates after it
   was measured, half of its update is taken as hidden, and the 95% interval holds none and all of it.
7. Of a captured step that exchanges, its profiled forward and backward pass and update are a point where no
   step without exchange has that batch (`PROFILED_SD`).
8. Where a step was not measured with that input, the one with data on the device or another augmentation
   stands for it, with `OTHER_INPUT_SD`; copies to the GPU come on top (`scaling.prediction.predict`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, geometric_mean, stdev
from typing import Any

from scaling.axes import Shared, key_of, with_columns
from scaling.errors import PredictionError
from scaling.prediction.estimate import PredictedValue, beyond, sd_that_reaches
from scaling.prediction.measured import MeasuredCell
from scaling.prediction.strategy import steps_of_exchange
from scaling.prediction.unseen import MACHINE_SD, slowest_of

EXTRAPOLATION_SD = 0.05
"""Relative deviation that each factor of two beyond the measured local batches adds. Measured: 12 ends
of curves that the GPU bounds, each left out, are 5.3% off (root mean square; one GPU, compute-curves-h200)
for a factor of two."""

INTERPOLATION_SD = 0.02  # between two batches: 1.5% off, but 7 and 14% where a floor begins
BORROWED_SD = 0.10  # the same where a step's dependence on the batch is that of the eager step. An assumption

BORROWED_SHARE = 0.2
"""Of what two steps of the same kernels differ by at one batch: how much of it another batch may change, if
that is less. Measured on the same curves: at most 12% of it (FCN-R, fcn-s4)."""

HOST_BOUND = 1.5
"""A step launched by the host that takes so many times the captured one waits for the processor. Measured:
1.2 at most for steps of large layers (FCN), 1.9 to 3.3 for many small ones (ResNet-56 at 32, AlexNet-R)."""

HOST_SD = 0.20
"""Between launches and machines, of steps bound by the processor: ResNet-56, eager, on four machines of a
type took 12.4 to 16.8 ms at a local batch of 32 and 13.5 to 23.5 at 64."""

MACHINES_SHARE = 0.7
"""Of that variance what is a machine's own: eager ResNet-56 differs by 16% between folders, by 10% between
the cells of one. Where one folder alone was measured, its machine is as far off as the predicted one."""

OTHER_INPUT_SD = {"device": 0.10, "pinned": 0.10, "pageable": 0.15, "loader": 0.35}
"""Of a step whose input or augmentation was not measured, by where its data lies: workers that load take time
of the processor, which nothing here tells. Assumptions."""

PROFILED = ("forward_s", "backward_s", "clip_s", "update_s")
PROFILED_SD = 0.02
"""Of the sum of these phases as a captured step's computation. Measured: within 1% of the whole step of 15
of 16 captured `none` cells (FCN-R, fcn-s4, ResNet-56, GPT-2), 9% short of AlexNet-R's 0.7 ms."""

BACKWARD_SHARE = 2 / 3  # of forward and backward, where that was not measured: twice the products


@dataclass(frozen=True)
class Point:
    """One local batch: the step, and the phases that were measured, in seconds; from so many folders."""

    local_batch: int
    step_s: float
    relative_sd: float
    phases: Mapping[str, float] = field(default_factory=dict)
    num_sources: int = 1
    step_sd: float | None = None


def rising(points: Sequence[Point]) -> list[Point]:
    """Neighbours of which the larger batch takes less time get their mean, with their spread."""
    blocks: list[list[Point]] = []
    for point in points:
        blocks.append([point])
        while len(blocks) > 1 and fmean(p.step_s for p in blocks[-1]) < fmean(p.step_s for p in blocks[-2]):
            blocks[-2:] = [[*blocks[-2], *blocks[-1]]]
    pooled: list[Point] = []
    for block in blocks:
        step_s = fmean(point.step_s for point in block)
        spread = stdev(point.step_s for point in block) / step_s if len(block) > 1 else 0.0
        pooled += [replace(one, step_s=step_s, relative_sd=max(spread, one.relative_sd)) for one in block]
    return pooled


def line(curve: Sequence[Point], values: Sequence[float], local_batch: int) -> float:
    """On the line through the two points around, or the two nearest; never below a tenth of the least."""
    near = around(curve, local_batch)
    at = [values[curve.index(point)] for point in near]
    if len(near) == 1:
        return at[0]
    a, b = (point.local_batch for point in near)
    return max(at[0] + (at[1] - at[0]) * (local_batch - a) / (b - a), 0.1 * min(values))


def around(curve: Sequence[Point], local_batch: int) -> Sequence[Point]:
    """The point of that batch, or else the two around it, or the two nearest."""
    batches = [point.local_batch for point in curve]
    if local_batch in batches:
        return [curve[batches.index(local_batch)]]
    above = next((i for i, batch in enumerate(batches) if batch > local_batch), len(batches) - 1)
    return curve[max(above, 1) - 1 : max(above, 1) + 1]


def phase(curve: Sequence[Point], name: str, local_batch: int) -> float | None:
    known = [point for point in curve if name in point.phases]
    return line(known, [point.phases[name] for point in known], local_batch) if known else None


@dataclass(frozen=True)
class Computed:
    """A rank's step without exchange."""

    step_s: PredictedValue  # all of it, with the update of all parameters
    update_s: float  # of that, the update
    backward_s: float  # of that, the backward pass
    notes: tuple[str, ...] = ()  # what of it was not measured
    without_ddp: bool = False  # DDP would wrap the step, and what that costs is not in it
    without_input: bool = False  # data was on the device; its copies there are not in it
    waits_s: float = 0.0  # of the step, waiting for a loader, which meanwhile goes on during an exchange
    # relative, of one rank's steps; None: not known, or the slowest of the ranks is in the step
    step_sd: float | None = None
    # the processor bounds the step, which launches its kernels; None: not known, since the captured step was
    # not measured
    by_processor: bool | None = None


class ComputeModel:
    """Steps without exchange, from measured cells; of those that exchange, captured ones alone tell
    something. `other_gpu_sd`: of all of it, relative, as another GPU's than the one it is told for."""

    def __init__(self, cells: Sequence[MeasuredCell], other_gpu_sd: float = 0.0) -> None:
        self._other_gpu_sd = other_gpu_sd
        grouped: dict[tuple[Any, ...], dict[int, list[MeasuredCell]]] = defaultdict(lambda: defaultdict(list))
        for cell in cells:
            # Processes on a CPU share its cores and caches: only one alone tells what it computes.
            alone = cell.world_size == 1 or cell.cell.get("device") == "cuda"
            if cell.exchanges_nothing and alone:
                grouped[_key(cell.cell)][int(cell.cell["local_batch"])].append(cell)
        for (key, local_batch), profiled in _profiled(cells).items():
            grouped[key].setdefault(local_batch, profiled)
        self._curves = {key: _curve_of(by_batch) for key, by_batch in grouped.items()}
        floors = {key: self._with_floor(by_batch) for key, by_batch in grouped.items()}
        self._curves = {key: _curve_of(by_batch) for key, by_batch in floors.items()}

    def step(self, cell: Mapping[str, Any], local_batch: int) -> Computed:
        """The cell's step at that local batch; PredictionError where nothing like it was measured."""
        computed = self._measured(cell, local_batch)
        if not self._other_gpu_sd:
            return computed
        step_s = computed.step_s.also("another GPU", self._other_gpu_sd)
        note = f"compute measured on another GPU: {self._other_gpu_sd:.0%} in the interval"
        return replace(computed, step_s=step_s, notes=(*computed.notes, note))

    def _measured(self, cell: Mapping[str, Any], local_batch: int) -> Computed:
        """The same on the GPU that it was measured on."""
        curve = self._curve(cell)
        if curve is None:
            if other := next((one for one in _other_inputs(cell) if self._curve(one)), None):
                return _of_other_input(cell, self._measured(other, local_batch), other)
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
            nearest = curve[0] if local_batch < batches[0] else curve[-1]
            value, notes = _borrowed(nearest, donor[0], local_batch, is_alike=donor[1])
        near, step_sd = around(curve, local_batch), None
        name = f"compute of {cell['model_label']}, {cell['step']}"
        step = PredictedValue.of(value.value, name, value.relative_sd)
        by_processor = False if cell["step"] == "captured" else None
        if captured is not None:
            by_processor = step.value > HOST_BOUND * _along(captured, local_batch)[0].value
        if by_processor:
            alone = max(point.num_sources for point in curve) == 1
            apart = HOST_SD * (math.sqrt(1 + MACHINES_SHARE) if alone else 1.0)
            step = step.times(slowest_of(int(cell["world_size"]), steps_of_exchange(cell)))
        else:
            apart = MACHINE_SD
            step_sd = max((point.step_sd for point in near if point.step_sd is not None), default=None)
        # What launches and machines differed by where it was measured is part of that.
        known_sd = max(point.relative_sd for point in near)
        step = step.also("launches and machines", beyond(apart, known_sd))
        if cell["step"] == "eager" and eager is None:
            step = step.also("eager as overlapped", BORROWED_SD)
            notes = [*notes, "the eager step was not measured: the overlapped one without DDP stands for it"]
        phases = eager or curve
        update_s = min(phase(curve, "update_s", local_batch) or 0.0, 0.9 * step.value)
        if _is_layered(cell) and _key(cell) not in self._curves:
            share = update_s / 2 / step.value
            reach = (1 - share) / (1 - 2 * share)  # from half of it hidden to all; to none is less
            step = step.times(1 - share).also("how much of the update is hidden", sd_that_reaches(reach))
            hidden = f"measured without layers: half of its update of {update_s * 1e3:.3g} ms is hidden"
            notes = [*notes, hidden]
        backward_s = phase(phases, "backward_s", local_batch) or BACKWARD_SHARE * (step.value - update_s)
        without_ddp = cell["step"] == "overlapped" and _key(cell)[-2] and _key(cell) not in self._curves
        backward_s = min(backward_s, step.value - update_s)
        waits_s = phase(phases, "input_s", local_batch) if cell.get("input_placement") == "loader" else None
        known = (step, update_s, backward_s, tuple(notes), without_ddp, False, waits_s or 0.0, step_sd)
        return Computed(*known, by_processor)

    def _donor(self, cell: Mapping[str, Any], curve: Sequence[Point]) -> tuple[list[Point], bool] | None:
        """A curve over more batches, which the cell's own follows beyond what it has of them; and whether it
        is of the same kernels: of the same step, or of another that the host launches too."""
        keys = [(_key(cell, exchanges=False), True)] if cell["step"] == "overlapped" else []
        if _is_layered(cell):
            keys.append((_key({**cell, "bucket_mb": None}), True))
        if len(curve) == 1:
            keys += [(_key(other), True) for other in _other_inputs(cell)]
            keys.append((_key({**cell, "step": "eager"}, exchanges=False), cell["step"] != "captured"))
        curves = [(self._curves.get(key, []), is_alike) for key, is_alike in keys]
        return next(((other, alike) for other, alike in curves if len(other) > max(1, len(curve))), None)

    def _with_floor(self, by_batch: Mapping[int, list[MeasuredCell]]) -> dict[int, list[MeasuredCell]]:
        """What the processor bounds takes as long at any batch: all cells that it bounds tell one time."""
        captured = self._captured_curve(next(iter(by_batch.values()))[0].cell)
        bound = [b for b, cells in by_batch.items() if _is_host_bound(_curve_of({b: cells}), captured, b)]
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
    is_wrapped = cell["step"] == "overlapped" and wrapped
    return (*key_of(with_columns(Shared.CURVE), cell), is_wrapped, _is_layered(cell))


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


def _profiled(cells: Iterable[MeasuredCell]) -> dict[tuple[tuple[Any, ...], int], list[MeasuredCell]]:
    """Captured steps that exchange, as their profiled computation, by their curve and batch."""
    profiled: dict[tuple[tuple[Any, ...], int], list[MeasuredCell]] = defaultdict(list)
    for cell in cells:
        plain = cell.cell["step"] == "captured" and not _is_layered(cell.cell)
        plain &= cell.cell.get("input_placement", "device") == "device"
        plain &= cell.cell.get("augmentation") in (None, "none")
        if cell.exchanges_nothing or not plain or "backward_s" not in cell.phases:
            continue
        seconds = sum(cell.phases.get(name, 0.0) for name in PROFILED)
        key = _key(cell.cell), int(cell.cell["local_batch"])
        profiled[key].append(replace(cell, iteration_s=seconds, relative_sd=PROFILED_SD))
    return profiled


def _other_inputs(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cell with data on the device, with another augmentation, and with both."""
    augmentations = [{"augmentation": name} for name in ("none", "standard")]
    on_device = {"input_placement": "device"}
    others = [on_device, *augmentations, *({**on_device, **other} for other in augmentations)]
    return [{**cell, **other} for other in others]


def _is_host_bound(curve: Sequence[Point], captured: Sequence[Point] | None, local_batch: int) -> bool:
    """Whether the processor bounds the step at that batch, as the captured one tells."""
    at_batch = [_along(of, local_batch)[0].value for of in (curve, captured) if of is not None]
    return len(at_batch) > 1 and at_batch[0] > HOST_BOUND * at_batch[1]


def _curve_of(by_batch: Mapping[int, Sequence[MeasuredCell]]) -> list[Point]:
    return rising([_point(batch, cells) for batch, cells in sorted(by_batch.items())])


def _point(local_batch: int, cells: Sequence[MeasuredCell]) -> Point:
    step_s = geometric_mean(cell.iteration_s for cell in cells)
    spread = stdev(cell.iteration_s for cell in cells) / step_s if len(cells) > 1 else 0.0
    names = {name for cell in cells for name in cell.phases}
    phases = {name: fmean(one.phases[name] for one in cells if name in one.phases) for name in sorted(names)}
    noise = math.hypot(*(cell.relative_sd for cell in cells)) / len(cells)
    step_sd = max((cell.step_sd for cell in cells if cell.step_sd is not None), default=None)
    sources = len({cell.source for cell in cells})
    return Point(local_batch, step_s, max(spread, noise), phases, sources, step_sd)


def _along(curve: Sequence[Point], local_batch: int) -> tuple[PredictedValue, list[str]]:
    batches = [point.local_batch for point in curve]
    if len(curve) == 1:
        return _between_bounds(curve[0], local_batch)
    value = line(curve, [point.step_s for point in curve], local_batch)
    relative_sd = max(point.relative_sd for point in around(curve, local_batch))
    if local_batch in batches:
        return PredictedValue.of(value, "compute", relative_sd), []
    if batches[0] < local_batch < batches[-1]:
        return PredictedValue.of(value, "compute", math.hypot(relative_sd, INTERPOLATION_SD)), []
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
    point: Point, donor: Sequence[Point], local_batch: int, *, is_alike: bool
) -> tuple[PredictedValue, list[str]]:
    """The donor's change on top of the one batch; `is_alike`: of the same kernels, launched likewise."""
    there, notes = _along(donor, local_batch)
    here, _ = _along(donor, point.local_batch)
    value = max(point.step_s + there.value - here.value, 0.1 * point.step_s)
    # Of the donor its change alone counts: what makes both of its times longer does not.
    change_sd = there.relative_sd * abs(there.value - here.value) / value
    differs = BORROWED_SHARE * abs(point.step_s - here.value) / value
    apart = min(BORROWED_SD, differs) if is_alike else BORROWED_SD
    spread = math.hypot(point.relative_sd, change_sd, apart)
    note = (
        f"compute measured up to local batch {point.local_batch}; its change to {local_batch} is that of "
        "the step without DDP or layers, with another input, or the eager one"
    )
    if is_alike:
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
