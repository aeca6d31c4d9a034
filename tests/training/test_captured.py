"""The captured step is the eager one's training; on a GPU only."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from scaling.aggregators.registry import create
from scaling.errors import LaunchError
from scaling.measure.clock import clock_for, graphs_can_be_marked
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from scaling.training.step import EagerStep, TrainingStep

SETTINGS = SgdSettings(learning_rate=0.05, momentum=0.9, weight_decay=1e-4)
NUM_STEPS = 6

marks_graphs = pytest.mark.skipif(
    torch.cuda.is_available() and not graphs_can_be_marked(), reason="needs torch 2.8"
)


def network(*, dropout: bool = False) -> nn.Module:
    """With statistics of batch normalisation."""
    torch.manual_seed(0)
    layers = [nn.Linear(12, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 6)]
    return nn.Sequential(*layers[:3], nn.Dropout(0.3 if dropout else 0.0), layers[3])


def batch(number: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn((10, 12), generator=generator), torch.randint(6, (10,), generator=generator)
    return inputs.to(device), targets.to(device)


def test_on_a_cpu_it_is_refused():
    def work(group: InProcessGroup) -> None:
        eager = EagerStep(FlatReplica(network()), create("none"), SETTINGS, group)
        CapturedStep(eager, *batch(0, "cpu"), group)

    with pytest.raises(LaunchError, match="step: captured needs CUDA, the ranks compute on cpu"):
        run_in_process(1, work)


def eager(
    group: InProcessGroup, module: nn.Module, aggregator: str, *, capturable: bool = False
) -> EagerStep:
    return EagerStep(FlatReplica(module.cuda()), create(aggregator), SETTINGS, group, capturable=capturable)


def captured(group: InProcessGroup, module: nn.Module, aggregator: str) -> CapturedStep:
    step = eager(group, module, aggregator, capturable=True)
    return CapturedStep(step, *batch(99, "cuda"), group)


def losses(step: TrainingStep, numbers: Sequence[int] = range(NUM_STEPS)) -> list[float]:
    return [step(*batch(number, "cuda")).item() for number in numbers]


def alone(work: Callable[[InProcessGroup], Any]) -> Any:
    """What `work` gives as the only rank."""
    return run_in_process(1, work)[0]


class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("aggregator", ["none", "all_reduce", "ring"])
    def test_losses_are_the_eager_steps(self, aggregator):
        expected = alone(lambda group: losses(eager(group, network(), aggregator)))
        seen = alone(lambda group: losses(captured(group, network(), aggregator)))
        assert seen == pytest.approx(expected, rel=1e-5)
        assert len(set(seen)) == NUM_STEPS

    def test_capturing_leaves_the_model_and_the_random_state_as_they_were(self):
        def work(group: InProcessGroup) -> None:
            module, expected = network(dropout=True), network(dropout=True).state_dict()  # these seed anew
            torch.cuda.manual_seed(7)
            random_state = torch.cuda.get_rng_state()
            step = captured(group, module, "all_reduce")
            for name, value in expected.items():
                assert torch.equal(step.replica.module.state_dict()[name].cpu(), value), name
            assert torch.equal(torch.cuda.get_rng_state(), random_state)

        alone(work)

    def test_momentum_begins_anew_after_capturing(self):
        """The first step of a captured training is the first step of an eager one."""

        def after_one(make) -> torch.Tensor:
            def work(group: InProcessGroup) -> torch.Tensor:
                step = make(group, network(), "none")
                losses(step, [0])
                return step.replica.parameters.cpu().clone()

            return alone(work)

        torch.testing.assert_close(after_one(captured), after_one(eager), rtol=1e-5, atol=1e-6)

    @marks_graphs
    def test_training_goes_on_the_same_after_it_is_made_ready_for_split_steps(self):
        def work(group: InProcessGroup) -> list[float]:
            step = captured(group, network(), "all_reduce")
            first = losses(step, range(3))
            assert step.prepare_profiled(PhaseRecorder(clock_for(torch.device("cuda"))))
            return first + losses(step, range(3, NUM_STEPS))

        expected = alone(lambda group: losses(eager(group, network(), "all_reduce")))
        assert alone(work) == pytest.approx(expected, rel=1e-5)

    @marks_graphs
    def test_split_steps_know_the_phases_in_the_graph(self):
        def work(group: InProcessGroup) -> None:
            recorder = PhaseRecorder(clock_for(torch.device("cuda")))
            step = captured(group, network(), "all_reduce")
            step.prepare_profiled(recorder)
            assert step.settle_profiled
            for number in range(3):
                with recorder.step(profiled=True) as marks:
                    step(*batch(number, "cuda"), marks)
                (sample,) = recorder.take()
                phases = [phase for phase, *_ in sample.spans]
                assert phases == ["input", "forward", "backward", "update"]
                ends = [at_s for _, _, start, stop in sample.spans for at_s in (start, stop)]
                assert ends == sorted(ends)
                assert ends[-1] <= sample.step_s + 1e-6

        alone(work)
