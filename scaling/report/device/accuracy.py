"""What `lstm-fused` has of its own: accuracies by seed, each implementation and precision against one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes

from scaling.analysis.seed_decisions import Combination, bound
from scaling.measure.statistics import CONFIDENCE
from scaling.report.device.drawing import MARKERS, stacked
from scaling.report.device.results import ON, DeviceResult, DeviceResults
from scaling.report.device.tables import scientific
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import DEVICE_COLOURS, GREY, add_tip
from scaling.report.formats import MISSING, listed, milliseconds, number, percent
from scaling.report.tables import Table

REFERENCE, SCORES = "fused, float32", "accuracy_by_seed"
BAND = "#dddddd"  # of the grid: the page has another for dark screens
MARKER_ROOM = 0.02  # of the axis, beyond 100%
NARROWEST = 1.0  # of an axis of accuracies, in percentage points: where all seeds agree
CAPTION = (
    "Accuracy on held-out samples after training (columns accuracy, accuracy_sd): a small marker for each "
    "seed, a large one for their mean. The band is that of the fused implementation in float32: what another "
    "mean differs from its own by chance, by the spread over seeds (95%, for all comparisons of a panel "
    "together); without that implementation's accuracy there is none."
)
STATISTIC = (
    "Mean over seeds with its standard deviation; difference: mean over the seeds of what it is above that "
    "of the fused implementation in float32 on the same device. Logits: largest difference from float64, "
    "untrained."
)


@dataclass(frozen=True)
class AccuracyComparison:
    """The trainings of a task on a device, by implementation and precision: `fused, float32`."""

    where: str
    scores: Mapping[str, Combination]
    cells: Mapping[str, DeviceResult]
    left_out: list[DeviceResult]

    @property
    def seed_sd(self) -> float | None:
        """The seeds' spread: the root of the mean variance over all combinations; None with one seed."""
        variances = [one.squares / one.degrees for one in self.scores.values() if one.degrees]
        return math.sqrt(fmean(variances)) if variances else None

    @property
    def noise(self) -> float | None:
        """What two means over the seeds differ by, had each its own seeds; a held-out sample at least."""
        sd, degrees = self.seed_sd, [one.degrees for one in self.scores.values()]
        if sd is None:
            return None
        level = (1 - CONFIDENCE) / 2 / max(1, len(degrees) - 1)
        limit = bound(sd * math.sqrt(2 / (min(degrees) + 1)), sum(degrees), level)
        return max(limit, *(1 / (cell.fact("test_samples") or math.inf) for cell in self.cells.values()))

    @property
    def differences(self) -> dict[str, float]:
        """Combination -> mean, over the seeds that both have, of its accuracy less the reference's."""
        others = {name: one.scores for name, one in self.scores.items() if name != REFERENCE}
        reference = self.scores[REFERENCE].scores if REFERENCE in self.scores else {}
        less = {
            name: [score - reference[seed] for seed, score in scores.items() if seed in reference]
            for name, scores in others.items()
        }
        return {name: fmean(of_seeds) for name, of_seeds in less.items() if of_seeds}

    def difference(self, name: str) -> float | None:
        return 0.0 if name == REFERENCE else self.differences.get(name)

    @property
    def beyond(self) -> list[str]:
        noise = self.noise
        return [name for name, less in self.differences.items() if noise is not None and abs(less) > noise]

    def score_text(self, name: str) -> str:
        one = self.scores[name]
        spread = f" ± {100 * math.sqrt(one.squares / one.degrees):.2f}" if one.degrees else ""
        return percent(one.mean, 2) + spread

    def texts(self, name: str) -> list[str]:
        less = self.difference(name)
        return [self.score_text(name), MISSING if less is None else f"{100 * less:+.2f}"]


