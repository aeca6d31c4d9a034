"""Where the step is taken changes nothing: every site is torch's SGD, and momentum lives there alone."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from scaling.aggregators.base import HOST_SITES, Aggregator
from scaling.aggregators.host import HostSerial
from scaling.aggregators.presets.torch7 import TorchCpu
from scaling.aggregators.ring import Ring
from scaling.aggregators.schedule import Scheduled
from scaling.collectives.owners import sharded_owners, star
from scaling.collectives.ring import ring
from scaling.collectives.tree import tree
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep
from scaling.training.update import SiteUpdate, update_at

NUM_STEPS = 10
WORLD_SIZES = [1, 2, 3, 4]
NUM_PARAMETERS = 58

SETTINGS = [
    SgdSettings(0.1),
    SgdSettings(0.1, momentum=0.9),
    SgdSettings(0.1, weight_decay=0.01),
    SgdSettings(0.1, momentum=0.9, weight_decay=0.01),
    SgdSettings(0.1, momentum=0.9, nesterov=True),
    SgdSettings(0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
]
ADAM = AdamSettings(0.01, weight_decay=0.1, beta1=0.8, beta2=0.99, epsilon=1e-6)
ADAMW = AdamSettings(0.01, weight_decay=0.1, decoupled=True)


@dataclass(frozen=True)
class StarRoot(Scheduled):
    name = "star_root"
    update_site = "root"

    def schedule(self, world_size, layout):
        return star(world_size)


@dataclass(frozen=True)
class TreeRoot(Scheduled):
    name = "tree_root"
    update_site = "root"

    def schedule(self, world_size, layout):
        return tree(world_size)


@dataclass(frozen=True)
class TensorOwners(Scheduled):
    name = "tensor_owners"
    update_site = "owner"

    def schedule(self, world_size, layout):
        return sharded_owners(world_size, [math.prod(shape) for shape in layout.shapes])


@dataclass(frozen=True)
class RingOwners(Scheduled):
    name = "ring_owners"
    update_site = "owner"

    def schedule(self, world_size, layout):
        return ring(world_size)


REPLICAS = [Ring(transport="sends"), Ring(transport="peer_memory")]
OWNERS = [
    cls(transport=transport)
    for cls in (StarRoot, TreeRoot, TensorOwners, RingOwners)
    for transport in ("sends", "peer_memory")
]
HOSTS = [HostSerial(), HostSerial(num_chunks=5), TorchCpu()]
ELSEWHERE: list[Aggregator[Any]] = [*OWNERS, *HOSTS]


def small_replica() -> FlatReplica:
    torch.manual_seed(3)
    return FlatReplica(nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)))


def gradients(world_size: int) -> torch.Tensor:
    """[step, rank, parameter] values."""
    generator = torch.Generator().manual_seed(4)
    return torch.randn((NUM_STEPS, world_size, NUM_PARAMETERS), generator=generator)


class Training:
    """A replica, an aggregator and its update, as EagerStep puts them together."""

    def __init__(self, aggregator: Aggregator[Any], settings: SgdSettings, group: InProcessGroup) -> None:
        self.replica, self.aggregator = small_replica(), aggregator
        (bucket,) = self.replica.buckets
        flat = bucket.parameters
        self.state = aggregator.start(bucket.layout, group, flat.dtype, flat.device)
        if self.state.gradient_buffer is not None:
            bucket.place_gradient(self.state.gradient_buffer)
        if self.state.parameter_buffer is not None:
            bucket.place_parameters(self.state.parameter_buffer)
        self.update = update_at(bucket, settings, aggregator, self.state)

    def step(self, gradient: torch.Tensor, phase=lambda _: nullcontext()) -> torch.Tensor:
        with torch.no_grad():
            self.replica.gradient.copy_(gradient)
            mean = self.aggregator.aggregate(self.state, self.replica.gradient)
            self.update.apply(mean, phase)
        return self.replica.parameters.clone()


def parameters_after(aggregator, settings: SgdSettings, world_size: int) -> list[list[torch.Tensor]]:
    """[rank][step] parameters."""
    values = gradients(world_size)

    def work(group: InProcessGroup) -> list[torch.Tensor]:
        training = Training(aggregator, settings, group)
        return [training.step(values[step, group.rank]) for step in range(NUM_STEPS)]

    return run_in_process(world_size, work)


def sgd_on_the_mean(settings: SgdSettings, world_size: int) -> list[torch.Tensor]:
    """[step] parameters in double precision, by the formulas in the documentation of torch.optim.SGD.

    They are written out here, so that a setting that gets lost on its way to the optimizer is missed.
    """
    flat = small_replica().parameters.detach().double()
    buffer, taken = None, []
    for mean in gradients(world_size).double().mean(dim=1):
        direction = mean + settings.weight_decay * flat
        if settings.momentum:
            buffer = direction if buffer is None else settings.momentum * buffer + direction
            direction = direction + settings.momentum * buffer if settings.nesterov else buffer
        flat = flat - settings.learning_rate * direction
        taken.append(flat)
    return taken


@pytest.mark.sampled(8)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("aggregator", [*REPLICAS, *ELSEWHERE], ids=lambda one: one.label())
def test_every_site_takes_torchs_step_and_leaves_the_same_bits_on_all_ranks(aggregator, settings, world_size):
    expected = sgd_on_the_mean(settings, world_size)
    first, *others = parameters_after(aggregator, settings, world_size)
    for step in range(NUM_STEPS):
        torch.testing.assert_close(first[step].double(), expected[step], rtol=1e-5, atol=1e-6)
        assert all(torch.equal(other[step], first[step]) for other in others), step


@pytest.mark.parametrize("aggregator", ELSEWHERE, ids=lambda one: one.label())
def test_two_ranks_gradients_have_one_sum_and_so_the_same_bits_at_every_site(aggregator):
    on_replicas = parameters_after(REPLICAS[0], SETTINGS[-1], 2)
    for rank, taken in enumerate(parameters_after(aggregator, SETTINGS[-1], 2)):
        assert all(torch.equal(a, b) for a, b in zip(taken, on_replicas[rank], strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize("aggregator", [*REPLICAS, *ELSEWHERE], ids=lambda one: one.label())
def test_a_step_meters_what_the_aggregator_states(aggregator, world_size):
    def work(group: InProcessGroup) -> int:
        training = Training(aggregator, SETTINGS[0], group)
        group.meter.reset()
        training.step(gradients(world_size)[0, group.rank])
        return group.meter.bytes_sent

    layout, ranks = small_replica().layout, range(world_size)
    stated = [aggregator.wire_bytes(layout, world_size, rank, 4) for rank in ranks]
    assert run_in_process(world_size, work) == stated
    if aggregator.site(layout) in HOST_SITES:
        assert stated == [2 * 4 * NUM_PARAMETERS] * world_size  # there and back


def momentum_elements(update: SiteUpdate) -> int:
    """Elements of momentum that this rank keeps."""
    optimizer = update._optimizer
    return sum(of_one["momentum_buffer"].numel() for of_one in optimizer.state.values()) if optimizer else 0


@pytest.mark.parametrize("world_size", WORLD_SIZES)
class TestMomentum:
    def kept(self, aggregator, world_size) -> list[int]:
        def work(group: InProcessGroup) -> int:
            training = Training(aggregator, SETTINGS[-1], group)
            training.step(torch.ones(NUM_PARAMETERS))
            return momentum_elements(training.update)

        return run_in_process(world_size, work)

    @pytest.mark.parametrize("aggregator", REPLICAS, ids=lambda one: one.label())
    def test_every_replica_keeps_all_of_it(self, aggregator, world_size):
        assert self.kept(aggregator, world_size) == [NUM_PARAMETERS] * world_size

    @pytest.mark.parametrize("aggregator", [StarRoot(), TreeRoot(), HostSerial()], ids=lambda one: one.name)
    def test_root_and_serial_host_keep_it_on_rank_0(self, aggregator, world_size):
        assert self.kept(aggregator, world_size) == [NUM_PARAMETERS] + [0] * (world_size - 1)

    @pytest.mark.parametrize(
        "aggregator", [TensorOwners(), RingOwners(), TorchCpu()], ids=lambda one: one.name
    )
    def test_owners_share_it(self, aggregator, world_size):
        kept = self.kept(aggregator, world_size)
        assert sum(kept) == NUM_PARAMETERS
        assert sum(bool(elements) for elements in kept) == min(world_size, 4)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("aggregator", [*REPLICAS, *ELSEWHERE], ids=lambda one: one.label())
class TestReplica:
    def test_module_sees_the_new_parameters(self, aggregator, world_size):
        def work(group: InProcessGroup) -> bool:
            training = Training(aggregator, SETTINGS[0], group)
            new = training.step(torch.ones(NUM_PARAMETERS))
            seen = torch.cat([p.detach().reshape(-1) for p in training.replica.module.parameters()])
            return torch.equal(seen, new) and not torch.equal(seen, small_replica().parameters)

        assert all(run_in_process(world_size, work))

    def test_buffers_of_the_aggregator_are_taken_for_gradients_and_parameters(self, aggregator, world_size):
        """And a step in them equals one on the replica's own, to rounding."""

        def work(group: InProcessGroup) -> torch.Tensor:
            replica = small_replica()
            step = EagerStep(replica, aggregator, SETTINGS[-1], group)
            (part,) = step._parts
            for placed, wanted in (
                (replica.gradient, part.state.gradient_buffer),
                (replica.parameters, part.state.parameter_buffer),
            ):
                assert wanted is None or placed.data_ptr() == wanted.data_ptr()
            generator = torch.Generator().manual_seed(group.rank)
            for _ in range(3):
                step(torch.randn(8, 7, generator=generator), torch.arange(8) % 3)
            return replica.parameters.clone()

        def reference(group: InProcessGroup) -> torch.Tensor:
            replica = small_replica()
            optimizer = SETTINGS[-1].optimizer(list(replica.module.parameters()))
            generators = [torch.Generator().manual_seed(rank) for rank in range(world_size)]
            for _ in range(3):
                batches = [torch.randn(8, 7, generator=generator) for generator in generators]
                targets = (torch.arange(8) % 3).repeat(world_size)
                replica.backward(replica.forward(torch.cat(batches), targets))
                optimizer.step()
            return replica.parameters.clone()

        expected = run_in_process(1, reference)[0]
        for result in run_in_process(world_size, work):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("settings", [SETTINGS[-1], ADAM, ADAMW], ids=["sgd", "adam", "adamw"])
