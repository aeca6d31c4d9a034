"""One rank's copy of a model; `FlatReplica` has parameters and gradients in flat buffers, one a dtype.

The module's parameters and gradients are views into them: nothing is packed or unpacked in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from scaling.aggregators.base import DTYPES, Aggregator
from scaling.bucket import BucketLayout
from scaling.errors import StudyError
from scaling.measure.phases import Marks
from scaling.training.compute import FLOAT32, Compute
from scaling.workloads.base import Loss, cross_entropy


class Replica:
    """A model on its device, its tensors where torch has put them; trainable ones are made contiguous."""

    def __init__(self, module: nn.Module, loss: Loss = cross_entropy, compute: Compute = FLOAT32) -> None:
        self.module, self.loss, self.compute = module, loss, compute
        named_parameters = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self.layout = BucketLayout.of([(name, tuple(p.shape)) for name, p in named_parameters])
        self.trainable = [parameter for _, parameter in named_parameters]
        for parameter in self.trainable:
            if not parameter.is_contiguous():  # a bucket of DDP has elements in their order in memory
                parameter.data = parameter.data.contiguous()

    @property
    def dtypes(self) -> list[torch.dtype]:
        return list(dict.fromkeys(parameter.dtype for parameter in self.trainable))

    def layout_of(self, dtype: torch.dtype) -> BucketLayout:
        """Names, shapes and offsets of the parameters of that dtype, as one bucket."""
        parameters = zip(self.layout.names, self.layout.shapes, self.trainable, strict=True)
        return BucketLayout.of(
            [(name, shape) for name, shape, parameter in parameters if parameter.dtype == dtype]
        )

    @property
    def layouts(self) -> dict[str, BucketLayout]:
        return {dtype_name(dtype): self.layout_of(dtype) for dtype in self.dtypes}

    @property
    def notes(self) -> list[str]:
        if len(self.dtypes) < 2:
            return []
        sizes = [f"{name} ({layout.num_elements} elements)" for name, layout in self.layouts.items()]
        return [f"parameters of {len(sizes)} dtypes, exchanged in buckets of their own: {', '.join(sizes)}"]

    def full_parameters(self) -> list[Tensor]:
        """[layout.shapes] the trainable parameters, whole; collective where ranks have shards of them."""
        return list(self.trainable)

    def forward(
        self, inputs: Tensor, targets: Tensor, module: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The loss, a scalar with its graph; of `module`, where the replica's is wrapped in one."""
        with self.compute.casting(inputs.device.type):
            return self.loss((self.module if module is None else module)(inputs), targets)

    def backward(self, loss: Tensor, *, adding: bool = False) -> None:
        """Gives every parameter the gradient of `loss`, in place of what was there, or adding to it."""
        if not adding:
            for parameter in self.trainable:
                parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]


def whole(tensor: Tensor) -> Tensor:
    """A tensor of which ranks have shards (torch's DTensor), brought together; collective for these."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a DTensor; any other tensor as it is."""
    shard = getattr(tensor, "to_local", None)
    return tensor if shard is None else shard()


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class FlatBucket:
    """Parameters of one dtype and device, flat, and their gradients, which backward fills."""

    def __init__(self, layout: BucketLayout, trainable: Sequence[nn.Parameter]) -> None:
        self.layout, self.trainable = layout, list(trainable)
        self.place_parameters(self.trainable[0].detach().new_empty(layout.num_elements))
        self.place_gradient(torch.zeros_like(self.parameters))

    def place_parameters(self, flat: Tensor) -> None:
        """Moves the parameters into `flat`: [num_elements], of their dtype and device."""
        self.parameters = flat
        with torch.no_grad():
            for parameter, values in zip(self.trainable, self.layout.views(flat), strict=True):
                values.copy_(parameter)
                parameter.data = values

    def place_gradient(self, flat: Tensor) -> None:
        """Has backward write the gradient into `flat`: [num_elements], of their dtype and device."""
        self.gradient = flat
        for parameter, gradient in zip(self.trainable, self.layout.views(flat), strict=True):
            parameter.grad = gradient

    def release_gradient(self) -> None:
        """Gives its memory back, for a step that takes gradients as autograd makes them."""
        self.gradient = self.gradient.new_empty(0)
        for parameter in self.trainable:
            parameter.grad = None


