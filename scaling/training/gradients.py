"""What happens to gradients between the backward pass and the update: scaled, cast, checked and clipped.

With fp16 the loss is multiplied by a scale, so that small gradients are not rounded to zero. The mean is
searched for infinities on the device: where there is one, the update changes nothing, and the scale is
halved; after GROWTH_INTERVAL steps without one it is doubled. Every rank finds the same.

References: P. Micikevicius et al., "Mixed precision training", arXiv 1710.03740; R. Pascanu, T. Mikolov, Y.
Bengio, arXiv 1211.5063 (clipping); torch/amp/grad_scaler.py; torch/nn/utils/clip_grad.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, unmarked
from scaling.training.compute import AUTOCAST, Compute

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL = 2.0, 0.5, 2000
NORM_EPSILON = 1e-6  # added to the norm, as torch.nn.utils.clip_grad_norm_ does
WIRES = AUTOCAST  # precision on the wire -> dtype of the message; else it is the gradient's own

ClippedGradient = Literal["mean", "local"]


@dataclass(frozen=True)
class GradientSettings:
    wire: torch.dtype | None = None
    clip_norm: float | None = None
    clip_gradient: ClippedGradient = "mean"


AS_THEY_ARE = GradientSettings()


class GradientTreatment:
    """`found_inf`: float32, on the device, 1 where the last mean was not finite; None without a scale."""

    def __init__(self, settings: GradientSettings, compute: Compute, device: torch.device) -> None:
        self._settings, self._device = settings, device
        self.found_inf: Tensor | None = None
        if compute.scales_loss:
            self._scale = torch.full((), INITIAL_SCALE, device=device)
            self._growth = torch.zeros((), dtype=torch.int32, device=device)
            self.found_inf = torch.zeros((), device=device)

    @property
    def waits_for_all(self) -> bool:
        """Whether no parameter may be updated before the whole mean is there."""
        return self.found_inf is not None or self._clips("mean")

    def _clips(self, which: ClippedGradient) -> bool:
        return self._settings.clip_norm is not None and self._settings.clip_gradient == which

    def scaled(self, loss: Tensor) -> Tensor:
        return loss if self.found_inf is None else loss * self._scale

    def before_exchange(self, gradients: Sequence[Tensor], phase: PhaseMarker = unmarked) -> None:
        """Clips this rank's own gradients, in place, where the settings say so."""
        if self._clips("local"):
            with phase("clip"):
                self._clip(gradients, scale=None if self.found_inf is None else self._scale)

    def before_update(
        self,
        means: Sequence[Tensor],
        phase: PhaseMarker = unmarked,
        add_up: Callable[[Tensor], None] | None = None,
    ) -> None:
        """All in place. `add_up`: sums a float32 over the ranks with other elements. Collective."""
        if not self.waits_for_all:
            return
        with phase("clip"):
            if self.found_inf is not None:
                self.found_inf.zero_()
                inverse = self._scale.double().reciprocal().float()
                torch._amp_foreach_non_finite_check_and_unscale_(list(means), self.found_inf, inverse)
                torch._amp_update_scale_(
                    self._scale, self._growth, self.found_inf, GROWTH_FACTOR, BACKOFF_FACTOR, GROWTH_INTERVAL
                )
            if self._clips("mean"):
                self._clip(means, add_up=add_up)

    def _clip(
        self,
        gradients: Sequence[Tensor],
        *,
        scale: Tensor | None = None,
        add_up: Callable[[Tensor], None] | None = None,
    ) -> None:
        assert self._settings.clip_norm is not None
        squares = torch.zeros((), device=self._device)
        if gradients:
            norms = torch._foreach_norm(list(gradients))
            squares = torch.stack([norm.float() for norm in norms]).square().sum()
        if add_up is not None:
            add_up(squares.view(1))
        norm = squares.sqrt() if scale is None else squares.sqrt() / scale
        if gradients:
            factor = (self._settings.clip_norm / (norm + NORM_EPSILON)).clamp(max=1.0)
            torch._foreach_mul_(list(gradients), factor.reshape(()))

    def state_dict(self) -> dict[str, Tensor]:
        if self.found_inf is None:
            return {}
        return {"scale": self._scale.clone(), "growth": self._growth.clone()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """That of before there was a scale has none."""
        if self.found_inf is not None and state:
            self._scale.copy_(state["scale"])
            self._growth.copy_(state["growth"])

    def expected_factor(self) -> float:
        """What the next mean is multiplied with before it is clipped; waits for the device."""
        return 1.0 if self.found_inf is None else 1.0 / float(self._scale)

    def clip_factor(self, square: float) -> float:
        if not self._clips("mean"):
            return 1.0
        assert self._settings.clip_norm is not None
        return min(1.0, self._settings.clip_norm / (math.sqrt(square) + NORM_EPSILON))