@pytest.mark.parametrize("in_place", [True, False], ids=["same step", "new step"])
@pytest.mark.parametrize("aggregator", [*REPLICAS, *ELSEWHERE], ids=lambda one: one.label())
def test_step_that_is_saved_and_loaded_goes_on_with_the_same_bits(aggregator, in_place, settings, world_size):
    def work(group: InProcessGroup) -> bool:
        generator = torch.Generator().manual_seed(group.rank)
        batches = [torch.randn(8, 7, generator=generator) for _ in range(6)]

        def run(step: EagerStep, first: int, last: int) -> torch.Tensor:
            for batch in batches[first:last]:
                step(batch, torch.arange(8) % 3)
            return step.replica.parameters.clone()

        step = EagerStep(small_replica(), aggregator, settings, group)
        run(step, 0, 3)
        saved = step.state_dict()
        through = run(step, 3, 6)
        if not in_place:
            step = EagerStep(small_replica(), aggregator, settings, group)
        step.load_state_dict(saved)
        return torch.equal(run(step, 3, 6), through)

    assert all(run_in_process(world_size, work))


def test_step_that_is_loaded_as_it_began_begins_anew():
    def work(group: InProcessGroup) -> bool:
        training = Training(TensorOwners(), SETTINGS[-1], group)
        saved, parameters = training.update.state_dict(), training.replica.parameters.clone()
        first = training.step(torch.ones(NUM_PARAMETERS))
        training.update.load_state_dict(saved)
        training.replica.parameters.copy_(parameters)
        return saved == {} and torch.equal(training.step(torch.ones(NUM_PARAMETERS)), first)

    with torch.no_grad():
        assert all(run_in_process(3, work))


