"""What the tests of the presets share: tensors of a small network, and one step over them in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator
from scaling.bucket import BucketLayout
from scaling.process_group import InProcessGroup, run_in_process

# One tensor for each tier of tf_spec's default and one without elements; odd sizes; a filter of four axes.
NETWORK = BucketLayout.of(
    [
        ("conv.weight", (9, 3, 5, 5)),
        ("conv.bias", (9,)),
        ("nothing.weight", (0, 7)),
        ("fc.weight", (51, 73)),
        ("fc.bias", (51,)),
        ("wide.weight", (257, 263)),
        ("wide.bias", (257,)),
    ]
)


@dataclass
class RankOutcome:
    """What one rank has after `aggregate`, and what it sent.

    Attributes:
        mean: a copy of what `aggregate` returned, None where it returned none.
        owned: the spans that the mean is valid in.
        parameters: after `distribute`, where owners stepped; each then starts with the mean as parameters.
        aggregate_traffic, distribute_traffic: (bytes, messages).
    """

    mean: Tensor | None
    owned: list[tuple[int, int]]
    parameters: Tensor | None
    aggregate_traffic: tuple[int, int]
    distribute_traffic: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return self.aggregate_traffic[0] + self.distribute_traffic[0]


def gradients_for(world_size: int, layout: BucketLayout, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed + 100 * world_size)
    return [torch.randn(layout.num_elements, generator=generator) for _ in range(world_size)]


def one_step(aggregator: Aggregator[Any], world_size: int, layout: BucketLayout) -> list[RankOutcome]:
    gradients = gradients_for(world_size, layout)

    def work(group: InProcessGroup) -> RankOutcome:
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        owned = aggregator.owned(state)

        def traffic() -> tuple[int, int]:
            taken = (group.meter.bytes_sent, group.meter.messages_sent)
            group.meter.reset()
            return taken

        group.meter.reset()
        mean = aggregator.aggregate(state, gradients[group.rank].clone())
        group.barrier()
        mean = None if mean is None else mean.clone()
        aggregated, parameters = traffic(), None
        if aggregator.site(layout) in ("root", "owner"):
            parameters = torch.full((layout.num_elements,), float("nan"))
            for start, stop in owned:
                assert mean is not None, "who owns elements has their mean"
                parameters[start:stop] = mean[start:stop]
            aggregator.distribute(state, parameters)
        if aggregator.site(layout) in HOST_SITES:
            group.meter.count(4 * layout.num_elements)  # the update brings the parameters back
        return RankOutcome(mean, owned, parameters, aggregated, traffic())

    return run_in_process(world_size, work)


@dataclass
class Step:
    """What one rank has after a step: copies of the result, of what is withheld, and of `kept`."""

    result: Tensor
    withheld: Tensor | None
    kept: dict[str, Tensor]
    num_bytes: int
    num_messages: int


def steps_of(
    aggregator: Aggregator[Any],
    world_size: int,
    layout: BucketLayout,
    gradient: Callable[[int, int], Tensor],
    num_steps: int = 1,
    keep: Sequence[str] = (),
) -> list[list[Step]]:
    """[rank][step], of `gradient(rank, step)`; `keep` names tensors of the state."""

    def work(group: InProcessGroup) -> list[Step]:
        state = aggregator.start(layout, group, torch.float32, torch.device("cpu"))
        taken = []
        for number in range(num_steps):
            group.meter.reset()
            result = aggregator.aggregate(state, gradient(group.rank, number).clone())
            assert result is not None, "every rank has the mean"
            result = result.clone()
            state.check()
            kept = {name: getattr(state, name).clone() for name in keep}
            sent = group.meter.bytes_sent, group.meter.messages_sent
            taken.append(Step(result, state.withheld(), kept, *sent))
        return taken

    return run_in_process(world_size, work)


@pytest.fixture
def network() -> BucketLayout:
    """Tensors of a small network."""
    return NETWORK


@pytest.fixture
def step() -> Callable[..., list[RankOutcome]]:
    """step(aggregator, world_size, layout): every rank's outcome."""
    return one_step


@pytest.fixture
def mean_of() -> Callable[[int, BucketLayout], Tensor]:
    """mean_of(world_size, layout): the mean, in float64, of the gradients that `step` takes."""

    def mean(world_size: int, layout: BucketLayout) -> Tensor:
        return torch.stack(gradients_for(world_size, layout)).double().mean(0)

    return mean
