"""Compares the replay of a captured step with that step taken twice without its graph, from the same state.

Kernels may add in another order in each. Adam's first step is about the learning rate times the sign of each
gradient, so that the signs of tiny gradients alone change it by more than rounding. Compared is therefore
what is linear in the mean gradient: SGD's parameters, and Adam's first moment, of which then follows what the
replayed parameters must be. The optimizer's state begins at zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.training.exchange_check import place
from scaling.training.optimizers import AdamSettings
from scaling.training.update_check import CHUNK_ELEMENTS, TITLES, Delivered, Moments, worst_update

TOLERANCE = 1e-2
"""Between a step with its graph and without, as a ratio to the norm of the update or of the mean."""
SCATTER, LIMIT = 4.0, 0.3
"""Besides, so many times what two steps without a graph differ by, up to that ratio; a lossy codec, in which
signs and places may change likewise, has that ratio for Adam in any case."""


def sgd_problem(
    names: Sequence[str], start: Sequence[Tensor], steps: Sequence[Sequence[Tensor]]
) -> str | None:
    """The first parameter of which the replay's update is another.

    Args:
        steps: the parameters after the step, after that step again, and after the replay.
    """
    for name, old, plain, again, replayed in zip(names, start, *steps, strict=True):
        update, scatter, distance = (
            (plain.double() - other.double()).norm() for other in (old.detach(), again, replayed)
        )
        rounding = torch.finfo(plain.dtype).eps * plain.double().norm()
        if not distance <= _allowed(TOLERANCE, update, scatter) + rounding:
            return f"the captured graph's update of {name} is another than that of the step without it"
    return None


def adam_problem(
    settings: AdamSettings,
    layout: BucketLayout,
    start: Tensor,
    replayed: Tensor,
    states: Sequence[Mapping[str, Tensor]],
    *,
    lossy: bool = False,
) -> str | None:
    """What is wrong with the replay in the elements of which this rank has the state.

    Args:
        settings: of Adam or AdamW.
        start, replayed: [num_elements] flat, before the step and after the replay.
        states: the optimizer's, by name and span, after the step, that step again, and the replay.
        lossy: the aggregator is.
    """
    title = TITLES[settings.name]
    if len({frozenset(state) for state in states}) > 1:
        return f"the captured graph leaves a state of {title} other than that of the step without it"
    for key in [key for key in states[0] if key.startswith("exp_avg/")]:
        span = key.partition("/")[2]
        first, last = (int(bound) for bound in span.split(":"))
        if first == last:
            continue
        elements = f"from {place(layout, first)} to {place(layout, last - 1)}"
        plain, _, replays = (float(state[f"step/{span}"]) for state in states)
        if plain != replays:
            return f"the captured graph takes {replays:g} steps of {title} {elements}, without it {plain:g}"
        squares = torch.zeros(3, dtype=torch.float64, device=start.device)
        for begin in range(first, last, CHUNK_ELEMENTS):
            chunk = slice(begin, min(begin + CHUNK_ELEMENTS, last))
            old, new = start[chunk], replayed[chunk]
            moments = [state[key].view(-1)[chunk.start - first : chunk.stop - first] for state in states]
            means = [_mean(settings, moment, old) for moment in moments]
            differences = (means[0], means[0] - means[1], means[0] - means[2])
            squares += torch.stack([difference.square().sum() for difference in differences])
            worst = _worst_replayed(settings, old, new, means[2], is_step=bool(replays))
            if worst is not None:
                return (
                    f"the captured graph's update is not {title}'s: {place(layout, begin + worst[0])} is "
                    f"{worst[1]:.9g} after it, {title} with its mean gradient gives {worst[2]:.9g}"
                )
        norm, scatter, distance = squares.sqrt()
        if not distance <= _allowed(LIMIT if lossy else TOLERANCE, norm, scatter):
            return (
                f"the captured graph's mean gradient {elements} is another than that of the step without it"
            )
    return None


def _worst_replayed(
    settings: AdamSettings, old: Tensor, new: Tensor, mean: Tensor, *, is_step: bool
) -> tuple[int, float, float] | None:
    """The element that is farthest off, its value and the expected one; None where all are near enough.

    Without a step (skipped for an infinite gradient) nothing may have changed.
    """
    if is_step:
        moments, rate_eps = Moments.zero(settings, old), torch.finfo(torch.float32).eps
        return worst_update(settings, new, old, Delivered(mean, 0.0), moments, rate_eps)
    if torch.equal(new, old):
        return None
    at = int((new != old).nonzero()[0])
    return at, float(new[at]), float(old[at])


def _allowed(tolerance: float, norm: Tensor, scatter: Tensor) -> Tensor:
    return tolerance * norm + torch.minimum(SCATTER * scatter, LIMIT * norm)


def _mean(settings: AdamSettings, first_moment: Tensor, old: Tensor) -> Tensor:
    gradient = first_moment.double() / (1 - settings.beta1)
    return gradient if settings.decoupled else gradient - settings.weight_decay * old.double()
