"""1-bit Adam: Adam while it warms up, then compressed momentum whose error is fed back."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.conformance.drawn import check_drawn
from scaling.errors import StudyError
from scaling.process_group import run_in_process
from scaling.study.kinds.iteration import IterationKind, IterationPart
from tests.made import WORKLOAD

LAYOUT = BucketLayout.of([("weight", (40, 30)), ("bias", (70,))])
WARMUP, STEPS, RATE = 6, 14, 0.01


def made(warmup_steps=WARMUP):
    return create("one_bit_adam", {"warmup_steps": warmup_steps, "chunk_elements": 64})


def gradients(world_size: int) -> torch.Tensor:
    """[step, rank, element]"""
    generator = torch.Generator().manual_seed(1)
    common = torch.randn((STEPS, 1, LAYOUT.num_elements), generator=generator)
    return common + 0.3 * torch.randn((STEPS, world_size, LAYOUT.num_elements), generator=generator)


def results(world_size: int, aggregator, reload_at: int | None = None) -> torch.Tensor:
    """[rank, step, element]"""
    given = gradients(world_size)

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
        seen = []
        for step in range(STEPS):
            if step == reload_at:
                saved = state.state_dict()
                state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
                state.load_state_dict(saved)
            seen.append(aggregator.aggregate(state, given[step, group.rank].clone()).clone())
        return torch.stack(seen)

    return torch.stack(run_in_process(world_size, work))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_it_is_adam_until_the_warm_up_ends(world_size):
    parameter = torch.nn.Parameter(torch.zeros(LAYOUT.num_elements))
    adam = torch.optim.Adam([parameter], lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    seen = results(world_size, made())
    for step, mean in enumerate(gradients(world_size).mean(1)[:WARMUP]):
        before, parameter.grad = parameter.detach().clone(), mean
        adam.step()
        for result in seen[:, step]:
            torch.testing.assert_close(before - RATE * result, parameter.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_have_the_same_bits_and_feedback_loses_nothing(world_size):
    assert check_drawn(made(warmup_steps=2), world_size, num_examples=3)


def test_the_second_moment_is_frozen_behind_the_warm_up():
    """Gradients a hundred times as large change the step in proportion: Adam's own would not grow."""
    aggregator, given = made(), gradients(1)[:, 0]

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
        for gradient in given[:WARMUP]:
            aggregator.aggregate(state, gradient.clone())
        second = state.second.clone()
        results = [aggregator.aggregate(state, 100 * given[step].clone()).clone() for step in (7, 8)]
        return second, state.second, results

    ((before, after, (_, last)),) = run_in_process(1, work)
    assert torch.equal(before, after)
    assert last.abs().median() > 5.0


def test_an_element_without_a_gradient_in_the_warm_up_keeps_its_value():
    aggregator, given = made(), gradients(2)

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, torch.device("cpu"))
        own = given[:, group.rank].clone()
        own[:WARMUP, 5] = 0.0
        return torch.stack([aggregator.aggregate(state, gradient).clone() for gradient in own])

    for seen in run_in_process(2, work):
        assert not seen[:, 5].any()
        assert seen.abs().max() < 100


@pytest.mark.parametrize("at", [3, 10])
def test_it_goes_on_from_a_saved_state(at):
    assert torch.equal(results(2, made()), results(2, made(), reload_at=at))


def test_it_needs_a_warm_up_and_steps_that_compress_nothing_are_not_timed():
    with pytest.raises(StudyError, match="warmup_steps is 0; it needs one at least"):
        made(warmup_steps=0)
    keys = {"workloads": [WORKLOAD], "world_sizes": [2], "scaling": "strong", "aggregators": ["one_bit_adam"]}
    part = IterationPart.model_validate({**keys, "warmup": 20})
    IterationKind().check(part, [made(20)], [2], "cpu")
    with pytest.raises(StudyError, match="begins to compress after 21 steps, and warmup is 20"):
        IterationKind().check(part, [made(21)], [2], "cpu")