def comparisons(results: DeviceResults) -> list[AccuracyComparison]:
    compared = []
    for cells in results.grouped(results.cells, "task", "device").values():
        ordered = chain(*results.grouped(cells, "precision", "implementation").values())
        scored = {name_of(cell): cell for cell in ordered if cell.fact(SCORES, "y")}
        scores = {}
        for name, cell in scored.items():
            by_seed = zip(cell.fact(SCORES, "x"), cell.fact(SCORES, "y"), strict=True)
            scores[name] = Combination(dict(by_seed), False, 1)
        left_out = [cell for cell in cells if cell.fact("accuracy_left_out") is not None]
        if scored:
            compared.append(AccuracyComparison(where(cells[0]), scores, scored, left_out))
    return compared


def where(cell: DeviceResult) -> str:
    return f"{cell.point['task']} on the {ON[cell.device]}"


def name_of(cell: DeviceResult) -> str:
    return f"{cell.point['implementation']}, {cell.point['precision']}"


def tables(results: DeviceResults) -> Iterator[Table]:
    compared = comparisons(results)
    rows = [
        [one.where, *reversed(name.split(", ")), *one.texts(name), scientific(cell.fact("logit_difference"))]
        for one in compared
        for name, cell in one.cells.items()
    ]
    below = [
        f"No accuracy of {one.where}, {name_of(cell)}: {cell.fact('accuracy_left_out')}."
        for one in compared
        for cell in one.left_out
    ]
    title = f"{results.experiment}: accuracy on held-out samples after {results.parameters['steps']} steps"
    headings = ["task", "precision", "implementation", "accuracy", "difference, points", "logits"]
    if rows:
        ids = [[cell.cell_id] for one in compared for cell in one.cells.values()]
        yield Table(title, STATISTIC, headings, rows, below, cells=ids)


