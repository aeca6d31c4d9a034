"""Any collective as an aggregator: by its name, or from a file of `scaling synthesize`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from scaling.aggregators.scheduled import Scheduled
from scaling.bucket import BucketLayout
from scaling.collectives.listing import schedule
from scaling.collectives.schedule import Schedule
from scaling.collectives.schedule_file import is_file, read_schedule
from scaling.collectives.sharded_owners import sharded_owners
from scaling.errors import ScheduleError


@final
@dataclass(frozen=True)
class AnySchedule(Scheduled):
    """A collective that the study names: one that `scaling verify` knows, or a file of `scaling synthesize`.

    Attributes:
        collective: its name, or FILE.yaml; "stripes" sends every pair of ranks a stripe directly, in two
            steps.
        sha256: of the file; filled in when a study is read. A file that has changed since is refused.
    """

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
