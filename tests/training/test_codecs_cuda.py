"""Codecs and shards on two GPUs over NCCL: as on the CPU, without waiting for the device, in graphs."""

import traceback
from contextlib import contextmanager

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError
from scaling.process_group import run_in_process
from scaling.training import layered as layered_steps
from scaling.training.captured import CapturedStep
from scaling.training.checkpoint import Checkpoint, Target
from scaling.training.convergence import TrainingProgress
from scaling.training.hooked_buckets import HookedBuckets
from scaling.training.optimizers import SgdSettings
from scaling.training.replica import FlatReplica
from tests.ranks import as_rank, refusal
from tests.training.small import CPU, OPTIMIZERS, batch_of, eager, flat, layered, overlapped, perceptron

NAMES = (
    *("one_bit", "one_bit_flat", "one_bit_momentum", "two_bit", "sign", "ef_sign", "qsgd", "top_k"),
    *("power_sgd", "fp16", "bf16"),
)

PARAMETERS = {"two_bit": {"threshold": 0.02}}
"""The default is for sums over a batch."""
SHAPES = {"conv": (64, 32, 3, 3), "bias": (64,), "fc": (500, 300), "again": (500, 300), "one": ()}
LAYOUT = BucketLayout.of(list(SHAPES.items()))
IN_FC = 70_000
"""An element of fc."""
BACKWARDS = BucketLayout.of(list(reversed(SHAPES.items())))
NUM_STEPS = 3
NUM_TRAINED = 6
BUCKET_MB = 0.01
"""Three buckets: each matrix one, and the biases one."""
STATELESS = ("sign", "fp16", "bf16")
"""These withhold nothing."""
LARGEST_SHARE = 1e-4
"""Of elements that a rounding in a mean has sent to the other side of a threshold, or to another level."""
SIXTEEN_BITS = {"fp16": 2**-11, "bf16": 2**-8}
"""Half a unit in the last place of the largest value."""

pytestmark = [pytest.mark.gpu(2), pytest.mark.processes]


def gradient_of(rank, step):
    return torch.randn(LAYOUT.num_elements, generator=torch.Generator().manual_seed(10 * step + rank))


@contextmanager
def waiting_is_an_error():
    """An operation that has the host wait for the device raises RuntimeError."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_cpu(aggregator, world_size):
    """The results of the steps between threads."""

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        steps = range(NUM_STEPS)
        return [aggregator.aggregate(state, gradient_of(group.rank, step)).clone() for step in steps]

    return run_in_process(world_size, work)[0]


def aggregated(aggregator, group, device):
    """How far from the CPU's; whether a step waits; what is said of NaN; what changes in other buckets."""
    expected = on_cpu(aggregator, group.world_size)
    state = aggregator.start(LAYOUT, group, torch.float32, device)
    gradients = [gradient_of(group.rank, step).to(device) for step in range(NUM_STEPS)]
    results = [aggregator.aggregate(state, gradients[0].clone()).clone()]
    waits = ""
    try:
        with waiting_is_an_error():
            results += [aggregator.aggregate(state, one.clone()).clone() for one in gradients[1:]]
    except RuntimeError as error:
        waits = str(error)
    state.check()
    return {
        "waits": waits,
        "off": [off(ours, theirs) for ours, theirs in zip(results, expected, strict=not waits)],
        "moved": moved(aggregator, state, group, device),
        "not_finite": said_of_nan(aggregator, state, gradients[0].clone()),
    }


def off(ours, theirs):
    """Of the errors relative to the largest value: the largest, and the share of elements above 1e-4."""
    errors = (ours.cpu() - theirs).abs() / theirs.abs().max().clamp(min=1e-30)
    return [errors.max().item(), (errors > 1e-4).double().mean().item()]


def moved(aggregator, state, group, device):
    """How much what all ranks withhold changes in a bucket of another order; None where nothing is."""
    after = aggregator.start(BACKWARDS, group, torch.float32, device)
    after.load_state_dict(state.state_dict())
    if state.total_residual() is None:
        return None
    totals = []
    for one in (state, after):
        total = one.total_residual().clone()
        group.all_reduce(total)
        totals.append(dict(zip(one.layout.names, one.layout.views(total), strict=True)))
    before, then = totals
    assert any(bool(values.any()) for values in before.values())
    return max((before[name] - then[name]).abs().max().item() for name in SHAPES)


