"""Which arm is on in which step: blocks of a few steps, the arms of a round in random order. All ranks draw
from one seed and agree by the store on two numbers alone: steps of a block, and the last round."""

import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .arms import LONGEST_BLOCK, order_of

# Steps of a block where it would take more seconds with the most. Others see all or none of every tenth.
LEAST_BLOCK, BLOCK_S = 3, 0.6
KEY = "scaling_attach_{}"


class Plan:
    def __init__(self, order: dict[str, Any]) -> None:
        self.arms: list[str] = list(order.get("arms") or [order["arm"]])
        self.labels: list[tuple[str, int, int]] = []
        self.rounds = 0
        self.first, self.is_switched = self.arms[0], len(self.arms) > 1
        self._seed, self._enough = int(order.get("seed", 0)), Path(order["out"]) / "enough"
        self._budget_s, self._began_s = float(order.get("budget_s", 0.0)), 0.0
        self.waits_for_epoch = bool(order.get("until_epoch"))  # no step is the last one before it has ended
        self.block, self._last, self._label = LONGEST_BLOCK, 0, (self.first, -1, 0)

    def next(self, made: int, warmup: int, marks_s: list[float], rank: int) -> tuple[str, int]:
        """The arm of the step after so many; "stop" after the last round. And its number in the round."""
        self.labels += [self._label] * (made - len(self.labels))
        step = made - warmup
        if step < 0:
            return self.first, 1
        if step == 0:
            self._began_s = marks_s[-1]
            self.block = self._agree_on_block(marks_s[-min(warmup, 5) :], rank)
        block, within = divmod(step, self.block)
        number, place = divmod(block, len(self.arms))
        at = place * self.block + within
        if at == 0 and number > 0:
            self.rounds = number
            if self._is_over(number, rank):
                return "stop", at
        arm = order_of(self.arms, self._seed, number)[place]
        self._label = (arm, number, within)
        return arm, at

    def _agree_on_block(self, marks_s: list[float], rank: int) -> int:
        step_s = (marks_s[-1] - marks_s[0]) / max(len(marks_s) - 1, 1)
        block = LONGEST_BLOCK if LONGEST_BLOCK * step_s <= BLOCK_S else LEAST_BLOCK
        if (store := store_of_script()) is None:
            return LONGEST_BLOCK
        if rank == 0:
            store.set(KEY.format("block"), str(block))
        return int(store.get(KEY.format("block")))

    def _is_over(self, number: int, rank: int) -> bool:
        """Whether this was the last round. Rank 0 says so one round ahead; the others come to know in time,
        for no rank ends a round in which it exchanges before rank 0 has begun it."""
        store = store_of_script()
        if rank == 0 and not self._last:
            is_enough = self._enough.exists() or time.perf_counter() - self._began_s > self._budget_s
            if is_enough and not self.waits_for_epoch:
                self._last = number + (store is not None)
                if store is not None:
                    store.set(KEY.format("last"), str(self._last))
        elif store is not None and not self._last and store.check([KEY.format("last")]):
            self._last = int(store.get(KEY.format("last")))
        return bool(self._last) and number >= self._last


def store_of_script() -> Any:
    """The script's; None where it has none, as with MPI."""
    if not dist.is_initialized():
        return None
    try:
        return dist.distributed_c10d._get_default_store()
    except RuntimeError:
        return None