@pytest.mark.parametrize("aggregator", [StarRoot(), HostSerial()], ids=lambda one: one.name)
def test_step_starts_from_rank_0s_parameters_where_it_alone_takes_it(aggregator):
    def work(group: InProcessGroup) -> torch.Tensor:
        replica = small_replica()
        with torch.no_grad():
            replica.parameters.add_(group.rank)
        flat = replica.parameters
        state = aggregator.start(replica.layout, group, flat.dtype, flat.device)
        update = update_at(*replica.buckets, SETTINGS[0], aggregator, state)
        update.apply(aggregator.aggregate(state, torch.zeros(NUM_PARAMETERS)))
        return replica.parameters

    expected = small_replica().parameters
    assert all(torch.equal(result, expected) for result in run_in_process(3, work))


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [
        (Ring(), [["update"], ["update"]]),
        (StarRoot(), [["update", "communicate"], ["update", "communicate"]]),
        (TensorOwners(), [["update", "communicate"], ["update", "communicate"]]),
        (HostSerial(), [["update", "wait", "h2d_result"], ["update", "wait", "h2d_result"]]),
        (TorchCpu(), [["update", "wait", "h2d_result"], ["update", "wait", "h2d_result"]]),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_phases_are_marked(aggregator, expected):
    def work(group: InProcessGroup) -> list[str]:
        marked = []

        def phase(name: str):
            marked.append(name)
            return nullcontext()

        Training(aggregator, SETTINGS[0], group).step(torch.ones(NUM_PARAMETERS), phase)
        return marked

    assert run_in_process(2, work) == expected


def test_serial_host_steps_with_one_thread_and_gives_the_others_back(monkeypatch):
    set_to = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)

    def work(group: InProcessGroup) -> None:
        training = Training(HostSerial(), SETTINGS[0], group)
        set_to.clear()
        training.update.apply(torch.ones(NUM_PARAMETERS))

    run_in_process(1, work)
    assert set_to == [1, 2]


@pytest.mark.parametrize("aggregator", [Ring(), StarRoot(), HostSerial()], ids=lambda one: one.name)
def test_mean_missing_where_it_is_needed_is_our_own_mistake(aggregator):
    with pytest.raises(AssertionError, match="gets their mean gradient"):
        run_in_process(1, lambda group: Training(aggregator, SETTINGS[0], group).update.apply(None))
