"""What an optimizer makes of a delivered mean gradient, in float64, and how far a step is from it.

The formulas are those of torch's documentation: `p` are the parameters, `g` the mean gradient, to which SGD
and Adam add weight_decay p; AdamW multiplies p with 1 - rate weight_decay instead.

- SGD: v = momentum v + g; p - rate (g + momentum v) with Nesterov's momentum, p - rate v without.
- Adam, AdamW: m = b1 m + (1 - b1) g; s = b2 s + (1 - b2) g g;
  p - rate (m / (1 - b1^t)) / (sqrt(s / (1 - b2^t)) + epsilon).

With each value goes that of absolute values, which bounds what rounding has added up to. `sgd_problem` and
`adam_problem` compare a replay with that step taken twice without its graph, from a state at zero. Kernels
may add in another order, and Adam's first step is about the sign of each gradient: compared is what is linear
in the mean gradient, SGD's parameters and Adam's first moment, of which the replayed parameters follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.training.exchange_check import CHUNK_ELEMENTS, place
from scaling.training.optimizers import AdamSettings, OptimizerSettings, SgdSettings

UPDATE_ROUNDING = 32.0  # of an update, in epsilons of its terms
ADAM_ROUNDING = 1e-4
"""Of Adam's step, as a ratio to it: 1 - b2 is 0.001, which float32 knows to five digits as a difference."""

TITLES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}


class Delivered(NamedTuple):
    """The mean of one parameter's gradients; `rounding` is how far that which the update had may be off."""

    mean: Tensor
    rounding: float


@dataclass
class Moments:
    """What the optimizer keeps of one parameter since that was zero, flat and in float64: velocity or first
    moment, and that of absolute values; of Adam the second moment likewise."""

    first: Tensor
    first_size: Tensor
    second: Tensor
    second_size: Tensor
    steps: int = 0

    @classmethod
    def zero(cls, settings: OptimizerSettings, parameter: Tensor) -> Moments:
        is_adam = isinstance(settings, AdamSettings)
        first, first_size, second, second_size = (
            torch.zeros(size, dtype=torch.float64, device=parameter.device)
            for size in [parameter.numel()] * 2 + [parameter.numel() if is_adam else 0] * 2
        )
        return cls(first, first_size, second, second_size)


def worst_update(
    settings: OptimizerSettings,
    new: Tensor,
    old: Tensor,
    delivered: Delivered,
    moments: Moments,
    rate_eps: float,
) -> tuple[int, float, float] | None:
    """Its value and the optimizer's; None if all are near. `rate_eps`: of the learning rate, a ratio."""
    worst, largest = None, 1.0
    moments.steps += 1
    flat = [tensor.reshape(-1) for tensor in (new, old, delivered.mean)]
    info = torch.finfo(new.dtype)
    for start in range(0, new.numel(), CHUNK_ELEMENTS):
        chunk = slice(start, start + CHUNK_ELEMENTS)
        updated, p, mean = (tensor[chunk].double() for tensor in flat)
        if isinstance(settings, AdamSettings):
            step, size, slack = _adam(settings, p, mean, moments, chunk, delivered.rounding)
        else:
            assert isinstance(settings, SgdSettings), "there is no other optimizer"
            step, size, slack = _sgd(settings, p, mean, moments, chunk, delivered.rounding)
        rate = abs(settings.learning_rate)
        expected = p - settings.learning_rate * step
        allowed = UPDATE_ROUNDING * info.eps * (p.abs() + rate * size) + rate_eps * rate * size
        ratios = ((updated - expected).abs() / (allowed + rate * slack + info.tiny)).nan_to_num_(float("inf"))
        at = int(ratios.argmax())
        if float(ratios[at]) > largest:
            largest, worst = float(ratios[at]), (start + at, float(updated[at]), float(expected[at]))
    return worst


_Step = tuple[Tensor, Tensor, Tensor | float]
"""What the learning rate multiplies, its terms' magnitude, and how far it may be off besides rounding."""


def _sgd(
    settings: SgdSettings, p: Tensor, mean: Tensor, moments: Moments, chunk: slice, rounding: float
) -> _Step:
    step = mean + settings.weight_decay * p
    size = mean.abs() + settings.weight_decay * p.abs()
    if settings.momentum:
        value, magnitude = moments.first[chunk], moments.first_size[chunk]
        value.mul_(settings.momentum).add_(step)
        size = magnitude.mul_(settings.momentum).add_(size)
        step = step + settings.momentum * value if settings.nesterov else value
    return step, size, 2 * rounding / max(1 - settings.momentum, 1e-3)


def _adam(
    settings: AdamSettings, p: Tensor, mean: Tensor, moments: Moments, chunk: slice, rounding: float
) -> _Step:
    in_gradient = 0.0 if settings.decoupled else settings.weight_decay
    gradient, size = mean + in_gradient * p, mean.abs() + in_gradient * p.abs()
    for moment, value in ((moments.first, gradient), (moments.first_size, size)):
        moment[chunk].mul_(settings.beta1).add_((1 - settings.beta1) * value)
    for moment, value in ((moments.second, gradient), (moments.second_size, size)):
        moment[chunk].mul_(settings.beta2).add_((1 - settings.beta2) * value.square())
    correction = 1 - settings.beta1**moments.steps, 1 - settings.beta2**moments.steps
    first, first_size = (tensor[chunk] / correction[0] for tensor in (moments.first, moments.first_size))
    second, second_size = (
        (tensor[chunk] / correction[1]).sqrt() for tensor in (moments.second, moments.second_size)
    )
    divisor = second + settings.epsilon
    # Where terms cancel, what is rounded of them is large against their difference and against the divisor.
    sensitivity = 1 + second_size / divisor
    decay = settings.weight_decay * p if settings.decoupled else torch.zeros_like(p)
    size = first_size / divisor * sensitivity + decay.abs()
    slack = 2 * rounding * sensitivity / divisor + ADAM_ROUNDING * first_size / divisor
    return first / divisor + decay, size, slack


TOLERANCE = 1e-2
"""Between a step with its graph and without, as a ratio to the norm of the update or of the mean."""
SCATTER, LIMIT = 4.0, 0.3
"""Besides, so many times what two steps without a graph differ by, up to that ratio; a lossy codec, in which
signs and places may change likewise, has that ratio for Adam in any case."""


def sgd_problem(
    names: Sequence[str], start: Sequence[Tensor], steps: Sequence[Sequence[Tensor]]
) -> str | None:
    """`steps`: the parameters after the step, after that step again, and after the replay."""
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
    """`start`, `replayed`: [num_elements] before the step and after the replay; `states`: by name and span,
    after the step, that step again, and the replay."""
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
    """None where all are near. After a skipped step (an infinite gradient) nothing may have changed."""
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
