"""The least that a step is uncertain by on a machine, or on more ranks, that nothing was measured on.

What one launch scatters by says nothing of another machine. These floors are deviations between machines and
between world sizes, relative to the whole step; they hold in place of a smaller deviation, not on top of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from scaling.collectives.nccl import NVLINKS
from scaling.prediction.estimate import PredictedValue, beyond
from topologies.model import Topology

HOST_STEP_SD = 0.12
"""Between the steps of one launch of one rank, of steps bound by the processor: 11 to 15% of ResNet-56 on one
H200, eager, at local batches of 16 to 64 (compute-curves-h200). Of several ranks a step takes the slowest."""

MACHINE_SD = 0.01  # between launches and machines, of other steps: FCN-R 0.3%, GPT-2 small 0.8%
WAIT_SD = 0.5  # of such a wait, relative: tails are long, or ranks slow down together. Assumed


def largest_of(number: int) -> float:
    """The mean of the largest of so many normal values, in deviations (Blom 1958)."""
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25))


def slowest_of(num_ranks: int, steps: int = 1) -> float:
    """What a step bound by the processor takes on the slowest of ranks that meet after so many `steps`, over
    one rank's median."""
    return 1 + HOST_STEP_SD * largest_of(num_ranks) / math.sqrt(steps)


def waiting_ratio(
    step_sd: float | None, now: Sequence[int], measured: Sequence[int], steps: int = 1
) -> float:
    """Of a step, its wait for the slowest rank and node beyond what was measured with fewer. `step_sd`:
    relative, of one rank's steps; `now`, `measured`: ranks of each node; `steps`: after which they meet."""
    of_steps = (step_sd or 0.0) / math.sqrt(steps) * (largest_of(sum(now)) - largest_of(sum(measured)))
    of_nodes = MACHINE_SD * (largest_of(len(now)) - largest_of(len(measured)))
    return math.hypot(max(0.0, of_steps), max(0.0, of_nodes))


LAUNCHED_SD = 0.23
"""Between two machines of a type, of steps that the processor launches. Measured: root mean square of nine
pairs of DDP loops on 4 H200 (benchmarks/results/against-ddp-loop-4xh200): 40% for ResNet-56, 0.6% at most for
the FCNs."""

CAPTURED_SD = 0.03
"""The same of captured steps: what folders of steps that the GPU bounds differ by, at most (2.8%, FCN-R on 4
H200, root mean square)."""

DOUBLING_SD = 0.11
"""For each doubling of the ranks beyond those measured. Measured: cells of 4 GPUs predicted from 1 are 15%
off (root mean square, two doublings; benchmarks/results/prediction-quality/after)."""

HOST_DOUBLING_SD = 0.13  # the same without access between GPUs, in the host's shared memory: 18%


STARTED_SD, STARTED_BY_HOST_SD = 0.15, 0.35
"""On another host, of a step that the processor bounds, if its strategy was not measured on several ranks:
the processor starts its kernels and messages too. Measured: what strategies add to the steps of ResNet-56 and
AlexNet-R, over what they were predicted to (paper-2xh200 from one GPU): 14% over 12 cells of a library's
all-reduce, 37% over 16 through the host or with codecs."""

HOOKED_SD = 0.25
"""Of an overlapped step whose strategy is another than DDP's all-reduce and was not measured in one: on
another host, and where it shards the step. Measured: 27% over nine cells (sharded-2xh100,
headline-bf16-2xh100)."""

LINK_SD = 0.30  # of an exchange over a kind of link that no exchange was measured on, at least


@dataclass(frozen=True)
class Unseen:
    """What was measured, as far as it bounds what a prediction may claim."""

    # no measured machine has as many of the predicted one's GPUs a node. Of another GPU the computation has a
    # deviation of its own, which is larger (`scaling.prediction.sources`)
    other_machine: bool = False
    largest_world_size: int | None = None  # that was measured; None where nothing was
    # kinds of links that exchanges were measured on (`links_of`); none: nothing was
    links: frozenset[str] = frozenset()
    # no measured machine has the predicted one's processors and host memory. Two machines whose files have
    # the same ones are taken for one
    other_host: bool = False

    def of_exchange(self, priced: PredictedValue, links: frozenset[str]) -> PredictedValue:
        """An exchange over links of these kinds, with at least the deviation of one that was not measured."""
        if not self.links or links <= self.links:
            return priced
        return priced.also("a link that was not measured", beyond(LINK_SD, priced.relative_sd))

    def of_strategy(self, *, started: bool | None, by_host: bool, hooks: bool, shards: bool) -> float:
        """The least deviation of a step whose strategy was not measured on several ranks, relative.
        `started`: the processor bounds it (None: not known, taken so); `by_host`: the processor sums, copies
        or codes for it; `hooks`: an overlapped step, not by DDP's all-reduce; `shards`: of these, each rank
        updates a share."""
        started_sd = STARTED_BY_HOST_SD if by_host else STARTED_SD
        hooked_sd = HOOKED_SD if shards or (hooks and self.other_host) else 0.0
        return max(started_sd if started is not False and self.other_host else 0.0, hooked_sd)

    def widened(
        self, step: PredictedValue, world_size: int, *, captured: bool, through_host: bool
    ) -> tuple[PredictedValue, str | None]:
        """The step with at least these deviations, and what to say of it. One doubling on the measured
        machine is left to the model's own deviations."""
        if self.largest_world_size is None:
            return step, None
        doublings = max(0.0, math.log2(world_size / self.largest_world_size))
        counted = doublings if self.other_machine else max(0.0, doublings - 1)
        machine_sd = (CAPTURED_SD if captured else LAUNCHED_SD) if self.other_machine else 0.0
        doubling_sd = (HOST_DOUBLING_SD if through_host else DOUBLING_SD) * math.sqrt(counted)
        least_sd = math.hypot(machine_sd, doubling_sd)
        if least_sd <= step.relative_sd:
            return step, None
        reasons = ["another machine than was measured"] * self.other_machine
        reasons += [f"{world_size} ranks, {self.largest_world_size} measured"] * (counted > 0)
        widened = step.also("unseen machines and world sizes", beyond(least_sd, step.relative_sd))
        return widened, f"{', '.join(reasons)}: at least {least_sd:.0%} in the interval"


def links_of(topology: Topology, world_size: int, *, host_only: bool) -> frozenset[str]:
    """The kinds of links that so many GPUs exchange over: inside a node, and between nodes."""
    gpus = [gpu.id for gpu in topology.machine.of_kind("gpu")]
    if not gpus or world_size < 2:
        return frozenset()
    kinds = {link.kind for link in topology.machine.links if {link.first, link.second} & set(gpus)}
    inside = "host memory" if host_only else next((kind for kind in NVLINKS if kind in kinds), "pcie")
    across = topology.network.kind if topology.network and len(topology.on_nodes(world_size)) > 1 else None
    return frozenset({*([inside] if len(gpus) > 1 else []), *([across] if across else [])})
