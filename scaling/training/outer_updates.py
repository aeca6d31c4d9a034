"""Outer updates: what becomes of the ranks' models after a block of local steps, as steps of torch's SGD.

The ranks make the mean of start - own, the outer gradient; an optimizer step with it from the block's start
gives the formulas of docs/background/learning.md. CNTK's, s = m s + (1 - m) z n (start - mean) and then
start - (1 + m) s, is SGD with rate (1 + m) (1 - m) z n and momentum m. Unlike CNTK's, a block is counted in
steps, not in samples; a shorter block ends with the epoch, as in CNTK.

References: K. Chen, Q. Huo, "Scalable training of deep learning machines by incremental block training",
ICASSP 2016; A. Douillard et al., "DiLoCo", arXiv 2311.08105; CNTK, Source/1BitSGD/BlockMomentumSGD.h,
Source/1BitSGD/BlockMomentumDistributedLearner.h, Source/SGDLib/MASGD.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from scaling.training.optimizers import SgdSettings

OuterName = Literal["average", "block_momentum", "nesterov", "cntk_model_averaging", "cntk_block_momentum"]

WITHOUT_MOMENTUM: tuple[OuterName, ...] = ("average", "cntk_model_averaging")


@dataclass(frozen=True)
class OuterUpdate:
    """An outer update with its numbers; the rate is as the study has it, of CNTK its block learning rate."""

    name: OuterName
    momentum: float
    learning_rate: float
    world_size: int

    @property
    def settings(self) -> SgdSettings:
        from scaling.training.optimizers import SgdSettings  # study files are read without torch

        rate = self.learning_rate
        if self.resets_optimizer:
            rate *= (1 + self.momentum) * (1 - self.momentum) * self.world_size
        return SgdSettings(rate, self.momentum, nesterov=self.name == "nesterov" and self.momentum > 0)

    @property
    def resets_optimizer(self) -> bool:
        """Whether the momentum of the ranks' own optimizers, else never touched, is zero after each block."""
        return self.name == "cntk_block_momentum"


def outer_update(
    name: OuterName, world_size: int, momentum: float | None = None, learning_rate: float | None = None
) -> OuterUpdate:
    """The outer update of that name, with its defaults for what is None; momentum is in [0, 1)."""
    usual = (0.9, 0.7) if name == "nesterov" else (1 - 1 / world_size, 1.0)
    usual = (0.0, 1.0) if name in WITHOUT_MOMENTUM else usual
    momentum = usual[0] if momentum is None else momentum
    return OuterUpdate(name, momentum, usual[1] if learning_rate is None else learning_rate, world_size)


def outer_fields(cell: dict[str, Any], world_size: int) -> dict[str, float | None]:
    """The numbers of a cell's outer update, with the defaults for that world size; None where it has none."""
    name, keys = cell["outer_update"], ("outer_momentum", "outer_learning_rate")
    if name is None or name in WITHOUT_MOMENTUM:
        return dict.fromkeys(keys)
    outer = outer_update(name, world_size, *(cell[key] for key in keys))
    return dict(zip(keys, (outer.momentum, outer.learning_rate), strict=True))
