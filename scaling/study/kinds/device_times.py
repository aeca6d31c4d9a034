"""How long cells of `kind: device` take, for `scaling plan`: fitted to studies that were measured.

A cell measures for its `seconds`, once for each thing that it times, and warms up before. What comes on top
is its experiment's: making the network, compiling, trying algorithms, and on a CPU above all points that are
so slow that their fewest samples take longer than `seconds`, up to the limit. So the rule has seconds of its
own, core-seconds that the machine's cores share, and a share of the limit. The first cell of a launch sets
the libraries up.

Source: the launches of results/reference/device-* (one H200 with 16 cores, 4 cores without a GPU), all with
smaller `seconds` than the shipped studies, and the shipped studies on 2 slower cores.
"""

from __future__ import annotations

from dataclasses import dataclass

START_UP_S = 8.0
"""Of a launch, until its first cell begins."""

FIRST_CELL_S = 5.0
"""What the first cell of a launch takes longer."""

WARM_UP_RATIO = 1.1
"""Of the seconds of measuring, with the warm-up."""


@dataclass(frozen=True)
class CellTime:
    """What a cell takes on the average.

    Attributes:
        num_timed: things that it times, each for its `seconds`.
        own_s: seconds on top, whatever the study says.
        core_s: seconds on top of one core, which the machine's cores share.
        limit_ratio: of the study's limit, on top.
    """

    num_timed: float = 1.0
    own_s: float = 0.0
    core_s: float = 0.0
    limit_ratio: float = 0.0


OF_OTHERS = {"cuda": CellTime(own_s=1.0), "cpu": CellTime(own_s=1.0, core_s=6.0)}
"""Experiments that are not among the built-in ones."""

CELL_TIMES = {
    ("small-networks", "cuda"): CellTime(own_s=0.2),
    ("small-networks", "cpu"): CellTime(own_s=0.4, core_s=0.9, limit_ratio=0.04),
    ("cpu-threads", "cpu"): CellTime(own_s=1.0, core_s=12.0),
    ("batch-sizes", "cuda"): CellTime(own_s=0.6),
    ("batch-sizes", "cpu"): CellTime(own_s=0.9, core_s=6.5, limit_ratio=0.15),
    ("lstm-fused", "cuda"): CellTime(num_timed=3.0, own_s=1.2),
    ("lstm-fused", "cpu"): CellTime(num_timed=3.0, own_s=1.2, core_s=8.0),
    ("surface-regression", "cuda"): CellTime(own_s=1.2),
    ("surface-regression", "cpu"): CellTime(own_s=4.5, core_s=8.0),
    ("kernel-choices", "cuda"): CellTime(num_timed=1.7, own_s=1.9),
    ("kernel-choices", "cpu"): CellTime(own_s=0.4, core_s=1.2),
}


def cell_seconds(experiment: str, device: str, seconds: float, limit_s: float, num_cores: int) -> float:
    """Of one cell.

    Args:
        experiment: its name.
        device: "cpu" or "cuda".
        seconds: for each measurement, as the study says.
        limit_s: above which the study leaves a point out.
        num_cores: of the machine.
    """
    time = CELL_TIMES.get((experiment, device), OF_OTHERS[device])
    slow_s = min(time.core_s / num_cores, limit_s) + time.limit_ratio * limit_s
    return time.num_timed * WARM_UP_RATIO * seconds + time.own_s + slow_s