def _timed(results: DeviceResults) -> list[tuple[DeviceResult, float | None]]:
    """In float32 at the middle batch, by device, with times over the fused one's."""
    every = [cell for cell in results.where({"precision": "float32"}) if cell.estimate() is not None]
    batches = sorted({cell.point["batch"] for cell in every if not cell.fact(SCORES, "y")})
    timed = results.where({"batch": batches[len(batches) // 2 : len(batches) // 2 + 1]}, every)
    fused = {cell.device: cell.median() for cell in timed if name_of(cell) == REFERENCE}
    ordered = sorted(timed, key=lambda cell: cell.device)
    return [(cell, cell.median() / fused[cell.device] if cell.device in fused else None) for cell in ordered]


def answer_table(results: DeviceResults) -> Table | None:
    texts = {(one.where, name): one.texts(name) for one in comparisons(results) for name in one.cells}
    timed = _timed(results)
    rows = []
    for cell, over_fused in timed:
        times = milliseconds(cell.median()), number(over_fused, 2)
        accuracies = texts.get((where(cell), name_of(cell)), [MISSING, MISSING])
        rows.append([ON[cell.device], cell.point["implementation"], *times, *accuracies])
    if not timed:
        return None
    first, steps = timed[0][0].point, results.parameters["steps"]
    what = f"{first['task']}, batch {first['batch']:,}, width {first['width']}"
    trained = f"after {steps} steps of width {results.parameters['accuracy_width']}"
    headings = ["on", "implementation", "ms a step", "x fused", "accuracy", "points"]
    statistic = f"A step of {what}; accuracy: {trained}."
    bounds = [place for place, row in enumerate(rows) if row[1] == "fused"]
    return Table("Speed and accuracy in float32", statistic, headings, rows, bounds=bounds)


def figures(results: DeviceResults) -> Iterator[Drawn]:
    if not (compared := comparisons(results)):
        return
    steps, width, batch = (results.parameters[name] for name in ("steps", "accuracy_width", "accuracy_batch"))
    title = f"{results.experiment}: accuracy after {steps} steps, width {width}, batch {batch}"
    figure, panels = stacked(title, {one.where: len(one.cells) for one in compared}, 0.2, 1.2)
    for axes, one in zip(panels, compared, strict=True):
        _draw(axes, one)
    panels[-1].set_xlabel("accuracy on held-out samples, %")
    yield Drawn(f"device-{results.slug}-accuracy", title, CAPTION, figure)


def _draw(axes: Axes, compared: AccuracyComparison) -> None:
    noise = compared.noise
    if REFERENCE in compared.cells and noise is not None:
        middle = compared.scores[REFERENCE].mean
        axes.axvspan(100 * (middle - noise), min(100.0, 100 * (middle + noise)), color=BAND, linewidth=0)
        axes.axvline(100 * middle, color=GREY, linewidth=0.8)
    implementations = [*dict.fromkeys(cell.point["implementation"] for cell in compared.cells.values())]
    for place, (name, cell) in enumerate(compared.cells.items()):
        index = implementations.index(cell.point["implementation"])
        look: dict[str, Any] = {"color": DEVICE_COLOURS[index], "marker": MARKERS[index]}
        one = compared.scores[name]
        seeds, mean = [100 * score for score in one.scores.values()], 100 * one.mean
        axes.plot(seeds, [place] * len(seeds), **look, markersize=3, linestyle="", markerfacecolor="none")
        axes.plot([mean], [place], **look, markersize=6)
        add_tip(axes, mean, place, f"{name}: {mean:.2f}%")
    axes.set_yticks(range(len(compared.cells)), list(compared.cells))
    axes.set_ylim(len(compared.cells) - 0.5, -0.5)
    low, high = axes.get_xlim()
    missing = max(0.0, NARROWEST - (high - low)) / 2
    # A marker at 100% is whole; the band ends there, since no accuracy is higher.
    most = 100 + MARKER_ROOM * (high - low + 2 * missing)
    axes.set_xlim(low - missing, min(high + missing, most))


def answer(results: DeviceResults) -> Iterator[str]:
    if compared := comparisons(results):
        yield f"After {results.parameters['steps']} steps: {' '.join(map(_answer, compared))}"


def short(results: DeviceResults) -> str:
    compared = comparisons(results)
    is_known = [one.noise is not None and len(one.cells) > 1 and REFERENCE in one.cells for one in compared]
    if not compared or not all(is_known):
        return ""
    answer = "Yes, in part." if any(one.beyond for one in compared) else "Not beyond chance."
    each = [
        f"{number(over_fused, 2)} times as long on the {ON[cell.device]}"
        for cell, over_fused in _timed(results)
        if cell.point["implementation"] == "elementary" and over_fused
    ]
    once = ", seen in one launch" if results.num_launches == 1 else ""
    return f"{answer} Elementary operations take {listed(each)} as the fused ones{once}." if each else answer


def _answer(compared: AccuracyComparison) -> str:
    where, noise, missing = compared.where, compared.noise, ""
    if compared.left_out:
        missing = f" (not trained, as it would take too long: {'; '.join(map(name_of, compared.left_out))})"
    if REFERENCE not in compared.cells:
        means, others = sorted(one.mean for one in compared.scores.values()), ""
        if len(means) > 1:
            ends = f"{percent(means[0], 2)} to {percent(means[-1], 2)}"
            others = f"; the {len(means)} others that were trained reach {ends}"
        unknown = "unknown, as the fused implementation in float32 has no accuracy"
        return f"{where}: {unknown}{others}{missing}."
    if not compared.differences:
        return f"{where}: unknown, as nothing else was trained{missing}."
    name, most = max(compared.differences.items(), key=lambda pair: abs(pair[1]))
    points = f"{100 * most:+.2f}" if abs(most) >= 0.00005 or most == 0 else "less than 0.01"
    largest = f"the largest difference is {points} points ({name})" if most else "all reach the same number"
    if noise is None:
        return f"{where}: with one seed it cannot be told from chance; {largest}."
    beyond, num_seeds = compared.beyond, len(compared.scores[REFERENCE].scores)
    verdict = f"yes, for {listed(beyond)}" if beyond else "no change beyond chance"
    unseen = "" if beyond else ", so that a smaller change would not be seen"
    return (
        f"{where}: {verdict}; fused in float32 reaches {compared.score_text(REFERENCE)} over {num_seeds} "
        f"seeds, {largest}; two means of that many seeds differ by up to {100 * noise:.2f} points by chance"
        f"{unseen}{missing}."
    )
