"""What the tests of the presets share: tensors of a small network, and one step over them in one process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling.aggregators.base import HOST_SITES, Aggregator
from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.process_group import InProcessGroup, run_in_process
from scaling.workloads.registry import build_module, create_model

CPU = torch.device("cpu")

CODECS: dict[str, dict[str, object]] = {
    **{name: {} for name in ("one_bit", "one_bit_flat", "qsgd", "fp16", "bf16")},
    **{name: {"chunk_elements": 64} for name in ("one_bit_momentum", "sign", "ef_sign")},
    "one_bit_flat small chunks": {"chunk_elements": 64},
    "two_bit": {"threshold": 0.7},
    "top_k": {"density": 0.1},
    "top_k with momentum": {"density": 0.1, "momentum_correction": 0.9},
    "power_sgd": {"approximation_size": 2},
    "power_sgd from cold": {"warm_start": False},
}
"""Lossy aggregators, whose names are the first words, and their parameters."""

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


def made(label: str) -> Aggregator[Any]:
    return create(label.split()[0], CODECS[label])


def layout_of(name: str) -> BucketLayout:
    """The parameters of a model in one bucket."""
    model: Any = create_model(name)
    with torch.device("meta"):
        module = build_module(model, model.shape)
    return BucketLayout.of([(name, tuple(one.shape)) for name, one in module.named_parameters()])


def of_states(
    aggregator: Aggregator[Any], layout: BucketLayout, world_size: int, seen: Callable[[Any], Any]
) -> list[Any]:
    """[rank] -> what `seen` tells of the state that it starts with."""

    def work(group: InProcessGroup) -> Any:
        return seen(aggregator.start(layout, group, torch.float32, CPU))

    return run_in_process(world_size, work)


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
        state = aggregator.start(layout, group, torch.float32, CPU)
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
        state = aggregator.start(layout, group, torch.float32, CPU)
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


def mean_of(world_size: int, layout: BucketLayout) -> Tensor:
    """In float64, of the gradients that `one_step` takes."""
    return torch.stack(gradients_for(world_size, layout)).double().mean(0)
