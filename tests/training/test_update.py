"""Where the step is taken changes nothing: every site is torch's SGD, and momentum lives there alone."""

import math
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch

from scaling.aggregators.base import HOST_SITES
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
from scaling.training.update import update_at
from tests.training.small import CPU, flat, perceptron

NUM_STEPS = 10
WORLD_SIZES = [1, 2, 3, 4]
NUM_PARAMETERS = 58

RULES, DECAYS = [(0.0, False), (0.9, False), (0.9, True)], (0.0, 0.01)
SETTINGS = [SgdSettings(0.1, momentum, decay, nesterov) for momentum, nesterov in RULES for decay in DECAYS]
ADAM = AdamSettings(0.01, weight_decay=0.1, beta1=0.8, beta2=0.99, epsilon=1e-6)
ADAMW = AdamSettings(0.01, weight_decay=0.1, decoupled=True)


def scheduled(label, site, made) -> type[Scheduled]:
    """Aggregators of a schedule, made(world_size, layout), that step at that site."""
    own = {"name": label, "update_site": site, "schedule": lambda _, size, layout: made(size, layout)}
    return dataclass(frozen=True)(type(label, (Scheduled,), own))


StarRoot = scheduled("star_root", "root", lambda size, _: star(size))
TreeRoot = scheduled("tree_root", "root", lambda size, _: tree(size))
RingOwners = scheduled("ring_owners", "owner", lambda size, _: ring(size))
TensorOwners = scheduled(
    "tensor_owners",
    "owner",
    lambda size, layout: sharded_owners(size, [math.prod(shape) for shape in layout.shapes]),
)
REPLICAS = [Ring(transport="sends"), Ring(transport="peer_memory")]
OWNERS = (StarRoot, TreeRoot, TensorOwners, RingOwners)
ELSEWHERE = [
    *(cls(transport=transport) for cls in OWNERS for transport in ("sends", "peer_memory")),
    *(HostSerial(), HostSerial(num_chunks=5), TorchCpu()),
]


def small_replica() -> FlatReplica:
    return FlatReplica(perceptron(7, 5, 3))


TARGETS = torch.arange(8) % 3


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradients(world_size: int) -> torch.Tensor:
    """[step, rank, parameter] values."""
    return drawn(4, NUM_STEPS, world_size, NUM_PARAMETERS)


class Training:
    """A replica, an aggregator and its update, as EagerStep puts them together."""

    def __init__(self, aggregator, settings: SgdSettings, group: InProcessGroup) -> None:
        self.replica, self.aggregator = small_replica(), aggregator
        (bucket,) = self.replica.buckets
        self.state = aggregator.start(bucket.layout, group, torch.float32, CPU)
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
    values = small_replica().parameters.detach().double()
    buffer, taken = None, []
    for mean in gradients(world_size).double().mean(dim=1):
        direction = mean + settings.weight_decay * values
        if settings.momentum:
            buffer = direction if buffer is None else settings.momentum * buffer + direction
            direction = direction + settings.momentum * buffer if settings.nesterov else buffer
        values = values - settings.learning_rate * direction
        taken.append(values)
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

    layout = small_replica().layout
    stated = [aggregator.wire_bytes(layout, world_size, rank, 4) for rank in range(world_size)]
    assert run_in_process(world_size, work) == stated
    if aggregator.site(layout) in HOST_SITES:
        assert stated == [2 * 4 * NUM_PARAMETERS] * world_size  # there and back


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("aggregator", "kept_by"),
    [
        *((one, "every replica") for one in REPLICAS),
        *((one, "rank 0") for one in (StarRoot(), TreeRoot(), HostSerial())),
        *((one, "owners") for one in (TensorOwners(), RingOwners(), TorchCpu())),
    ],
    ids=lambda one: one if isinstance(one, str) else one.label(),
)
def test_momentum_is_kept_by_every_replica_by_rank_0_or_shared_by_owners(aggregator, kept_by, world_size):
    def work(group: InProcessGroup) -> int:
        training = Training(aggregator, SETTINGS[-1], group)
        training.step(torch.ones(NUM_PARAMETERS))
        optimizer = training.update._optimizer
        states = optimizer.state.values() if optimizer else []
        return sum(state["momentum_buffer"].numel() for state in states)

    kept = run_in_process(world_size, work)
    if kept_by == "owners":
        assert sum(kept) == NUM_PARAMETERS
        assert sum(bool(elements) for elements in kept) == min(world_size, 4)
    else:
        on_others = NUM_PARAMETERS if kept_by == "every replica" else 0
        assert kept == [NUM_PARAMETERS] + [on_others] * (world_size - 1)


EVERYWHERE = pytest.mark.parametrize("aggregator", [*REPLICAS, *ELSEWHERE], ids=lambda one: one.label())


@pytest.mark.parametrize("world_size", [1, 3])
@EVERYWHERE
class TestReplica:
    def test_module_sees_the_new_parameters(self, aggregator, world_size):
        def work(group: InProcessGroup) -> bool:
            training = Training(aggregator, SETTINGS[0], group)
            new = training.step(torch.ones(NUM_PARAMETERS))
            seen = flat(training.replica.module)
            return torch.equal(seen, new) and not torch.equal(seen, small_replica().parameters)

        assert all(run_in_process(world_size, work))

    def test_buffers_of_the_aggregator_are_taken_for_gradients_and_parameters(self, aggregator, world_size):
        """And a step in them equals one on the replica's own, to rounding."""

        def work(group: InProcessGroup) -> torch.Tensor:
            replica = small_replica()
            step = EagerStep(replica, aggregator, SETTINGS[-1], group)
            (part,) = step._parts
            wanted = part.state.gradient_buffer, part.state.parameter_buffer
            for placed, buffer in zip((replica.gradient, replica.parameters), wanted, strict=True):
                assert buffer is None or placed.data_ptr() == buffer.data_ptr()
            for batch in drawn(group.rank, 3, 8, 7):
                step(batch, TARGETS)
            return replica.parameters.clone()

        def reference(group: InProcessGroup) -> torch.Tensor:
            replica = small_replica()
            optimizer = SETTINGS[-1].optimizer(list(replica.module.parameters()))
            for batch in torch.cat([drawn(rank, 3, 8, 7) for rank in range(world_size)], dim=1):
                replica.backward(replica.forward(batch, TARGETS.repeat(world_size)))
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
        def run(step: EagerStep, first: int, last: int) -> torch.Tensor:
            for batch in drawn(group.rank, 6, 8, 7)[first:last]:
                step(batch, TARGETS)
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
        state = aggregator.start(replica.layout, group, torch.float32, CPU)
        update = update_at(*replica.buckets, SETTINGS[0], aggregator, state)
        update.apply(aggregator.aggregate(state, torch.zeros(NUM_PARAMETERS)))
        return replica.parameters

    expected = small_replica().parameters
    assert all(torch.equal(result, expected) for result in run_in_process(3, work))


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [
        (Ring(), ["update"]),
        *((one, ["update", "communicate"]) for one in (StarRoot(), TensorOwners())),
        *((one, ["update", "wait", "h2d_result"]) for one in (HostSerial(), TorchCpu())),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_phases_are_marked(aggregator, expected):
    def work(group: InProcessGroup) -> list[str]:
        marked = []
        training = Training(aggregator, SETTINGS[0], group)
        training.step(torch.ones(NUM_PARAMETERS), lambda name: nullcontext(marked.append(name)))
        return marked

    assert run_in_process(2, work) == [expected] * 2


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
