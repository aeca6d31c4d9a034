"""A group of one rank, for what DDP's reducer exchanges where an arm exchanges nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from .agent import Agent

_groups: list[dist.ProcessGroup] = []
"""The group, once there is one: torch itself holds no reference to the Python object."""


class Alone(dist.ProcessGroup):
    """Its collectives leave tensors as they are."""

    def getBackendName(self) -> str:  # noqa: N802
        """The name in DDP's logs."""
        return "alone"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """The tensors, summed over one rank."""
        return _done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """The tensors, from this rank."""
        return _done(tensors)


def _done(tensors: Any) -> Any:
    c10d: Any = _distributed_c10d
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return c10d._create_work_from_future(future)


@contextmanager
def without_bitmap(agent: Agent, model: Any) -> Iterator[None]:
    """A model that is wrapped meanwhile does not exchange which of its parameters a step has used.

    With `find_unused_parameters` DDP's reducer does so in every backward pass and waits for all ranks. Here
    the reducer has a group of its rank alone. The module keeps the script's group: it compares the shapes of
    all ranks' parameters by it and sends those of rank 0 to the others.
    """
    module: Any = dist  # where DDP looks the reducer up
    original = module.Reducer

    def reducer(*arguments: Any, **options: Any) -> Any:
        if not model.find_unused_parameters:
            return original(*arguments, **options)
        agent.facts["exchanges_used"] = False
        try:
            _groups[:] = _groups or [Alone(0, 1)]  # type: ignore[call-arg]
            at = next(i for i, argument in enumerate(arguments) if isinstance(argument, dist.ProcessGroup))
            return original(*arguments[:at], _groups[0], *arguments[at + 1 :], **options)
        except (RuntimeError, TypeError, StopIteration):  # another torch
            agent.facts["exchanges_used"] = True
            return original(*arguments, **options)

    module.Reducer = reducer
    try:
        yield
    finally:
        module.Reducer = original