def said_of_nan(aggregator, state, gradient):
    """What this rank says of one NaN in rank 1's gradient."""
    if state.group.rank == 1:
        gradient[IN_FC] = float("nan")
    aggregator.aggregate(state, gradient)
    return refusal(NotFiniteError, state.check)


def network(device):
    return perceptron(300, 500, 10).to(device)


def batch(rank, number, device):
    inputs, targets = batch_of(100 * number + rank, 64, 300, 10)
    return inputs.to(device), targets.to(device)


def made(aggregator, group, device, *, is_layered):
    """A step that can be captured: the exchange behind the backward pass, or layer by layer under it."""
    chosen = (network(device), aggregator, SgdSettings(0.01, momentum=0.9), group)
    if is_layered:
        return layered(*chosen, bucket_mb=BUCKET_MB, capturable=True)
    return eager(*chosen, capturable=True)


def take_steps(step, group, device, numbers):
    """The losses of these steps."""
    losses = [step(*batch(group.rank, number, device)) for number in numbers]
    step.check()
    return torch.stack(losses).tolist()


def captured_less_eager(aggregator, group, device, *, is_layered):
    """The largest difference between the parameters that a step ends with as it is, and captured."""
    ends = []
    for captured in (False, True):
        step = made(aggregator, group, device, is_layered=is_layered)
        if captured:
            step = CapturedStep(step, *batch(group.rank, 0, device), group)
        take_steps(step, group, device, range(NUM_TRAINED))
        ends.append(step.replica.parameters.clone())
    start = FlatReplica(network(device)).parameters
    assert not torch.equal(ends[0], start), "nothing was learned"
    return (ends[0] - ends[1]).abs().max().item()


def hooked_less_plain(aggregator, group, device):
    """The largest difference between the parameters that an overlapped step ends with whose exchanges are
    CUDA graphs, and one that runs them as they are written."""
    ends, sent = [], []
    for captures in (False, True):
        HookedBuckets.captures = captures
        settings = SgdSettings(learning_rate=0.05, momentum=0.0 if aggregator.own_momentum() else 0.9)
        chosen = (network(device), aggregator, settings, group, batch(group.rank, 0, device))
        step = overlapped(*chosen, bucket_mb=BUCKET_MB)
        assert step.settle_profiled == captures, "graphs are what is tested"
        step.record = []
        take_steps(step, group, device, range(1))
        assert len(step.record) > 1, "buckets are"
        step.record = None
        take_steps(step, group, device, range(1, NUM_TRAINED))
        group.meter.reset()
        take_steps(step, group, device, range(1))
        sent.append((group.meter.bytes_sent, group.meter.messages_sent))
        ends.append(flat(step.replica.module))
    assert sent[0] == sent[1], f"metered: {sent}"
    return (ends[0] - ends[1]).abs().max().item()


def graphs_of_shards_less_plain(name, group, device):
    """The same of a step of shards that makes CUDA graphs of its buckets after the first steps, and one that
    never does; in between a step is recorded, and the state saved and taken over."""
    ends, sent = [], []
    for plain_steps in (1_000_000, layered_steps.PLAIN_STEPS):
        layered_steps.PLAIN_STEPS = plain_steps
        step = layered(network(device), name, OPTIMIZERS["adamw"], group, bucket_mb=BUCKET_MB)
        take_steps(step, group, device, range(3))
        assert step.settle_profiled == (plain_steps < 3), step.notes
        step.record = []
        take_steps(step, group, device, range(3, 4))
        assert len(step.record) > 1, "buckets are"
        step.record = None
        step.load_state_dict(step.state_dict())
        take_steps(step, group, device, range(4, NUM_TRAINED))
        group.meter.reset()
        take_steps(step, group, device, range(1))
        sent.append((group.meter.bytes_sent, group.meter.messages_sent))
        ends.append(step.replica.parameters.clone())
    assert sent[0] == sent[1], f"metered: {sent}"
    return (ends[0] - ends[1]).abs().max().item()


