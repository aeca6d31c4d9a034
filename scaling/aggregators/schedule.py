"""Any collective as an aggregator: by its name, or from a file of `scaling synthesize`.

`Scheduled` is the base of all that run one of our schedules between ranks, in place on the flat gradient.
Steps, messages and bytes are the schedule's (`scaling.collectives`). The sums of a step are part of its phase
`communicate`: they cannot start before the message is there, and the next message cannot leave before they
end. Where the optimizer step is taken by the root or by owners, the schedule is cut where the sums are
complete (`scaling.collectives.composition`), and its second half carries parameters.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import torch
from torch import Tensor

from scaling.aggregators.base import Aggregator, PhaseMarker, unmarked
from scaling.aggregators.prediction import stepped_by_owners
from scaling.aggregators.state import AggregatorState
from scaling.bucket import BucketLayout, Span, joined
from scaling.collectives import plan
from scaling.collectives.composition import split_at_reduction
from scaling.collectives.exchange import RankExchange, Transport
from scaling.collectives.execute_peer import sent_sizes
from scaling.collectives.listing import schedule
from scaling.collectives.owners import sharded_owners
from scaling.collectives.schedule import Schedule
from scaling.collectives.schedule_file import is_file, read_schedule
from scaling.errors import ScheduleError
from scaling.process_group import Group


@dataclass
class ScheduledState(AggregatorState):
    reduction: RankExchange  # the whole schedule where every replica takes the step
    distribution: RankExchange | None
    spans: list[Span]  # elements whose sum ends here

    @property
    def gradient_buffer(self) -> Tensor | None:
        return self.reduction.buffer

    @property
    def parameter_buffer(self) -> Tensor | None:
        return self.distribution.buffer if self.distribution else None

    @property
    def notes(self) -> list[str]:
        return [self.reduction.note] if self.group.world_size > 1 else []


@dataclass(frozen=True)
class Scheduled(Aggregator[ScheduledState]):
    """Base of aggregators that are one schedule between ranks. `transport`: "sends" by the communication
    library; "peer_memory", the other GPUs' memory read and written; "one_kernel", the same in one launch, of
    `stripes`, and of `recursive_doubling` with two ranks; "host_memory", one launch through pinned memory
    that the ranks of one host share, of `stripes`; or "auto", peer memory where GPUs have access to each
    other and the study allows it. `captured`: the exchange is one CUDA graph; None: on CUDA."""

    modifies_input = True
    overlaps = True
    graph_capturable = True

    transport: Transport = "auto"
    captured: bool | None = None

    @abstractmethod
    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        """The collective for that many ranks and those tensors."""

    @final
    def start(
        self, layout: BucketLayout, group: Group, dtype: torch.dtype, device: torch.device
    ) -> ScheduledState:
        n = layout.num_elements

        def bound(part: Schedule) -> RankExchange:
            return RankExchange(
                part, group, n, dtype, device, transport=self.transport, captured=self.captured
            )

        schedule = self.schedule(group.world_size, layout)
        if self.update_site == "replica":
            return ScheduledState(group, layout, bound(schedule), None, [(0, n)] if n else [])
        reduction, distribution, owners = split_at_reduction(schedule)
        return ScheduledState(
            group, layout, bound(reduction), bound(distribution), _spans(schedule, owners, group.rank, n)
        )

    @final
    def aggregate(
        self, state: ScheduledState, gradient: Tensor, phase: PhaseMarker = unmarked
    ) -> Tensor | None:
        """Runs the reduction, then divides by the world size what ends here; None where nothing does."""
        if state.group.world_size > 1:
            with phase("communicate"):
                gradient = state.reduction.run(gradient)
            with phase("reduce"):
                for start, stop in state.spans:
                    gradient[start:stop].div_(state.group.world_size)
        return gradient if state.spans or state.distribution is None else None

    @final
    def owned(self, state: ScheduledState) -> list[Span]:
        return state.spans

    @final
    def distribute(self, state: ScheduledState, parameters: Tensor, phase: PhaseMarker = unmarked) -> None:
        assert state.distribution is not None, "only where owners take the step"
        if state.group.world_size > 1:
            with phase("communicate"):
                result = state.distribution.run(parameters)
                if result.data_ptr() != parameters.data_ptr():
                    parameters.copy_(result)

    @final
    def stages(self, layout: BucketLayout, world_size: int) -> list[plan.Stage]:
        n, schedule = layout.num_elements, self.schedule(world_size, layout)
        if self.update_site == "replica":
            return [plan.Exchange(schedule, n), plan.Update("replica", n)]
        return stepped_by_owners(schedule, n, world_size)

    @final
    def wire_bytes(self, layout: BucketLayout, world_size: int, rank: int, itemsize: int) -> int:
        schedule = self.schedule(world_size, layout)
        return itemsize * sum(sent_sizes(schedule, schedule.bounds(layout.num_elements), rank))


def _spans(schedule: Schedule, owners: tuple[int, ...], rank: int, num_elements: int) -> list[Span]:
    """The element ranges of the rank's chunks; neighbours are one range."""
    chunks = zip(owners, pairwise(schedule.bounds(num_elements)), strict=True)
    return joined(span for owner, span in chunks if owner == rank)


@final
@dataclass(frozen=True)
class AnySchedule(Scheduled):
    """A collective that the study names: one that `scaling verify` knows, or a file of `scaling synthesize`.

    `collective`: its name, or FILE.yaml; "stripes" sends every pair of ranks a stripe directly, in two steps.
    `sha256`: of the file; filled in when a study is read. A file that has changed since is refused."""

    name = "schedule"

    collective: str = "stripes"
    sha256: str = ""

    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in super().parameters().items() if value or name != "sha256"}

    def label(self) -> str:
        label = super().label().replace(f", sha256={self.sha256}", "")
        name, _, others = label.removesuffix(")").partition("(")
        if self.collective == type(self).collective:
            others = ", ".join(filter(None, (f"collective={self.collective}", others)))
        return f"{name}({others})"

    def __post_init__(self) -> None:
        if is_file(self.collective):
            _, sha256 = read_schedule(self.collective)
            if self.sha256 not in ("", sha256):
                raise ScheduleError(f"{self.collective}: has changed since the study was read")
            object.__setattr__(self, "sha256", sha256)
        elif self.sha256:
            raise ScheduleError(f"collective {self.collective!r} is no file, and has no sha256")
        elif schedule(self.collective, 2).num_hosts:
            raise ScheduleError(
                f"collective {self.collective!r} sums in host memory: use host_serial or host_parallel"
            )

    def schedule(self, world_size: int, layout: BucketLayout) -> Schedule:
        """The collective with its default parameters; sharded owners are those of the bucket's tensors."""
        if self.collective == "sharded_owners":
            return sharded_owners(world_size, [math.prod(shape) for shape in layout.shapes])
        return schedule(self.collective, world_size)
