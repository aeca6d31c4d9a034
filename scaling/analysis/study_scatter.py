"""The scatter of a study's cells over launches, from its samples: intervals, and differences of two cells.

Cells of one world size have launches in common: their difference is taken launch by launch, and what a launch
does to all of its cells cancels. Cells of different world sizes share none.

An A/A pair is the same cell, measured twice in the same launches. What its two means differ by, beyond the
scatter over launches, stays however many launches there are: where a cell's memory lies, say. One pair tells
little of it and is a warning; from FEWEST_PAIRS on their component of variance is part of every difference.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.columns import by_key
from scaling.analysis.decisions import Difference, difference, with_variance
from scaling.analysis.findings import Finding
from scaling.analysis.launch_effects import INDEPENDENT, Serial, inflations, serial_correlation
from scaling.analysis.moderated import FEWEST_FOR_MEDIAN, ROUNDING, FloatArray, Scatter, inflated, scatter
from scaling.analysis.samples import CellResult
from scaling.measure.statistics import Estimate, estimate_median

TIMER_S = 5e-7  # the resolution of CUDA events, the coarser one of the clocks
FEWEST_PAIRS = 4  # A/A pairs of a folder that tell their component of variance well enough

SHOWN_LEVEL, UNSHOWN_WEIGHT = 0.1, 1 / 3
"""An F test's level, and the part of that component which counts where it is not shown: in half of the
studies without offsets a few pairs differ by more than launches scatter, which cost half of the power."""

MODERATED = "moderated t interval over launches"  # for people; a single launch has ONE_LAUNCH's


@dataclass(frozen=True)
class CellTimes:
    family: Hashable  # equal for the cells that have their launches in common
    by_launch: Mapping[Hashable, float]  # launch -> its value, positive: seconds, joules


@dataclass(frozen=True)
class _CellPlace:
    family: int
    index: int


@dataclass(frozen=True)
class StudyScatter:
    # of each family the logarithms of the values, [cell, launch], NaN where there is no such launch
    logs: list[FloatArray]
    scatters: list[Scatter]  # of each family
    places: Mapping[Hashable, _CellPlace]  # where each cell is found in these
    # of a cell's mean, by which A/A pairs differ beyond the scatter over launches; 0 where that is not known
    offset_variance: float = 0.0
    offset_degrees: float = 0.0  # of freedom behind it
    pairs: tuple[Difference, ...] = ()  # differences of all A/A pairs, by the scatter over launches alone
    # correlation of its launches with those before, which the variances of the scatters allow for
    serial: Serial = INDEPENDENT
    remarks: tuple[Finding, ...] = ()  # what about the launches a reader must know to believe the intervals

    def num_launches(self, cell: Hashable) -> int:
        """The number of the cell's launches; 0 if it has no time."""
        place = self.places.get(cell)
        return 0 if place is None else int(np.isfinite(self.logs[place.family][place.index]).sum())

    def interval(self, cell: Hashable) -> tuple[float, float] | None:
        """The 95% interval of the cell's time, in its unit; None with one launch, or without a time."""
        place = self.places.get(cell)
        if place is None:
            return None
        total, logs = self.scatters[place.family].total, self.logs[place.family][place.index]
        degrees = float(total.degrees[place.index])
        if degrees <= 0:
            return None
        squared = float(total.values[place.index]) / self.num_launches(cell)
        mean = Difference(float(np.nanmean(logs)), math.sqrt(squared), degrees)
        return self._with_offset(mean, self.offset_variance).interval

    def difference(self, first: Hashable, second: Hashable, log_factor: float = 0.0) -> Difference:
        """Of two cells' times: second over first, times e to the power log_factor."""
        base, other = self.places[first], self.places[second]
        result = self._paired(base, other) if base.family == other.family else self._apart(base, other)
        result = self._with_offset(result, 2 * self.offset_variance)
        return replace(result, log_ratio=result.log_ratio + log_factor)

    def _with_offset(self, result: Difference, variance: float) -> Difference:
        return with_variance(result, variance, self.offset_degrees) if variance > 0 else result

    def _paired(self, base: _CellPlace, other: _CellPlace) -> Difference:
        logs, within = self.logs[base.family], self.scatters[base.family].within
        both = logs[other.index] - logs[base.index]
        count = int(np.isfinite(both).sum())
        if count == 0:
            return self._apart(base, other)
        mean = float(np.nanmean(both))
        degrees = float(min(within.degrees[base.index], within.degrees[other.index]))
        if count < 2 or degrees <= 0:
            return Difference(mean, None, None)
        first, second = (float(within.values[place.index]) for place in (base, other))
        if count > 2:
            # The prior's degrees are of both; each has its own besides, which count if both scatter alike.
            further = (count - 1) * (len(logs) - 1) / len(logs)
            degrees += further * 2 * first * second / (first**2 + second**2)
        return Difference(mean, math.sqrt((first + second) / count), degrees)

    def _apart(self, base: _CellPlace, other: _CellPlace) -> Difference:
        places, totals = (base, other), [self.scatters[place.family].total for place in (base, other)]
        logs = [self.logs[place.family][place.index] for place in places]
        degrees = [float(total.degrees[at.index]) for at, total in zip(places, totals, strict=True)]
        result = difference(
            [float(np.nanmean(own)) for own in logs],
            [float(total.values[at.index]) for at, total in zip(places, totals, strict=True)],
            [int(np.isfinite(own).sum()) for own in logs],
            degrees,
        )
        largest = max(len(self.logs[place.family]) for place in places)
        if result.degrees is None or largest >= FEWEST_FOR_MEDIAN:
            return result
        # Small families share what is known of their variances: it does not count twice.
        return replace(result, degrees=min(result.degrees, max(degrees)))


