"""What an aggregator keeps on a rank from step to step, and how it is saved for any buckets.

A state's `checkpoint_tensors` names its tensors. `kind/parameter`, such as `residual/conv.weight`, belongs to
a parameter: it is found again whatever bucket the parameter is in then, and in whatever order. A name without
"/" belongs to a bucket as a whole, and is found by the bucket's number, in a bucket of the same layout.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from scaling.bucket import BucketLayout
from scaling.codecs.finite import FiniteWatch
from scaling.errors import CheckpointError, LaunchError, StudyError
from scaling.process_group import Group

SEPARATOR = "/"  # Between a kind and a parameter, whose name may hold more of them
BUCKET = "bucket"  # [32] uint8: the digest of a bucket's layout


def named(kind: str, parameters: Iterable[str], tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Each parameter's tensor of that kind; parameters without one, the last, are left out."""
    return {f"{kind}{SEPARATOR}{name}": tensor for name, tensor in zip(parameters, tensors, strict=False)}


def saved_tensor(saved: Mapping[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """The saved tensor of that name. CheckpointError: it is missing, or has another shape."""
    if name not in saved:
        why = "aggregator parameters" if SEPARATOR in name else "buckets, which it cannot be moved to"
        raise CheckpointError(
            f"the saved state of the aggregator has no {name!r}: it is of another model, an older version or "
            f"other {why}; continue with what it was saved with, or begin anew"
        )
    tensor = saved[name]
    if tuple(tensor.shape) != tuple(shape):
        raise CheckpointError(
            f"the saved state of the aggregator has {name!r} with shape {list(tensor.shape)}, here it is "
            f"{list(shape)}: it is of another model, world size or aggregator parameters; continue with what "
            "it was saved with, or begin anew"
        )
    return tensor


def layout_digest(layout: BucketLayout) -> dict[str, Tensor]:
    return {BUCKET: torch.tensor(list(layout.digest()), dtype=torch.uint8)}


def require_same_layout(layout: BucketLayout, saved: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError where what was saved of a bucket as a whole is not of this one."""
    digest = layout_digest(layout)[BUCKET]
    if not torch.equal(saved_tensor(saved, BUCKET, digest.shape).cpu(), digest):
        raise CheckpointError(
            "the saved state of the aggregator belongs to a bucket of other parameters, or in another order, "
            f"than {', '.join(layout.names):.200}; continue with what it was saved with, or begin anew"
        )


def load_into(tensors: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Copies what was saved into tensors of the same names, in place: all or nothing (CheckpointError)."""
    sources = [saved_tensor(saved, name, tensor.shape) for name, tensor in tensors.items()]
    for tensor, source in zip(tensors.values(), sources, strict=True):
        tensor.copy_(source)


_WORDS = ">16H"  # SHA-256 in 16-bit words, whose squares' sums are exact in float64


def are_same_on_ranks(numbers: Sequence[int], group: Group) -> bool:
    """Whether all ranks have those numbers, below 2**16; over the host's network, not metered. Collective."""
    if group.world_size == 1:
        return True
    words = torch.tensor(numbers, dtype=torch.float64)
    sums = torch.stack([words, words.square()])
    with group.meter.standing_still():
        group.all_reduce_host(sums)
    # Of n numbers, n times the sum of squares is the square of the sum only where all are equal.
    return torch.equal(group.world_size * sums[1], sums[0].square())


def require_same_on_ranks(layout: BucketLayout, group: Group) -> None:
    """Compares digests. Collective. LaunchError, on every rank: the ranks' layouts differ."""
    if not are_same_on_ranks(struct.unpack(_WORDS, layout.digest()), group):
        tensors = zip(layout.names, layout.shapes, strict=True)
        listed = ", ".join(f"{name} {list(shape)}" for name, shape in tensors)
        raise LaunchError(
            f"the ranks have different tensors to bring together; rank {group.rank} has {listed:.200}; start "
            "all workers with the same study, versions and model"
        )


def check_momentum(name: str, parameter: str, value: float, *, may_be_zero: bool) -> None:
    """Raises StudyError unless 0 < value < 1, or 0 where that may be."""
    if not (0 < value < 1 or (may_be_zero and value == 0)):
        least = "from 0" if may_be_zero else "more than 0"
        raise StudyError(f"aggregator {name!r}: {parameter}: allowed is {least} to less than 1, got {value}")


def single_rank_result(gradient: Tensor, velocity: Tensor, momentum: float, result: Tensor) -> Tensor:
    """What a rank without others gives: nothing is encoded; momentum is applied as torch.optim.SGD does.
    `velocity`: [num_elements or more] the momentum so far, which the gradient is added to; empty without, and
    then the result is the gradient itself."""
    if not velocity.numel():
        return gradient
    updated = velocity[: gradient.numel()]
    updated.mul_(momentum).add_(gradient)
    return result.copy_(updated)


OLD_STATE_NAMES = {"kept": "checkpoint_tensors", "left_over": "total_residual"}
"""Methods of a state under the names that they had before: for one more version."""


@dataclass
class AggregatorState:
    """What one rank keeps between calls: the group, the layout and, in subclasses, buffers and residuals.

    Subclasses list the tensors that decide later results; scratch buffers are not among them. `by_parameter`:
    flat ones with a value an element, in the bucket's layout (longer ones are filled up behind it, empty ones
    left out); they are saved by parameter, and loaded into any bucket that has it. `persistent`: others; they
    belong to a bucket as it is. What is neither goes by `checkpoint_tensors`.
    """

    group: Group
    layout: BucketLayout
    persistent: ClassVar[tuple[str, ...]] = ()
    by_parameter: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Gives methods that a class defines under an old name their new one, with a warning."""
        super().__init_subclass__(**keywords)
        for old, new in OLD_STATE_NAMES.items():
            if old in vars(cls) and new not in vars(cls):
                warnings.warn(
                    f"{cls.__module__}:{cls.__qualname__} defines `{old}`, now called `{new}`: rename it; "
                    "the next version no longer knows the old name",
                    FutureWarning,
                    stacklevel=2,
                )
                setattr(cls, new, vars(cls)[old])
            elif new in vars(cls):
                setattr(cls, old, vars(cls)[new])  # for subclasses that call it by the old name

    @property
    def gradient_buffer(self) -> Tensor | None:
        """A flat tensor that spares a copy if backward writes the gradient there; None where any will do."""
        return None

    @property
    def parameter_buffer(self) -> Tensor | None:
        return None

    @property
    def notes(self) -> list[str]:
        """What was decided at the start, for the record of the run."""
        return []

    def check(self) -> None:
        """Raises what went wrong on the device in the steps so far; waits for it: not in a measured window.
        NotFiniteError: a value was NaN or infinite, where the aggregator watches for that."""

    def total_residual(self) -> Tensor | None:
        """What this rank has withheld of the gradients so far, for later steps; None where nothing ever is.
        Flat, in the bucket's layout, new. Summed over the ranks it is the total residual of error feedback:
        in each step n times the mean + the new total = the sum of the gradients + the old total."""
        return None

    def withheld(self) -> Tensor | None:
        """The same where the aggregator applies a momentum of its own: then the law holds with what it brings
        to the exchange (`Aggregator.contribution`) for the gradient."""
        return self.total_residual()

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Views of tensors that a checkpoint needs: `kind/parameter`, or a name, of the whole bucket."""
        tensors = {name: getattr(self, name) for name in self.persistent}
        for kind in self.by_parameter:
            flat = getattr(self, kind)
            if flat.numel():
                views = named(kind, self.layout.names, self.layout.views(flat))
                tensors |= {name: view for name, view in views.items() if view.numel()}
        return tensors

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the tensors that a checkpoint needs, by name."""
        tensors = {name: values.clone() for name, values in self.checkpoint_tensors().items()}
        return tensors | layout_digest(self.layout) if self.persistent else tensors

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Takes over, in place, what `state_dict` gave on this rank. Collective. `tensors`: of this bucket;
        of others too, among which those are found that are kept by parameter. CheckpointError: one is
        missing, has another shape, or is of a bucket as a whole that is not this one; nothing is changed."""
        if self.persistent:
            require_same_layout(self.layout, tensors)
        load_into(self.checkpoint_tensors(), tensors)

    kept = checkpoint_tensors
    left_over = total_residual


@dataclass
class WatchedState(AggregatorState):
    """Of aggregators whose codecs turn NaN into bits like any others."""

    watch: FiniteWatch = field(repr=False, kw_only=True)

    def check(self) -> None:
        self.watch.raise_if_marked()


def save_buckets(states: Sequence[AggregatorState]) -> dict[str, dict[str, Tensor]]:
    """What the state of each bucket has to save, by the bucket's number."""
    return {str(number): state.state_dict() for number, state in enumerate(states)}


def load_buckets(states: Sequence[AggregatorState], saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Takes over what `save_buckets` gave of the same parameters in these or in other buckets. Collective.
    CheckpointError: a bucket lacks something."""
    by_parameter = {
        name: tensor for tensors in saved.values() for name, tensor in tensors.items() if SEPARATOR in name
    }
    for number, state in enumerate(states):
        state.load_state_dict(by_parameter | dict(saved.get(str(number), {})))
