"""Small networks with parameters of several dtypes or of rare kinds, and a plain loop that trains them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from scaling.training.optimizers import SgdSettings
from tests.training.small import batch

SETTINGS = SgdSettings(learning_rate=0.1, momentum=0.9, weight_decay=1e-3)
NUM_STEPS = 5


class Network(nn.Module):
    """A body, a scale and a head, each of a dtype of its own."""

    def __init__(self, body=torch.float32, head=torch.float32, scale=torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(12, 20, dtype=body)
        self.scale = nn.Parameter(torch.tensor(1.5, dtype=scale))
        self.head = nn.Linear(20, 6, dtype=head)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(inputs.flatten(1).to(self.body.weight.dtype))) * self.scale
        return self.head(hidden.to(self.head.weight.dtype)).float()


class Frozen(Network):
    """Some parameters are not trained, one of them of whole numbers."""

    def __init__(self) -> None:
        super().__init__(head=torch.bfloat16)
        self.head.weight.requires_grad_(False)
        self.number = nn.Parameter(torch.tensor([3]), requires_grad=False)


class ShapeOnly(Network):
    """The loss does not depend on a parameter's values."""

    def __init__(self) -> None:
        super().__init__(head=torch.bfloat16)
        self.template = nn.Parameter(torch.ones(6, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs)[:, : self.template.shape[0]]


class Tied(Network):
    """One parameter under two names."""

    def __init__(self) -> None:
        super().__init__(head=torch.bfloat16)
        self.first, self.second = nn.Linear(12, 12), nn.Linear(12, 12)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(self.second(torch.tanh(self.first(inputs))))


class Empty(Network):
    """Parameters without an element, one of them the only one of its dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(0, 6))
        self.nothing_else = nn.Parameter(torch.zeros(0, dtype=torch.float16))

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) + self.nothing.sum(0) + self.nothing_else.sum()


class NotContiguous(Network):
    """Weights in channels-last order, and transposed."""

    def __init__(self) -> None:
        super().__init__(head=torch.bfloat16)
        self.filters = nn.Conv2d(3, 12, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.mixing = nn.Parameter(torch.randn(12, 12).t())

    def forward(self, inputs: Tensor) -> Tensor:
        images = inputs.view(-1, 3, 2, 2)
        return super().forward(self.filters(images).flatten(1) @ self.mixing)


MIXED: dict[str, Callable[[], nn.Module]] = {
    "bfloat16 head": lambda: Network(head=torch.bfloat16),
    "float64 scalar": lambda: Network(scale=torch.float64),
    "three dtypes": lambda: Network(head=torch.bfloat16, scale=torch.float64),
    "float16": lambda: Network(torch.float16, torch.float16, torch.float16),
    "float64": lambda: Network(torch.float64, torch.float64, torch.float64),
}
RARE: dict[str, Callable[[], nn.Module]] = {
    one.__name__: one for one in (Frozen, ShapeOnly, Tied, Empty, NotContiguous)
}


def plainly_trained(module: nn.Module, world_size: int) -> nn.Module:
    """The module after torch's SGD with SETTINGS on the mean, in float64, of the ranks' gradients."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.1, momentum=0.9, weight_decay=1e-3)
    for number in range(NUM_STEPS):
        summed: dict[nn.Parameter, Tensor] = {}
        for rank in range(world_size):
            optimizer.zero_grad()
            inputs, targets = batch(rank, number)
            nn.functional.cross_entropy(module(inputs), targets).backward()
            for parameter in module.parameters():
                if parameter.grad is not None:
                    summed[parameter] = summed.get(parameter, 0) + parameter.grad.double()
        for parameter, gradient in summed.items():
            parameter.grad = (gradient / world_size).to(parameter.dtype)
        optimizer.step()
    return module


def apart(module: nn.Module, other: nn.Module, eps: float = 0.0) -> float:
    """The largest distance of two parameters, relative to the larger's size; checks dtypes.

    Args:
        module, other: of the same parameters.
        eps: what of that size is the unit, at least that of the parameter's dtype.
    """
    largest = 0.0
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        if one.numel() and one.is_floating_point():
            unit = max(eps, torch.finfo(one.dtype).eps) * max(one.abs().max().item(), two.abs().max().item())
            largest = max(largest, (one.double() - two.double()).abs().max().item() / unit)
    return largest
