"""What an exchange takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """Seconds, by what they depend on.

    Attributes:
        latency_s: what does not depend on the bytes.
        flow_s: what does.
        busiest: the resource that bounds the bytes; None where nothing moves.
        choice: a library's algorithm and protocol, for people; "" of a schedule.
        note: what was assumed of the library; None if nothing.
        sums_s: sums in host memory after the copies.
    """

    latency_s: float = 0.0
    flow_s: float = 0.0
    busiest: str | None = None
    choice: str = ""
    note: str | None = None
    sums_s: float = 0.0

    @property
    def seconds(self) -> float:
        """All."""
        return self.latency_s + self.flow_s + self.sums_s
