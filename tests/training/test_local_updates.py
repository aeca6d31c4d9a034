"""Local updates: blocks of steps of each rank's own, and what their end makes of the ranks' models."""

import dataclasses
import functools

import pytest
import torch

from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.ring import Ring
from scaling.errors import CheckpointError, ExchangeError
from scaling.measure.clock import MonotonicClock
from scaling.process_group import run_in_process
from scaling.study.variants import can_be_local
from scaling.training import step_check
from scaling.training.convergence import TrainingPlan, train
from scaling.training.exchange_check import require_equal
from scaling.training.gradients import GradientSettings
from scaling.training.local_updates import LocalStep, OneBlock, end_block
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.outer_updates import outer_update
from scaling.training.replica import FlatReplica
from scaling.training.step_check import StepCheck
from scaling.workloads.base import Split
from tests.training import small
from tests.training.small import batch_of, eager, perceptron

PLAIN = SgdSettings(0.05)
MOMENTUM = SgdSettings(0.05, momentum=0.9, weight_decay=1e-3)
ADAMW = AdamSettings(0.01, decoupled=True)
LOCAL = [one for one in map(create, BUILT_IN) if can_be_local("eager", one) and not one.overlapped_only]
AGGREGATORS = [one for one in LOCAL if one.library is None]  # a library carries messages between processes
EVERY, BLOCKS = 3, 4


batches = functools.partial(small.batches, count=EVERY * BLOCKS)
network = functools.partial(perceptron, 12, 20, 6)


def local(group, settings=PLAIN, every=EVERY, outer="average", aggregator="ring", wire=None, **numbers):
    update = outer_update(outer, group.world_size, **numbers)
    made = create(aggregator) if isinstance(aggregator, str) else aggregator
    chosen = (FlatReplica(network()), made, settings, group, GradientSettings(wire=wire))
    return LocalStep(*chosen, sync_every=every, outer=update)


def take(step, rank, count=EVERY):
    for batch in batches(rank, count=count):
        step(*batch)
    return step


def flat(step) -> torch.Tensor:
    return step.replica.parameters.detach().clone()


def models_after_blocks(world_size=3, **chosen) -> list[list[torch.Tensor]]:
    """Of each rank its model after each block."""

    def work(group):
        step, models = local(group, **chosen), []
        for number, batch in enumerate(batches(group.rank), 1):
            step(*batch)
            if number % EVERY == 0:
                models.append(flat(step))
        return models

    return run_in_process(world_size, work)


def moved(start: torch.Tensor, rank: int, block: int, settings=PLAIN) -> torch.Tensor:
    """What a rank alone moves the model by in a block, with SGD that keeps nothing; float64."""

    def work(group):
        step = eager(network(), "none", settings, group)
        step.replica.parameters.copy_(start)
        for batch in batches(rank)[block * EVERY : (block + 1) * EVERY]:
            step(*batch)
        return flat(step).double() - start.double()

    return run_in_process(1, work)[0]


class TestLaws:
    """Of every aggregator that planning lets have blocks; those of 16 bits are exact to theirs."""

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("world_size", [1, 2, 4])
    @pytest.mark.parametrize("settings", [PLAIN, MOMENTUM], ids=["plain", "momentum"])
    @pytest.mark.parametrize("aggregator", AGGREGATORS, ids=lambda one: one.name)
    def test_blocks_of_one_step_of_sgd_are_plain_steps(self, aggregator, settings, world_size):
        def work(group):
            block = local(group, settings, every=1, aggregator=aggregator)
            step = eager(network(), aggregator, settings, group)
            for batch in batches(group.rank):
                block(*batch)
                step(*batch)
            return flat(block), flat(step)

        for blocks, steps in run_in_process(world_size, work):
            assert torch.allclose(blocks, steps, rtol=0, atol=5e-3 if aggregator.lossy else 1e-6)
            assert not torch.allclose(blocks, FlatReplica(network()).parameters, atol=1e-2)

    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("settings", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
    @pytest.mark.parametrize("outer", ["average", "block_momentum", "nesterov", "cntk_block_momentum"])
    @pytest.mark.parametrize("aggregator", AGGREGATORS, ids=lambda one: one.name)
    def test_replicas_have_the_same_bits_after_each_block(self, aggregator, outer, settings):
        first, *others = models_after_blocks(aggregator=aggregator, outer=outer, settings=settings)
        assert len({tuple(model[:8].tolist()) for model in first}) == BLOCKS
        assert all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))

    def test_replicas_differ_inside_a_block_and_nothing_is_sent(self):
        def work(group):
            step = take(local(group), group.rank, EVERY - 1)
            inside = flat(step), group.meter.bytes_sent
            step(*batches(group.rank)[0])
            return *inside, flat(step), group.meter.bytes_sent

        (first, sent, _, sent_after), (second, *_) = run_in_process(2, work)
        assert (first - second).abs().max() > 1e-3
        assert sent == 0
        assert sent_after == Ring().wire_bytes(FlatReplica(network()).layout, 2, 0, 4) == 4 * first.numel()

    @pytest.mark.parametrize("settings", [PLAIN, MOMENTUM, ADAMW], ids=["plain", "momentum", "adamw"])
    def test_average_is_the_mean_of_what_the_ranks_alone_come_to(self, settings):
        start = FlatReplica(network()).parameters
        expected = start.double() + sum(moved(start, rank, 0, settings) for rank in range(3)) / 3
        (models, *_) = models_after_blocks(settings=settings)
        assert torch.allclose(models[0].double(), expected, rtol=0, atol=1e-6)

    def test_wire_of_16_bits_changes_what_was_moved_by_its_rounding_alone(self):
        (exact, *_), (narrow, *_) = models_after_blocks(), models_after_blocks(wire=torch.bfloat16)
        start = FlatReplica(network()).parameters
        far = (exact[0] - narrow[0]).abs().max()
        assert 0 < far < 2**-7 * (exact[0] - start).abs().max()


