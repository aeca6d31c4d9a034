"""The captured step is the eager one's training, at a rate that can be set, and is resumed; on a GPU only."""

import pytest
import torch

from scaling.errors import LaunchError
from scaling.measure.clock import clock_for, graphs_can_be_marked
from scaling.measure.phases import PhaseRecorder
from scaling.process_group import run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress
from tests.training import small
from tests.training.small import SGD, batch, normalised

NUM_STEPS = 6
RATES = [0.05, 0.1, 0.0, 0.02]

marks_graphs = pytest.mark.skipif(
    torch.cuda.is_available() and not graphs_can_be_marked(), reason="needs torch 2.8"
)


def test_on_a_cpu_it_is_refused():
    def work(group):
        CapturedStep(small.eager(normalised(12, 40, 6), "none", SGD, group), *batch(0, 0), group)

    with pytest.raises(LaunchError, match="step: captured needs CUDA, the ranks compute on cpu"):
        run_in_process(1, work)


def eager(group, aggregator, *, dropout=0.0, capturable=False):
    module = normalised(12, 40, 6, dropout=dropout).cuda()
    return small.eager(module, aggregator, SGD, group, capturable=capturable)


def captured(group, aggregator, *, dropout=0.0):
    step = eager(group, aggregator, dropout=dropout, capturable=True)
    return CapturedStep(step, *batch(0, 99, "cuda"), group)


def losses(step, numbers=range(NUM_STEPS)):
    return [step(*batch(0, number, "cuda")).item() for number in numbers]


def losses_at(step, rates):
    """Each step with a rate of its own."""
    seen = []
    for number, rate in enumerate(rates):
        step.set_learning_rate(rate)
        seen += losses(step, [number])
    return seen


def alone(work):
    """What `work` gives as the only rank."""
    return run_in_process(1, work)[0]


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize("aggregator", ["none", "all_reduce", "ring"])
    def test_losses_are_the_eager_steps(self, aggregator):
        expected = alone(lambda group: losses(eager(group, aggregator)))
        seen = alone(lambda group: losses(captured(group, aggregator)))
        assert seen == pytest.approx(expected, rel=1e-5)
        assert len(set(seen)) == NUM_STEPS

    def test_rate_is_set_from_step_to_step(self):
        expected, seen = (
            alone(lambda group, make=make: losses_at(make(group, "all_reduce"), RATES * 2))
            for make in (eager, captured)
        )
        assert seen == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("aggregator", ["all_reduce", "ring"])
    def test_resumed_training_has_the_bits_of_an_uncut_one(self, aggregator):
        device = torch.device("cuda", torch.cuda.current_device())

        def work(group):
            step = captured(group, aggregator, dropout=0.3)
            losses_at(step, RATES)
            target = Target.of(step.replica.module, "cell", rank=0, world_size=1)
            content = Checkpoint.of(step, TrainingProgress(1, 1.0), [], device).to_bytes(target)
            uncut = losses_at(step, RATES)
            other = captured(group, aggregator, dropout=0.3)
            Checkpoint.from_bytes(content, target).restore(other, device)
            return uncut, losses_at(other, RATES)

        uncut, resumed = alone(work)
        assert resumed == uncut

    def test_capturing_leaves_the_model_and_the_random_state_as_they_were(self):
        def work(group):
            step = eager(group, "all_reduce", dropout=0.3, capturable=True)
            expected = normalised(12, 40, 6).state_dict()
            torch.cuda.manual_seed(7)
            random_state = torch.cuda.get_rng_state()
            step = CapturedStep(step, *batch(0, 99, "cuda"), group)
            for name, value in expected.items():
                assert torch.equal(step.replica.module.state_dict()[name].cpu(), value), name
            assert torch.equal(torch.cuda.get_rng_state(), random_state)

        alone(work)

    def test_momentum_begins_anew_after_capturing(self):
        """The first step of a captured training is the first step of an eager one."""

        def after_one(make):
            def work(group):
                step = make(group, "none")
                losses(step, [0])
                return step.replica.parameters.cpu().clone()

            return alone(work)

        torch.testing.assert_close(after_one(captured), after_one(eager), rtol=1e-5, atol=1e-6)

    @marks_graphs
    def test_training_goes_on_the_same_after_it_is_made_ready_for_split_steps(self):
        def work(group):
            step = captured(group, "all_reduce")
            first = losses(step, range(3))
            assert step.prepare_profiled(PhaseRecorder(clock_for(torch.device("cuda"))))
            return first + losses(step, range(3, NUM_STEPS))

        assert alone(work) == pytest.approx(alone(lambda group: losses(eager(group, "all_reduce"))), rel=1e-5)

    @marks_graphs
    def test_split_steps_know_the_phases_in_the_graph(self):
        def work(group):
            recorder = PhaseRecorder(clock_for(torch.device("cuda")))
            step = captured(group, "all_reduce")
            step.prepare_profiled(recorder)
            assert step.settle_profiled
            for number in range(3):
                with recorder.step(profiled=True) as marks:
                    step(*batch(0, number, "cuda"), marks)
                (sample,) = recorder.take()
                assert [phase for phase, *_ in sample.spans] == ["input", "forward", "backward", "update"]
                ends = [at_s for _, _, start, stop in sample.spans for at_s in (start, stop)]
                assert ends == sorted(ends)
                assert ends[-1] <= sample.step_s + 1e-6

        alone(work)
