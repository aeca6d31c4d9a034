"""What one lossy aggregator does to gradients, as numbers and as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from scaling.conformance.fidelity.gradients import NUM_STEPS, TRAINED_ON, WORLD_SIZE


@dataclass(frozen=True)
class Sheet:
    """What one lossy aggregator does to gradients.

    Attributes:
        first_error_ratio: |first result - mean| / |mean|, in the 2-norm; the mean in float64, with the
            aggregator's own momentum where it has one.
        first_cosine: of the angle between the two; None where the result is zero.
        sum_error_ratio: the same error of the sums over all steps.
        replicas_agree: all ranks' parameters have the same bits after the steps.
        replicas_off_by: the largest difference of a parameter.
        formula_bytes, metered_bytes: of the rank that sends most, in a step over the larger gradient.
        exact_bytes: what `all_reduce` sends.
        encode_s, decode_s: of rank 0.
        host_us_per_bucket: how long both keep the host of rank 0, the gradient being one bucket; a hook that
            is no CUDA graph holds the backward pass back so long.
        gradient_bytes: S, of the larger gradient.
        measured_on: the processor or GPU.
    """

    first_error_ratio: float
    first_cosine: float | None
    sum_error_ratio: float
    replicas_agree: bool
    replicas_off_by: float
    formula_bytes: int | None
    metered_bytes: int
    exact_bytes: int
    encode_s: float
    decode_s: float
    gradient_bytes: int
    measured_on: str
    host_us_per_bucket: float

    @property
    def encode_bytes_per_s(self) -> float | None:
        """Bytes of gradient; None where nothing is encoded."""
        return self.gradient_bytes / self.encode_s if self.encode_s else None

    @property
    def decode_bytes_per_s(self) -> float | None:
        """Likewise."""
        return self.gradient_bytes / self.decode_s if self.decode_s else None

    @property
    def break_even_bytes_per_s(self) -> float:
        """B; 0 where more is sent than by `all_reduce`: it never pays."""
        saved = max(0, self.exact_bytes - self.metered_bytes)
        codec_s = self.encode_s + self.decode_s
        return saved / codec_s if codec_s else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        rates = ("encode_bytes_per_s", "decode_bytes_per_s", "break_even_bytes_per_s")
        setting = {"world_size": WORLD_SIZE, "num_steps": NUM_STEPS, "trained_on": TRAINED_ON}
        formula = "(2(n-1)/n S - W) / (E + D)"
        values = dataclasses.asdict(self)
        return {**setting, **values, **{name: getattr(self, name) for name in rates}, "break_even": formula}

    def lines(self) -> list[str]:
        """For people."""
        cosine = "" if self.first_cosine is None else f", cosine {self.first_cosine:.3f}"
        agreement = "the same bits" if self.replicas_agree else f"off by up to {self.replicas_off_by:.3g}"
        formula = "no formula" if self.formula_bytes is None else f"{self.formula_bytes} by formula"
        ratio = self.exact_bytes / self.metered_bytes if self.metered_bytes else float("inf")
        return [
            f"error      {self.first_error_ratio:.3g} of the float64 mean in the first step{cosine}; "
            f"{self.sum_error_ratio:.3g} over {NUM_STEPS} steps ({TRAINED_ON}, {WORLD_SIZE} ranks)",
            f"replicas   after {NUM_STEPS} steps {agreement} on {WORLD_SIZE} ranks",
            f"bytes      {formula}, {self.metered_bytes} metered, by the rank that sends most; all_reduce "
            f"sends {self.exact_bytes}, {ratio:.3g} times as much",
            f"rates      encode {_rate(self.encode_bytes_per_s)}, decode {_rate(self.decode_bytes_per_s)} "
            f"of a gradient of {self.gradient_bytes / 1e6:.3g} MB on {self.measured_on}; both keep the host "
            f"for {self.host_us_per_bucket:,.0f} us",
            f"break-even {_paying(self.break_even_bytes_per_s)}, by (2(n-1)/n S - W) / (E + D) with n = "
            f"{WORLD_SIZE}, S = {self.gradient_bytes / 1e6:.3g} MB, W = {self.metered_bytes / 1e6:.3g} MB, "
            f"E + D = {(self.encode_s + self.decode_s) * 1e3:.3g} ms; without latency and overlap",
        ]


def _rate(bytes_per_s: float | None) -> str:
    return "nothing" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g} GB/s"


def _paying(bytes_per_s: float) -> str:
    if not bytes_per_s:
        return "never: it sends no less than all_reduce"
    return f"faster than all_reduce on links below {bytes_per_s / 1e9:.3g} GB/s"
