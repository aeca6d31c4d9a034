"""Where the optimizer step is taken: on every replica, or once in host memory.

Either way it is torch's SGD on the flat parameters. The momentum lives where the step is taken, and only
there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling.aggregators.base import PhaseMarker, UpdateSite, unmarked
from scaling.aggregators.host import one_thread
from scaling.process_group import Group
from scaling.training.replica import Replica


@dataclass(frozen=True)
class SgdSettings:
    """Stochastic gradient descent as torch.optim.SGD defines it."""

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def optimizer(self, parameters: Tensor) -> torch.optim.SGD:
        """An optimizer of that one flat tensor."""
        return torch.optim.SGD(
            [parameters],
            lr=self.learning_rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )


class Update(ABC):
    """An update site, bound to one rank's replica."""

    @abstractmethod
    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        """Takes the optimizer step with the mean gradient; afterwards every replica has the new parameters.

        Args:
            mean: what the aggregator returned on this rank: flat, or None where the site is not.
            phase: marks `update` and what the site needs besides.
        """


class ReplicaUpdate(Update):
    """Every rank steps its own parameters; equal means keep them equal."""

    def __init__(self, replica: Replica, settings: SgdSettings) -> None:
        self._parameters = torch.nn.Parameter(replica.parameters)
        self._optimizer = settings.optimizer(self._parameters)

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        assert mean is not None, "an aggregator for replicas returns the mean on every rank"
        with phase("update"):
            self._parameters.grad = mean
            self._optimizer.step()


class HostUpdate(Update):
    """Rank 0 steps one copy of the parameters in host memory, with one thread; all ranks copy it back.

    Args:
        replica: this rank's model.
        settings: of the optimizer.
        group: whose ranks share the host's memory.
    """

    def __init__(self, replica: Replica, settings: SgdSettings, group: Group) -> None:
        self._group = group
        self._replica = replica
        shared = group.shared_host_buffer(
            replica.parameters.nbytes, register=replica.parameters.device.type == "cuda"
        )
        self._parameters = torch.nn.Parameter(shared.view(replica.parameters.dtype))
        if group.rank == 0:
            with torch.no_grad():
                self._parameters.copy_(replica.parameters)
        self._optimizer = settings.optimizer(self._parameters)
        group.barrier()

    def apply(self, mean: Tensor | None, phase: PhaseMarker = unmarked) -> None:
        if self._group.rank == 0:
            assert mean is not None, "an aggregator for the host returns the mean on rank 0"
            with phase("update"):
                self._parameters.grad = mean
                with one_thread():
                    self._optimizer.step()
        with phase("wait"):  # for rank 0, which sums and steps alone
            self._group.barrier()
        with phase("h2d_result"), torch.no_grad():
            # Rank 0 writes these again only behind the next step's barrier, which each rank reaches after it
            # has waited for its own stream.
            self._replica.parameters.copy_(self._parameters, non_blocking=True)


def update_at(site: UpdateSite, replica: Replica, settings: SgdSettings, group: Group) -> Update:
    """The update of that site. Collective for sites in shared memory."""
    return HostUpdate(replica, settings, group) if site == "host" else ReplicaUpdate(replica, settings)