class TestOuterUpdates:
    """Each against its formula, step by step in float64, over all blocks."""

    def follow(self, update, **chosen) -> None:
        (models, *_) = models_after_blocks(**chosen)
        model, state = FlatReplica(network()).parameters.double(), 0.0
        for block, found in enumerate(models):
            mean = sum(moved(model.float(), rank, block) for rank in range(3)) / 3
            model, state = update(model, mean, state)
            assert torch.allclose(found.double(), model, rtol=0, atol=3e-6), f"block {block}"

    @pytest.mark.parametrize(
        ("momentum", "rate", "numbers"),
        [(1 - 1 / 3, 1.0, {}), (0.4, 0.8, {"momentum": 0.4, "learning_rate": 0.8})],
    )
    def test_block_momentum(self, momentum, rate, numbers):
        def update(model, mean, delta):
            delta = momentum * delta + rate * mean
            return model + delta, delta

        self.follow(update, outer="block_momentum", **numbers)

    def test_nesterov_as_diloco_has_it(self):
        def update(model, mean, velocity):
            velocity = 0.9 * velocity - mean
            return model - 0.7 * (-mean + 0.9 * velocity), velocity

        self.follow(update, outer="nesterov")

    def test_nesterov_is_also_bmufs_own_form(self):
        """W(t) = W(t-1) + D(t), D(t) = m D(t-1) + z (mean - begun); ranks begin at W(t) + m D(t)."""

        def update(begun, mean, state):
            model, delta = state if isinstance(state, tuple) else (begun, torch.zeros_like(begun))
            delta = 0.5 * delta + 0.9 * mean
            return model + delta + 0.5 * delta, (model + delta, delta)

        self.follow(update, outer="nesterov", momentum=0.5, learning_rate=0.9)

    def test_cntk_block_momentum_line_by_line(self):
        def update(previous, mean, smoothed):
            block_gradient = -3 * mean  # the sum over ranks of previous - current
            smoothed = (1 - 1 / 3) * smoothed + (1 - (1 - 1 / 3)) * 1.0 * block_gradient
            current = previous - smoothed
            return current - (1 - 1 / 3) * smoothed, smoothed

        self.follow(update, outer="cntk_block_momentum")

    def test_cntk_model_averaging_is_the_average(self):
        (ours, *_), (cntk, *_) = models_after_blocks(), models_after_blocks(outer="cntk_model_averaging")
        assert all(torch.equal(*pair) for pair in zip(ours, cntk, strict=True))