class FlatReplica(Replica):
    """`buckets`: one a dtype, in the order in which they first appear, or one a parameter."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss = cross_entropy,
        compute: Compute = FLOAT32,
        *,
        by_tensor: bool = False,
    ) -> None:
        super().__init__(module, loss, compute)
        groups: list[list[nn.Parameter]] = [[parameter] for parameter in self.trainable]
        if not by_tensor:
            groups = [[p for p in self.trainable if p.dtype == dtype] for dtype in self.dtypes]
        names = {id(p): name for p, name in zip(self.trainable, self.layout.names, strict=True)}
        self.buckets = [
            FlatBucket(BucketLayout.of([(names[id(p)], tuple(p.shape)) for p in group]), group)
            for group in groups
        ]

    @property
    def parameters(self) -> Tensor:
        """[num_elements] flat parameters of a model of one dtype."""
        (bucket,) = self.buckets
        return bucket.parameters

    @property
    def gradient(self) -> Tensor:
        """[num_elements] flat gradient of a model of one dtype, filled by backward."""
        (bucket,) = self.buckets
        return bucket.gradient

    def backward(self, loss: Tensor, *, adding: bool = False) -> None:
        if not adding:
            torch._foreach_zero_([bucket.gradient for bucket in self.buckets])
        loss.backward()  # type: ignore[no-untyped-call]


def take_passes(
    replica: Replica,
    inputs: Tensor,
    targets: Tensor,
    marks: Marks,
    scaled: Callable[[Tensor], Tensor],
    *,
    forward: Callable[[Tensor], Tensor] | None = None,
    around: Callable[[bool], AbstractContextManager[None] | None] = lambda _: None,
    after: Callable[[], None] | None = None,
) -> Tensor:
    """Forward and backward passes of a batch, a multiple of the micro-batches; leaves the gradient of its
    mean loss, and gives that, detached. `around`: is told of each micro-batch whether it is the last, and may
    give a context for it; `after`: is called at the end of the last backward pass, within its phase."""
    count = replica.compute.accumulate
    total: Tensor | None = None
    for number in range(count):
        micro_batch = slice(number * len(inputs) // count, (number + 1) * len(inputs) // count)
        is_last = number == count - 1
        with around(is_last) or nullcontext():
            with marks.phase("forward"):
                loss = replica.forward(inputs[micro_batch], targets[micro_batch], forward)
                loss = loss / count if count > 1 else loss
            with marks.phase("backward"):
                replica.backward(scaled(loss), adding=number > 0)
                if is_last and after is not None:
                    after()
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    return total


@torch.no_grad()
def add_up(total: Tensor | None, loss: Tensor) -> Tensor:
    """The sum of the losses so far, in place: not finite from the first one on that is not."""
    return loss.clone() if total is None else total.add_(loss)


@torch.no_grad()
def not_finite(loss: Tensor | None, replica: Replica) -> list[str]:
    """Of "loss", "gradients", "parameters"; waits for the device. A gradient that is gone is finite."""
    gradients = [parameter.grad for parameter in replica.trainable if parameter.grad is not None]
    losses = [] if loss is None else [loss]
    values: dict[str, list[Any]] = {"loss": losses, "gradients": gradients, "parameters": replica.trainable}
    return [name for name, of in values.items() if not all(bool(tensor.isfinite().all()) for tensor in of)]


def require_dtypes(module: nn.Module, aggregator: Aggregator[Any]) -> None:
    """The module may be on torch's meta device. StudyError: there is nothing to train, or a parameter's dtype
    cannot be trained, or the aggregator does not take it."""
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not trainable:
        raise StudyError("the model has no parameter with requires_grad: there is nothing to train")
    way_out = "store it as one of these and convert it where it is used, or freeze it (requires_grad_(False))"
    for name, parameter in trainable:
        what = f"parameter {name!r} is {dtype_name(parameter.dtype)}"
        if parameter.dtype not in DTYPES:
            raise StudyError(f"{what}, which cannot be trained; allowed are {_names(DTYPES)}: {way_out}")
        if parameter.dtype not in aggregator.dtypes:
            raise StudyError(
                f"{what}, which aggregator {aggregator.label()!r} does not take; it takes "
                f"{_names(aggregator.dtypes)}: {way_out}, or use another aggregator, such as all_reduce"
            )


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return ", ".join(map(dtype_name, dtypes))
