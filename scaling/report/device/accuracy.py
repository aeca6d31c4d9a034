"""What `lstm-fused` has of its own: accuracies by seed, each implementation and precision against one.

No other study trains; pairs of seeds, their spread and its bound are neither times nor facts of one cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from scaling.analysis.seed_decisions import bound
from scaling.device_studies.declaration import DEVICES
from scaling.measure.statistics import CONFIDENCE
from scaling.report.device.cells import DeviceResult
from scaling.report.device.drawing import MARKERS, stacked
from scaling.report.device.results import Results
from scaling.report.device.tables import Cells, cells_table, scientific
from scaling.report.figures.base import Drawn
from scaling.report.figures.parts import add_tip
from scaling.report.figures.style import DEVICE_COLOURS, GREY
from scaling.report.formats import MISSING, listed, percent
from scaling.report.tables import Column, Table

Floats = npt.NDArray[np.float64]

REFERENCE = "fused, float32"

NARROWEST = 1.0
"""Of an axis of accuracies, in percentage points: where all seeds agree."""

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
    where: str
    scores: pd.DataFrame
    cells: Mapping[str, DeviceResult]
    left_out: list[DeviceResult]

    def seeds(self, name: str) -> Floats:
        """[num_seeds] accuracies of a combination."""
        scores: Floats = self.scores.loc[[name]].to_numpy(dtype=np.float64)[0]
        return np.asarray(scores[~np.isnan(scores)])

    @property
    def means(self) -> dict[str, float]:
        return {str(name): float(mean) for name, mean in self.scores.mean(axis=1).items()}

    @property
    def seed_sd(self) -> float | None:
        """The seeds' spread: the root of the mean variance over all combinations; None with one seed."""
        variance = float(self.scores.var(axis=1).mean())
        return None if math.isnan(variance) else math.sqrt(variance)

    @property
    def noise(self) -> float | None:
        """What two means over the seeds differ by, had each its own seeds; a held-out sample at least."""
        sd = self.seed_sd
        if sd is None:
            return None
        samples = [float(count) for cell in self.cells.values() if (count := cell.fact("test_samples"))]
        counts = self.scores.count(axis=1)
        fewest, degrees, others = int(counts.min()), int((counts - 1).sum()), max(1, len(counts) - 1)
        limit = bound(sd * math.sqrt(2 / fewest), degrees, (1 - CONFIDENCE) / 2 / others)
        return max(limit, *(1 / count for count in samples), 0.0)

    @property
    def differences(self) -> dict[str, float]:
        """Combination -> mean, over the seeds that both have, of its accuracy less the reference's.

        Empty without the reference, which is not among them.
        """
        if REFERENCE not in self.cells:
            return {}
        less = self.scores.sub(self.scores.loc[REFERENCE]).drop(REFERENCE).mean(axis=1).dropna()
        return {str(name): float(difference) for name, difference in less.items()}

    def difference(self, name: str) -> float | None:
        return 0.0 if name == REFERENCE else self.differences.get(name)

    @property
    def beyond(self) -> list[str]:
        noise = self.noise
        return [name for name, less in self.differences.items() if noise is not None and abs(less) > noise]

    def score_text(self, name: str) -> str:
        seeds = self.seeds(name)
        mean = percent(float(seeds.mean()), 2)
        return mean if len(seeds) < 2 else f"{mean} ± {100 * float(seeds.std(ddof=1)):.2f}"


def comparisons(results: Results) -> list[AccuracyComparison]:
    compared = []
    for (task, device), cells in results.grouped(results.cells, "task", "device").items():
        ordered = [
            cell for same in results.grouped(cells, "precision", "implementation").values() for cell in same
        ]
        scored = {name_of(cell): cell for cell in ordered if cell.facts("accuracy_by_seed")}
        rows = {name: cell.facts("accuracy_by_seed")[0] for name, cell in scored.items()}
        scores = pd.DataFrame({name: pd.Series(row["y"], row["x"]) for name, row in rows.items()}).T
        left_out = [cell for cell in cells if cell.fact("accuracy_left_out") is not None]
        if scored:
            where = f"{task} on the {ON[device]}"
            compared.append(AccuracyComparison(where, scores, scored, left_out))
    return compared


ON = {device.where["device"]: device.name for device in DEVICES}


def name_of(cell: DeviceResult) -> str:
    return f"{cell.point['implementation']}, {cell.point['precision']}"