def study_scatter(
    times: Mapping[Hashable, CellTimes],
    pairs: Sequence[tuple[Hashable, Hashable]] = (),
    *,
    in_order: bool = False,
) -> StudyScatter:
    """The scatter of cells and their A/A pairs; launches `in_order` show whether they are correlated."""
    values = {cell: one.by_launch.values() for cell, one in times.items()}
    known = [cell for cell, own in values.items() if own and all(value > 0 for value in own)]
    families = [*by_key(known, lambda cell: times[cell].family).values()]
    logs = [log_matrix([times[cell] for cell in cells]) for cells in families]
    smallest: list[FloatArray] = [(TIMER_S / np.exp(np.nanmean(own, axis=1))) ** 2 for own in logs]
    places = {
        cell: _CellPlace(number, index)
        for number, same in enumerate(families)
        for index, cell in enumerate(same)
    }
    serial = serial_correlation(logs) if in_order else INDEPENDENT
    scatters = [
        replace(
            one,
            within=inflated(one.within, inflations(serial.within, own)),
            total=inflated(one.total, inflations(serial.total, own)),
        )
        for one, own in zip(scatter(logs, smallest), logs, strict=True)
    ]
    study = StudyScatter(logs, scatters, places, serial=serial)
    differences = tuple(study.difference(*pair) for pair in pairs if pair[0] in places and pair[1] in places)
    variance, degrees = offset_variance(differences)
    return replace(study, offset_variance=variance, offset_degrees=degrees, pairs=differences)


def estimate_within(
    launches: Sequence[Sequence[float]], scatter: StudyScatter | None, cell: Hashable
) -> Estimate:
    """The median of a cell's samples by launch, with the interval of all cells, or else its own."""
    estimate = estimate_median(launches)
    ends = scatter.interval(cell) if scatter else None
    return replace(estimate, low=ends[0], high=ends[1], method=MODERATED) if ends else estimate


def log_matrix(cells: Sequence[CellTimes], launches: Sequence[Hashable] | None = None) -> FloatArray:
    """Logarithms of the values, [cell, launch], of all launches that any has; NaN if a cell lacks one."""
    if launches is None:
        launches = list(dict.fromkeys(name for cell in cells for name in cell.by_launch))
        if all(isinstance(name, int) for name in launches):
            launches = sorted(name for name in launches if isinstance(name, int))
    columns = {launch: index for index, launch in enumerate(launches)}
    matrix = np.full((len(cells), len(columns)), np.nan)
    for row, cell in zip(matrix, cells, strict=True):
        for launch, value in cell.by_launch.items():
            row[columns[launch]] = math.log(value)
    return matrix


def offset_variance(pairs: Sequence[Difference]) -> tuple[float, float]:
    """The variance of a cell's mean from A/A pairs, with its degrees of freedom; (0, 0) with fewer than
    FEWEST_PAIRS, or where they differ by no more than their launches scatter. What is not shown by an F test
    counts in part (UNSHOWN_WEIGHT). k pairs have k degrees; without the scatter over launches less
    (Satterthwaite)."""
    known = [pair for pair in pairs if pair.error is not None]
    if len(known) < FEWEST_PAIRS:
        return 0.0, 0.0
    mean_square, of_launches, p_value = offset_test(known)
    excess = mean_square - of_launches
    if excess <= 0:
        return 0.0, 0.0
    weight = 1.0 if p_value < SHOWN_LEVEL else UNSHOWN_WEIGHT
    return weight * excess / 2, len(known) * (excess / mean_square) ** 2


def offset_test(pairs: Sequence[Difference]) -> tuple[float, float, float]:
    """The mean square of these pairs' differences, what their launches explain, and the F test's p value."""
    from scipy import special

    mean_square = float(np.mean([pair.log_ratio**2 for pair in pairs]))
    of_launches = float(np.mean([(pair.error or 0.0) ** 2 for pair in pairs]))
    degrees = float(np.mean([pair.degrees or 0.0 for pair in pairs]))
    ratio = mean_square / max(of_launches, ROUNDING)
    return mean_square, of_launches, float(special.fdtrc(len(pairs), degrees, ratio))


def cell_times(cells: Sequence[CellResult], *, typical: bool = False) -> dict[Hashable, CellTimes]:
    """Cell id -> seconds by launch of an iteration (`typical`: the median) or a whole training, if any."""
    times: dict[Hashable, CellTimes] = {}
    for cell in cells:
        family = (cell.cell["kind"], cell.cell["device"], cell.cell["world_size"])
        seconds: dict[Hashable, float]
        seconds = {one.repeat: one.typical_s if typical else one.iteration_s for one in cell.launches}
        if not seconds:
            trained = ((one.repeat, float(one.train_s[-1])) for one in cell.trainings)
            seconds = {repeat: value for repeat, value in trained if value > 0}
        if cell.launches or cell.trainings:
            times[cell.cell_id] = CellTimes(family, seconds)
    return times
