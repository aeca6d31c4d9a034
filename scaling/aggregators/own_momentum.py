"""What aggregators that apply momentum themselves have in common."""

from __future__ import annotations

from torch import Tensor

from scaling.errors import StudyError


def check_momentum(name: str, parameter: str, value: float, *, may_be_zero: bool) -> None:
    """Raises StudyError unless 0 < value < 1, or 0 where that may be."""
    if not (0 < value < 1 or (may_be_zero and value == 0)):
        least = "from 0" if may_be_zero else "more than 0"
        raise StudyError(f"aggregator {name!r}: {parameter}: allowed is {least} to less than 1, got {value}")


def single_rank_result(gradient: Tensor, velocity: Tensor, momentum: float, result: Tensor) -> Tensor:
    """What a rank without others gives: nothing is encoded; momentum is applied as torch.optim.SGD does.

    Args:
        velocity: [num_elements or more] the momentum so far, which the gradient is added to; empty without.

    Returns:
        `result`; the gradient itself without momentum.
    """
    if not velocity.numel():
        return gradient
    updated = velocity[: gradient.numel()]
    updated.mul_(momentum).add_(gradient)
    return result.copy_(updated)
