"""The optimizers: how each is set, torch's own class for it, and what its state is called.

State is saved by name and place: `exp_avg/0:512`; SGD's momentum, as before there were others, by the place
alone. References: D. P. Kingma, J. Ba, "Adam", arXiv 1412.6980; I. Loshchilov, F. Hutter, "Decoupled weight
decay regularization", arXiv 1711.05101 (AdamW).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

OptimizerName = Literal["sgd", "adam", "adamw"]

MOMENTUM = "momentum_buffer"


class OptimizerSettings(ABC):
    """`weight_decay`: added to the gradient, or decays parameters; `state_names`: tensors of each."""

    state_names: ClassVar[tuple[str, ...]]
    learning_rate: float
    weight_decay: float

    @property
    @abstractmethod
    def name(self) -> OptimizerName: ...

    @abstractmethod
    def optimizer(
        self, parameters: Sequence[Tensor], *, capturable: bool = False, skippable: bool = False
    ) -> torch.optim.Optimizer:
        """If `capturable` its step may be captured; the learning rate is a tensor on the device."""


@dataclass(frozen=True)
class SgdSettings(OptimizerSettings):
    state_names = (MOMENTUM,)

    learning_rate: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def name(self) -> OptimizerName:
        return "sgd"

    def optimizer(
        self, parameters: Sequence[Tensor], *, capturable: bool = False, skippable: bool = False
    ) -> torch.optim.Optimizer:
        made = torch.optim.SGD(
            parameters,
            lr=_rate(self.learning_rate, parameters, capturable=capturable),
            fused=True if capturable or skippable else None,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )
        if skippable and self.momentum:
            # torch's fused first step leaves a momentum without values where that step is skipped.
            for parameter in parameters:
                made.state[parameter][MOMENTUM] = torch.zeros_like(parameter)
        return made


@dataclass(frozen=True)
class AdamSettings(OptimizerSettings):
    """Adam as torch.optim.Adam defines it; `decoupled`: torch.optim.AdamW."""

    state_names = ("step", "exp_avg", "exp_avg_sq")

    learning_rate: float
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decoupled: bool = False

    @property
    def name(self) -> OptimizerName:
        return "adamw" if self.decoupled else "adam"

    def optimizer(
        self, parameters: Sequence[Tensor], *, capturable: bool = False, skippable: bool = False
    ) -> torch.optim.Optimizer:
        cls = torch.optim.AdamW if self.decoupled else torch.optim.Adam
        return cls(
            parameters,
            lr=_rate(self.learning_rate, parameters, capturable=capturable),
            betas=(self.beta1, self.beta2),
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            fused=True,
            capturable=capturable,
        )


def _rate(rate: float, parameters: Sequence[Tensor], *, capturable: bool) -> Any:
    """On the device where a graph is to read it: a number would be frozen into the graph."""
    if not capturable:
        return rate
    return torch.tensor(rate, dtype=torch.float32, device=parameters[0].device)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """That of the optimizer's next steps; one on the device is filled in the order of the current stream."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def skip_where(optimizer: torch.optim.Optimizer, found_inf: Tensor) -> None:
    """From now on a step changes nothing where `found_inf`, a float32 on the device, is 1; nobody waits for
    it. The way of torch.amp.GradScaler with fused optimizers."""
    optimizer.found_inf = found_inf  # type: ignore[attr-defined]


class OptimizerState:
    """The tensors of these names that an optimizer keeps at some places; none before the first step."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, places: Mapping[str, Tensor], names: Sequence[str]
    ) -> None:
        self._optimizer, self._places, self._names = optimizer, places, names

    def _tensors(self) -> dict[str, Tensor]:
        return {
            _key(name, place): values
            for place, parameter in self._places.items()
            for name in self._names
            if (values := self._optimizer.state.get(parameter, {}).get(name)) is not None
        }

    def factors(self) -> dict[str, Tensor] | None:
        """Place -> 1 / (root of the second moment + epsilon), by which Adam multiplies; None of others."""
        if "exp_avg_sq" not in self._names:
            return None
        group, found = self._optimizer.param_groups[0], {}
        for place, parameter in self._places.items():
            if state := self._optimizer.state.get(parameter):
                corrected = state["exp_avg_sq"].float() / (1 - group["betas"][1] ** state["step"])
                found[place] = corrected.sqrt_().add_(group["eps"]).reciprocal_()
        return found

    @property
    def state_bytes(self) -> int:
        return sum(values.nbytes for values in self._tensors().values())

    def state_dict(self) -> dict[str, Tensor]:
        return {name: values.clone() for name, values in self._tensors().items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copies, in place where tensors are; a place that the state lacks gets zeros, as before a step."""
        for place, parameter in self._places.items():
            for name in self._names:
                key, tensors = _key(name, place), self._optimizer.state.get(parameter, {})
                if tensors.get(name) is not None and key in state:
                    tensors[name].copy_(state[key])
                elif tensors.get(name) is not None:
                    tensors[name].zero_()
                elif key in state:
                    self._optimizer.state[parameter][name] = state[key].to(parameter.device, copy=True)


def _key(name: str, place: str) -> str:
    return place if name == MOMENTUM else f"{name}/{place}"
