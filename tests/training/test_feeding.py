"""Every input placement hands out the same batches, in the same order."""

import gc
import multiprocessing
from contextlib import nullcontext
from typing import get_args

import pytest
import torch

from scaling.errors import StudyError
from scaling.measure.clock import clock_for
from scaling.measure.phases import UNMARKED, PhaseRecorder
from scaling.process_group import InProcessGroup, run_in_process
from scaling.training.captured import CapturedStep
from scaling.training.feeding import AugmentedFeeder, Batch, Feeder, InputPlacement, feeder_for
from scaling.training.optimizers import SgdSettings
from scaling.workloads.base import Split
from scaling.workloads.sampling import Variations, crop_and_flip, epoch_variations
from tests.training.small import CPU, eager, perceptron
from tests.waiting import LIMIT_S

NUM_SAMPLES, NUM_BATCHES, LOCAL_BATCH, NUM_WORKERS = 40, 4, 6, 2


def split(device: torch.device = CPU) -> Split:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn((NUM_SAMPLES, 2, 6, 5), generator=generator)
    return Split(inputs.to(device), torch.arange(NUM_SAMPLES, device=device) % 7)


def batches() -> torch.Tensor:
    order = torch.randperm(NUM_SAMPLES, generator=torch.Generator().manual_seed(1))
    return order[: NUM_BATCHES * LOCAL_BATCH].view(NUM_BATCHES, LOCAL_BATCH)


def made(placement: str, device: torch.device = CPU, samples: Split | None = None) -> Feeder:
    return feeder_for(placement, samples or split(device), batches(), device, NUM_WORKERS)


def variations(seed: int = 0) -> Variations:
    return epoch_variations(NUM_SAMPLES, seed, 1)


def taken(placement: str, device: torch.device, count: int, seed: int | None = None) -> list[Batch]:
    """Copies of the first batches, in host memory; with a seed they are augmented."""
    feeder = made(placement, device)
    if seed is not None:
        feeder = AugmentedFeeder(feeder, batches(), variations(seed), device)
    return [Batch(*(tensor.cpu().clone() for tensor in feeder.next(UNMARKED))) for _ in range(count)]