def resumed(aggregator, group, device, *, is_layered):
    """The captured losses after a checkpoint, and how far the first two trainings' parameters are apart.

    Of the training that goes on, of one that takes it over, of one that takes over all but the codec's state.
    """

    def captured():
        step = made(aggregator, group, device, is_layered=is_layered)
        return CapturedStep(step, *batch(group.rank, 99, device), group)

    later = range(NUM_TRAINED, 2 * NUM_TRAINED)
    uncut = captured()
    fresh = uncut.state_dict()["aggregator"]
    take_steps(uncut, group, device, range(NUM_TRAINED))
    target = Target.of(uncut.replica.module, "cell", group.rank, group.world_size)
    content = Checkpoint.of(uncut, TrainingProgress(1, 1.0), [], device).to_bytes(target)
    seen = {"uncut": take_steps(uncut, group, device, later)}
    other = captured()
    saved = Checkpoint.from_bytes(content, target)
    saved.restore(other, device)
    seen["resumed"] = take_steps(other, group, device, later)
    seen["apart"] = (uncut.replica.parameters - other.replica.parameters).abs().max().item()
    other.load_state_dict({**saved.step, "aggregator": fresh})
    seen["forgetful"] = take_steps(other, group, device, later)
    return seen


def seen_by(workers):
    device = torch.device("cuda", workers.info.rank)
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    group = workers.group(device)
    seen = {}
    for name in NAMES:
        aggregator = create(name, PARAMETERS.get(name, {}))
        try:
            seen[name] = aggregated(aggregator, group, device)
            seen[name]["hooked"] = hooked_less_plain(aggregator, group, device)
            for ending, way in {"": False, " layered": True}.items():
                chosen = (aggregator, group, device)
                seen[name][f"captured{ending}"] = captured_less_eager(*chosen, is_layered=way)
                seen[name][f"resumed{ending}"] = resumed(*chosen, is_layered=way)
        except Exception:
            seen[name] = {**seen.get(name, {}), "failed": traceback.format_exc()}
    seen["shards"] = [graphs_of_shards_less_plain(name, group, device) for name in ("zero1", "zero2")]
    return seen


@pytest.fixture
def both(ranks, name):
    """What both ranks saw of a codec."""
    for rank in ranks:
        assert "failed" not in rank[name], rank[name]["failed"]
    return [rank[name] for rank in ranks]


@pytest.mark.parametrize("name", NAMES)
class TestOnTwoGpus:
    def test_results_are_those_of_the_cpu(self, both, name):
        for rank in both:
            assert len(rank["off"]) == 3
            for largest, share in rank["off"]:
                assert share <= LARGEST_SHARE or largest <= 2 * SIXTEEN_BITS.get(name, 0)

    def test_no_step_waits_for_the_device(self, both, name):
        assert [rank["waits"] for rank in both] == ["", ""]

    @pytest.mark.parametrize("way", ["captured", "captured layered", "hooked"])
    def test_captured_it_trains_bit_for_bit_as_eager(self, both, name, way):
        assert [rank[way] for rank in both] == [0.0, 0.0]

    @pytest.mark.parametrize("way", ["resumed", "resumed layered"])
    def test_captured_it_resumes_bit_for_bit(self, both, name, way):
        for rank in both:
            assert rank[way]["resumed"] == rank[way]["uncut"]
            assert rank[way]["apart"] == 0.0
            # What was withheld up to the checkpoint is part of it.
            if name not in STATELESS:
                assert rank[way]["forgetful"] != rank[way]["uncut"]

    def test_nan_on_one_rank_is_an_error_on_both_that_names_the_tensor(self, both, name):
        one, other = (rank["not_finite"] for rank in both)
        assert one == other
        assert "is NaN or infinite" in one
        assert "'fc'" in one

    def test_what_is_withheld_moves_into_a_bucket_of_another_order(self, both, name):
        for rank in both:
            assert rank["moved"] is None or rank["moved"] < 1e-5


def test_graphs_of_sharded_updates_train_bit_for_bit_as_what_they_captured(ranks):
    assert [rank["shards"] for rank in ranks] == [[0.0, 0.0]] * 2


if __name__ == "__main__":
    as_rank(seen_by)