class TestOptimizerState:
    def states(self, outer, settings):
        def work(group):
            return take(local(group, settings, outer=outer), group.rank).state_dict()["own"]["update"]

        return run_in_process(2, work)

    @pytest.mark.parametrize("settings", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
    @pytest.mark.parametrize("outer", ["average", "block_momentum", "nesterov", "cntk_model_averaging"])
    def test_it_stays_on_its_rank(self, outer, settings):
        first, second = self.states(outer, settings)
        moments = [name for name in first if not name.startswith("step/")]
        assert all(bool(first[name].any()) and not torch.equal(first[name], second[name]) for name in moments)

    @pytest.mark.parametrize("settings", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
    def test_cntks_block_momentum_begins_each_block_without_it(self, settings):
        for state in self.states("cntk_block_momentum", settings):
            assert state
            assert not any(bool(values.any()) for values in state.values())

    def test_both_optimizers_count_as_memory(self):
        def work(group):
            step = take(local(group, MOMENTUM, outer="block_momentum"), group.rank)
            return step.optimizer_state_bytes / step.replica.parameters.nbytes

        assert run_in_process(2, work) == [2.0, 2.0]


class TestCheckpoint:
    @pytest.mark.parametrize("settings", [MOMENTUM, ADAMW], ids=["momentum", "adamw"])
    @pytest.mark.parametrize("aggregator", ["ring", "host_parallel"])
    def test_another_step_goes_on_bit_for_bit(self, aggregator, settings):
        def work(group):
            chosen = {"settings": settings, "outer": "nesterov", "aggregator": aggregator}
            step, other = (local(group, **chosen) for _ in range(2))
            other.load_state_dict(take(step, group.rank, 2 * EVERY).state_dict())
            return [flat(take(one, group.rank, 2 * EVERY)) for one in (step, other)]

        for uncut, restored in run_in_process(2, work):
            assert torch.equal(uncut, restored)

    def test_inside_a_block_there_is_none(self):
        def work(group):
            step = take(local(group), 0, 1)
            with pytest.raises(CheckpointError, match="not ended"):
                step.state_dict()

        run_in_process(1, work)


class TestTraining:
    def test_an_epoch_ends_its_last_block_so_that_all_ranks_evaluate_one_model(self):
        split = Split(*batch_of(0, 140))

        def work(group):
            step, rows = local(group, MOMENTUM, every=4), []  # 7 steps an epoch
            plan = TrainingPlan(20, epochs=2, seed=0)
            for row in train(step, split, split, plan, group, MonotonicClock(), lambda seconds: seconds):
                require_equal(dict(step.replica.module.named_parameters()), group)
                rows.append(row)
            return rows

        (first, second) = run_in_process(2, work)[0]
        layout = FlatReplica(network()).layout
        assert first["bytes_sent"] == second["bytes_sent"] == 2 * Ring().wire_bytes(layout, 2, 0, 4)
        assert second["train_loss"] < first["train_loss"]

    def test_ending_a_block_twice_exchanges_once(self):
        def work(group):
            step = take(local(group), group.rank, 1)
            end_block(step)
            sent = group.meter.bytes_sent
            end_block(step)
            return sent, group.meter.bytes_sent

        for sent, after in run_in_process(2, work):
            assert sent == after > 0


@dataclasses.dataclass(frozen=True)
class WrongRing(Ring):
    """Rank 1 gets a mean that is a little too large."""

    name = "wrong_ring"

    def aggregate(self, state, gradient, phase=lambda _: None):
        mean = super().aggregate(state, gradient, phase)
        return mean * 1.01 if state.group.rank == 1 else mean


class TestOwnCheck:
    def check(self, aggregator="ring", settings=MOMENTUM, spoil=lambda step: None, **chosen):
        def work(group):
            step = local(group, settings, aggregator=aggregator, **chosen)
            before = step.state_dict()
            made = create(aggregator) if isinstance(aggregator, str) else aggregator
            checked = StepCheck(OneBlock(step), made, step.outer.settings, group)
            spoil(step)
            checked.replicas()
            checked.steps(batches(group.rank), 4)
            return checked.findings.as_dict(), step.state_dict()["module"], before["module"]

        return run_in_process(2, work)

    @pytest.fixture(autouse=True)
    def no_limit(self, monkeypatch):
        monkeypatch.setattr(step_check, "MAX_SECONDS", float("inf"))

    @pytest.mark.parametrize("outer", ["average", "block_momentum", "nesterov", "cntk_block_momentum"])
    @pytest.mark.parametrize("aggregator", ["all_reduce", "host_parallel", "zero1", "fp16"])
    def test_right_blocks_pass_and_leave_no_trace(self, aggregator, outer):
        for found, after, before in self.check(aggregator, outer=outer):
            assert (found["steps"], found["exchanges"]) == (4, 4)
            assert found["largest_error_ratio"] <= 1
            assert all(torch.equal(after[name], before[name]) for name in before)

    def test_a_wrong_mean_is_found(self):
        with pytest.raises(ExchangeError, match="wrong_ring"):
            self.check(WrongRing())

    def test_a_wrong_outer_update_is_found(self):
        def spoil(step):
            step._parts[0].update.set_learning_rate(0.9)

        with pytest.raises(ExchangeError, match="the update is not SGD's"):
            self.check(spoil=spoil)