class Named:
    """Marks that note (lane, phase)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def phase(self, name: str):
        return self._note("main", name)

    def on_lane(self, lane: str):
        return lambda name: self._note(lane, name)

    def _note(self, lane: str, name: str):
        self.seen.append((lane, name))
        return nullcontext()


def assert_taken(placement: str, device: torch.device, seed: int | None = None) -> None:
    """More than two rounds through the batches; with a seed each image as its variations say."""
    rows = batches().tolist()
    for number, (inputs, targets) in enumerate(taken(placement, device, 2 * NUM_BATCHES + 1, seed)):
        own = torch.tensor(rows[number % NUM_BATCHES])
        whole = split().inputs[own]
        expected = whole if seed is None else crop_and_flip(whole, variations(seed)[own])
        assert torch.equal(inputs, expected), number
        assert torch.equal(targets, split().targets[own]), number


@pytest.mark.parametrize("seed", [None, 3], ids=["as they are", "augmented"])
@pytest.mark.parametrize("placement", ["device", "loader"])
def test_batches_come_in_turn_without_end(placement, seed):
    assert_taken(placement, CPU, seed)


def test_augmentation_is_of_the_seed_and_changes_no_sample_of_the_split():
    (plain,), (one,), (other,) = (taken("device", CPU, 1, seed) for seed in (None, 0, 1))
    assert not torch.equal(one.inputs, other.inputs)
    assert not torch.equal(one.inputs, plain.inputs)
    assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("placement", ["device", "loader"])
def test_waiting_and_augmenting_are_the_phase_input_and_a_cpu_copies_nothing(placement, augmented):
    marks = Named()
    feeder = made(placement)
    if augmented:
        feeder = AugmentedFeeder(feeder, batches(), variations(), CPU)
    for _ in range(1 if augmented else 2):
        feeder.next(marks)
    assert marks.seen == [("main", "input")] * 2


@pytest.mark.parametrize("placement", ["pinned", "pageable"])
def test_copies_to_a_gpu_are_refused_on_a_cpu(placement):
    with pytest.raises(StudyError, match=f"{placement} is a copy to a GPU; on cpu use device or loader"):
        made(placement)


def test_loaders_processes_end_with_it():
    before = set(multiprocessing.active_children())
    feeder = made("loader")
    feeder.next(UNMARKED)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == NUM_WORKERS
    del feeder
    gc.collect()
    for worker in workers:
        worker.join(LIMIT_S)
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize("seed", [None, 3], ids=["as they are", "augmented"])
    @pytest.mark.parametrize("placement", get_args(InputPlacement))
    def test_batches_come_in_turn_without_end(self, placement, seed):
        assert_taken(placement, torch.device("cuda"), seed)

    def test_captured_step_trains_on_what_the_eager_one_does(self):
        device, num_steps = torch.device("cuda"), 2 * NUM_BATCHES

        def losses(group: InProcessGroup, *, is_captured: bool) -> list[float]:
            module = torch.nn.Sequential(torch.nn.Flatten(), *perceptron(2 * 6 * 5, 7)).cuda()
            step = eager(module, "none", SgdSettings(0.05, momentum=0.9), group, capturable=is_captured)
            augmented = AugmentedFeeder(made("device", device), batches(), variations(), device)
            if not is_captured:
                return [step(*augmented.next(UNMARKED)).item() for _ in range(num_steps)]
            example = (values[:LOCAL_BATCH].to(device) for values in (split().inputs, split().targets))
            captured = CapturedStep(step, *example, group)
            recorder = PhaseRecorder(clock_for(device))
            found = []
            for _ in range(num_steps):
                with recorder.step(profiled=False) as marks:
                    found.append(captured(*augmented.next(marks), marks).item())
            if captured.prepare_profiled(recorder):
                with recorder.step(profiled=True) as marks:
                    captured(*augmented.next(marks), marks)
                phases = [name for name, lane, *_ in recorder.take()[-1].spans if lane == "main"]
                # Gathering, augmenting, the copy into the graph's buffers.
                assert phases[:4] == ["input", "input", "input", "forward"]
            return found

        expected, seen = (
            run_in_process(1, lambda group, way=way: losses(group, is_captured=way))[0]
            for way in (False, True)
        )
        assert seen == pytest.approx(expected, rel=1e-5)
        assert len(set(seen)) == num_steps

    @pytest.mark.parametrize("placement", get_args(InputPlacement))
    def test_samples_that_have_no_room_there_are_taken_from_host_memory(self, placement):
        feeder = made(placement, torch.device("cuda"), split(CPU))
        for expected in taken("device", CPU, 2 * NUM_BATCHES):
            batch = feeder.next(UNMARKED)
            for ours, theirs in zip(batch, expected, strict=True):
                assert ours.device.type == "cuda"
                assert torch.equal(ours.cpu(), theirs)

    @pytest.mark.parametrize(
        ("placement", "marked"),
        [
            ("device", {("main", "input")}),
            ("pinned", {("main", "input"), ("copy", "h2d")}),
            ("pageable", {("main", "h2d")}),
            ("loader", {("main", "input"), ("main", "h2d")}),
        ],
    )
    def test_copies_are_marked_where_they_run(self, placement, marked):
        marks = Named()
        made(placement, torch.device("cuda")).next(marks)
        assert set(marks.seen) == marked

    def test_next_batch_is_copied_while_the_step_computes(self):
        device = torch.device("cuda")
        recorder, feeder = PhaseRecorder(clock_for(device)), made("pinned", device)
        feeder.next(UNMARKED)
        with recorder.step(profiled=True) as marks:
            feeder.next(marks)
            with marks.phase("forward"):
                torch.cuda._sleep(10**8)
        (sample,) = recorder.take()
        spans = {(phase, lane): (start, stop) for phase, lane, start, stop in sample.spans}
        assert spans["h2d", "copy"][1] < spans["forward", "main"][1]
