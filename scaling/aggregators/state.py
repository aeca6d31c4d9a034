"""What an aggregator keeps on a rank from step to step, and how it is saved for any buckets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from scaling.aggregators.saved_state import SEPARATOR, layout_digest, load_into, named, require_same_layout
from scaling.bucket import BucketLayout
from scaling.process_group import Group

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

        Raises:
            NotFiniteError: a value was NaN or infinite, where the aggregator watches for that.
        """

    def total_residual(self) -> Tensor | None:
        """What this rank has withheld of the gradients so far, for later steps; None where nothing ever is.

        Flat, in the bucket's layout, new. Summed over the ranks it is the total residual of error feedback:
        in each step n times the mean + the new total = the sum of the gradients + the old total.
        """
        return None

    def withheld(self) -> Tensor | None:
        """The same where the aggregator applies a momentum of its own: then the law holds with what it brings
        to the exchange (`Aggregator.contribution`) for the gradient."""
        return self.total_residual()

    def checkpoint_tensors(self) -> dict[str, Tensor]:
        """Views of the tensors that a checkpoint needs: `kind/parameter`, or a name, of the bucket as a whole
        (`scaling.aggregators.saved_state`)."""
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
        """Takes over, in place, what `state_dict` gave on this rank. Collective.

        Args:
            tensors: of this bucket; of others too, among which those are found that are kept by parameter.

        Raises:
            CheckpointError: one is missing, has another shape, or is of a bucket as a whole that is not this
                one; nothing is changed.
        """
        if self.persistent:
            require_same_layout(self.layout, tensors)
        load_into(self.checkpoint_tensors(), tensors)

    kept = checkpoint_tensors
    left_over = total_residual


def save_buckets(states: Sequence[AggregatorState]) -> dict[str, dict[str, Tensor]]:
    """What the state of each bucket has to save, by the bucket's number."""
    return {str(number): state.state_dict() for number, state in enumerate(states)}


def load_buckets(states: Sequence[AggregatorState], saved: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Takes over what `save_buckets` gave of the same parameters in these or in other buckets. Collective.

    Raises:
        CheckpointError: a bucket lacks something.
    """
    by_parameter = {
        name: tensor for tensors in saved.values() for name, tensor in tensors.items() if SEPARATOR in name
    }
    for number, state in enumerate(states):
        state.load_state_dict(by_parameter | dict(saved.get(str(number), {})))
