"""A group for what DDP's reducer exchanges past its hook: nothing while an arm exchanges nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from .agent import Agent


class Alone(dist.ProcessGroup):
    """The script's group while the arm exchanges; else collectives leave tensors as they are."""

    agent: Agent
    group: dist.ProcessGroup

    def getBackendName(self) -> str:  # noqa: N802
        return "alone"

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self.group.allreduce(tensors, opts) if self.agent.arm.exchanges else _done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        return self.group.broadcast(tensors, opts) if self.agent.arm.exchanges else _done(tensors)


_groups: list[Alone] = []
"""The groups: torch itself holds no reference to the Python objects."""


def _done(tensors: Any) -> Any:
    c10d: Any = _distributed_c10d
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(tensors)
    return c10d._create_work_from_future(future)


@contextmanager
def without_bitmap(agent: Agent, model: Any) -> Iterator[None]:
    """A model that is wrapped meanwhile does not exchange which parameters a step has used, in such arms.

    With `find_unused_parameters` DDP's reducer does so in every backward pass and waits for all ranks. Here
    the reducer has a group that asks the arm. The module keeps the script's group: it compares the shapes of
    all ranks' parameters by it and sends those of rank 0 to the others.
    """
    module: Any = dist  # where DDP looks the reducer up
    original = module.Reducer

    def reducer(*arguments: Any, **options: Any) -> Any:
        if not model.find_unused_parameters:
            return original(*arguments, **options)
        agent.facts["exchanges_used"] = False
        try:
            at = next(i for i, argument in enumerate(arguments) if isinstance(argument, dist.ProcessGroup))
            group = Alone(arguments[at].rank(), arguments[at].size())  # type: ignore[call-arg]
            group.agent, group.group = agent, arguments[at]
            _groups.append(group)
            return original(*arguments[:at], group, *arguments[at + 1 :], **options)
        except (RuntimeError, TypeError, StopIteration):  # another torch
            agent.facts["exchanges_used"] = True
            return original(*arguments, **options)

    module.Reducer = reducer
    try:
        yield
    finally:
        module.Reducer = original