def tables(results: Results) -> Iterator[Table]:
    compared = comparisons(results)
    of = {cell.cell_id: (one, name) for one in compared for name, cell in one.cells.items()}

    def difference(cells: Cells) -> str:
        one, name = of[cells[0].cell_id]
        value = one.difference(name)
        return MISSING if value is None else f"{100 * value:+.2f}"

    def score(cells: Cells) -> str:
        one, name = of[cells[0].cell_id]
        return one.score_text(name)

    columns: list[Column[Cells]] = [
        Column("task", lambda cells: of[cells[0].cell_id][0].where),
        Column("precision", lambda cells: str(cells[0].point["precision"])),
        Column("implementation", lambda cells: str(cells[0].point["implementation"])),
        Column("accuracy", score),
        Column("difference, points", difference),
        Column("logits", lambda cells: scientific(cells[0].fact("logit_difference"))),
    ]
    below = [
        f"No accuracy of {one.where}, {name_of(cell)}: {cell.fact('accuracy_left_out')}."
        for one in compared
        for cell in one.left_out
    ]
    rows = [[cell] for one in compared for cell in one.cells.values()]
    title = f"accuracy on held-out samples after {results.parameters['steps']} steps"
    if rows:
        yield cells_table(results, title, columns, rows, below, STATISTIC)


def figures(results: Results) -> Iterator[Drawn]:
    compared = comparisons(results)
    if not compared:
        return
    steps, width, batch = (results.parameters[name] for name in ("steps", "accuracy_width", "accuracy_batch"))
    title = f"{results.experiment}: accuracy after {steps} steps, width {width}, batch {batch}"
    figure, panels = stacked(title, {one.where: len(one.cells) for one in compared}, 0.2, 1.2)
    for axes, one in zip(panels, compared, strict=True):
        _draw(axes, one)
    panels[-1].set_xlabel("accuracy on held-out samples, %")
    yield Drawn(f"device-{results.slug}-accuracy", title, CAPTION, figure)


def _draw(axes: Axes, compared: AccuracyComparison) -> None:
    means, noise = compared.means, compared.noise
    if REFERENCE in means and noise is not None:
        middle = means[REFERENCE]
        axes.axvspan(100 * (middle - noise), 100 * (middle + noise), color="#e6e6e6", linewidth=0)
        axes.axvline(100 * middle, color=GREY, linewidth=0.8)
    implementations = [*dict.fromkeys(cell.point["implementation"] for cell in compared.cells.values())]
    for place, (name, cell) in enumerate(compared.cells.items()):
        index = implementations.index(cell.point["implementation"])
        look: dict[str, Any] = {"color": DEVICE_COLOURS[index], "marker": MARKERS[index]}
        seeds, mean = 100 * compared.seeds(name), 100 * means[name]
        axes.plot(seeds, [place] * len(seeds), **look, markersize=3, linestyle="", markerfacecolor="none")
        axes.plot([mean], [place], **look, markersize=6)
        add_tip(axes, mean, place, f"{name}: {mean:.2f}%")
    axes.set_yticks(range(len(compared.cells)), list(compared.cells))
    axes.set_ylim(len(compared.cells) - 0.5, -0.5)
    low, high = axes.get_xlim()
    missing = max(0.0, NARROWEST - (high - low)) / 2
    axes.set_xlim(low - missing, high + missing)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def answer(results: Results) -> Iterator[str]:
    if compared := comparisons(results):
        yield f"After {results.parameters['steps']} steps: {' '.join(map(_answer, compared))}"


def short(results: Results) -> str:
    compared = comparisons(results)
    is_known = [one.noise is not None and len(one.cells) > 1 and REFERENCE in one.cells for one in compared]
    if not compared or not all(is_known):
        return ""
    return "Yes, in part." if any(one.beyond for one in compared) else "Not beyond chance."


def _answer(compared: AccuracyComparison) -> str:
    """`mnist-rows on the GPU: no change beyond chance; ...`."""
    where, noise = compared.where, compared.noise
    if REFERENCE not in compared.cells:
        return (
            f"{where}: unknown, as the fused implementation in float32 has no accuracy{_spread(compared)}"
            f"{_missing(compared)}."
        )
    if not compared.differences:
        return f"{where}: unknown, as nothing else was trained{_missing(compared)}."
    name, most = max(compared.differences.items(), key=lambda pair: abs(pair[1]))
    points = f"{100 * most:+.2f}" if abs(most) >= 0.00005 or most == 0 else "less than 0.01"
    largest = f"the largest difference is {points} points ({name})" if most else "all reach the same number"
    if noise is None:
        return f"{where}: with one seed it cannot be told from chance; {largest}."
    beyond, num_seeds = compared.beyond, len(compared.seeds(REFERENCE))
    verdict = f"yes, for {listed(beyond)}" if beyond else "no change beyond chance"
    unseen = "" if beyond else ", so that a smaller change would not be seen"
    return (
        f"{where}: {verdict}; fused in float32 reaches {compared.score_text(REFERENCE)} over {num_seeds} "
        f"seeds, {largest}; two means of that many seeds differ by up to {100 * noise:.2f} points by chance"
        f"{unseen}{_missing(compared)}."
    )


def _spread(compared: AccuracyComparison) -> str:
    means = sorted(compared.means.values())
    if len(means) < 2:
        return ""
    return (
        f"; the {len(means)} others that were trained reach {percent(means[0], 2)} to {percent(means[-1], 2)}"
    )


def _missing(compared: AccuracyComparison) -> str:
    if not compared.left_out:
        return ""
    return f" (not trained, as it would take too long: {'; '.join(map(name_of, compared.left_out))})"
