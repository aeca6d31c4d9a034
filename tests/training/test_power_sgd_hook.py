"""torch's PowerSGD hook as an arm, on 2 and 4 ranks: torch's by hand is the oracle."""

import functools
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.aggregators.registry import create
from scaling.errors import ScalingError
from scaling.training.optimizers import SgdSettings
from scaling.training.overlapped import PASSES_UNTIL_BUCKETS_STAY
from scaling.training.step_check import StepCheck
from tests.ranks import as_rank, refusal
from tests.training.small import all_of, flat, learnable, overlapped, perceptron, torchs_power_sgd

NAME = "power_sgd_hook"
SETTINGS = SgdSettings(0.05, 0.5)
NUM_STEPS = 9
ARMS = {
    "usual": {},
    "later, rank 2": {"start_step": 5, "approximation_size": 2},
    "cold": {"warm_start": False},
    "without feedback": {"error_feedback": False},
    "batched": {"batched": True, "seed": 7},
}
METERED = ("usual", "later, rank 2")
BUCKET_MB = {"cold": 1.0}
"""torch's hook forgets the P of all buckets at the end of one unless it starts warm."""
SHAPES = [(24, 12), (24,), (24, 24), (24,), (6, 24), (6,)]
NUM_ELEMENTS = 24 * 12 + 24 + 24 * 24 + 24 + 6 * 24 + 6

pytestmark = pytest.mark.processes


network = functools.partial(perceptron, 12, 24, 24, 6)
batch = functools.partial(learnable, size=16)


def arm(label, group, module=None):
    chosen = create(NAME, ARMS[label]), SETTINGS, group
    size = BUCKET_MB.get(label, 0.001)
    return overlapped(module or network(), *chosen, batch(group.rank, 0), bucket_mb=size)


def by_hand(label, group):
    """The same training with torch's hook registered by hand, once DDP has settled its buckets."""
    given = ARMS[label]
    how = {"warm_start": given.get("warm_start", True), "batch_tensors_with_same_shape": "batched" in given}
    state = torchs_power_sgd(group, given, **how)
    module = network()
    ddp = DistributedDataParallel(module, process_group=group.data, bucket_cap_mb=BUCKET_MB.get(label, 0.001))
    settled = False

    def hook(_, bucket):
        future = torch.futures.Future()
        # One bucket after the other: Gloo's threads would mix their messages.
        future.set_result(powerSGD_hook.powerSGD_hook(state, bucket).wait() if settled else bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.5)
    for number in range(-PASSES_UNTIL_BUCKETS_STAY, NUM_STEPS):
        inputs, targets = batch(group.rank, max(number, 0))
        settled = number >= 0
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), targets).backward()
        if settled:
            optimizer.step()
    return flat(module)


def trained(step, group, steps=range(NUM_STEPS)):
    for number in steps:
        step(*batch(group.rank, number))
    return flat(step.replica.module)


def agreement(group):
    """The parameters of each arm, and whether torch's hook by hand has the same bits."""
    seen = {}
    for label in ARMS:
        step = arm(label, group)
        ours = trained(step, group)
        same, num_buckets = torch.equal(ours, by_hand(label, group)), len(step.bucket_bytes)
        seen[label] = {"parameters": ours.tolist(), "same": same, "num_buckets": num_buckets}
    return seen


def metering(group):
    """By step: the bytes that were metered, and those of a ring for each all-reduce that torch made."""
    seen, made, all_reduce = {}, [], dist.all_reduce

    def noted(tensor, *args, **keywords):
        made.append(tensor.nbytes * 2 * (group.world_size - 1) // group.world_size)
        return all_reduce(tensor, *args, **keywords)

    for label in METERED:
        step, seen[label] = arm(label, group), []
        for number in range(7):
            made.clear()
            group.meter.reset()
            with mock.patch.object(dist, "all_reduce", noted):
                step(*batch(group.rank, number))
            seen[label].append([group.meter.bytes_sent, sum(made)])
    return seen


def kept(group):
    """By arm: the number of elements of each kind that a checkpoint has, at the start and later on."""
    seen = {}
    for label in ARMS:
        step, seen[label] = arm(label, group), []
        for steps in (range(0), range(2), range(2, NUM_STEPS)):
            trained(step, group, steps)
            sizes = {}
            for name, tensors in step.state_dict()["aggregator"].items():
                for kind, values in tensors.items() if name != "hook" else ():
                    if kind != "bucket":
                        sizes[kind] = sizes.get(kind, 0) + values.numel()
            seen[label].append(sizes)
    return seen


def resumed(group):
    """Whether a training that another one resumes in the middle ends with the same bits."""
    seen, rest = {}, range(6, NUM_STEPS)
    for label in ARMS:
        whole, again = arm(label, group), arm(label, group)
        trained(whole, group, range(6))
        again.load_state_dict(whole.state_dict())
        seen[label] = torch.equal(trained(whole, group, rest), trained(again, group, rest))
    return seen


def checked(group):
    """What a run's checks say, and whether the training behind them is the one without."""
    seen = {}
    for label in ARMS:
        step = arm(label, group)
        check = StepCheck(step, create(NAME, ARMS[label]), SETTINGS, group)
        check.steps([batch(group.rank, number) for number in range(4)], 4)
        same = torch.equal(trained(step, group), trained(arm(label, group), group))
        seen[label] = {**check.findings.as_dict(), "same": same}
    return seen


def scaled():
    """With a parameter that is a scalar."""
    module = network()
    module.scale = torch.nn.Parameter(torch.ones(()))
    module.register_forward_hook(lambda own, _, output: own.scale * output)
    return module


def refused(group):
    """What is said of a state of other buckets, of a scalar parameter, and of a start that is too early."""
    attempts = {
        "other buckets": lambda: arm("usual", group).load_state_dict(arm("cold", group).state_dict()),
        "scalar": lambda: arm("cold", group, scaled()),
        "early": lambda: create(NAME, {"start_step": 1}),
    }
    return {name: refusal(ScalingError, attempt) for name, attempt in attempts.items()}


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, on_ranks):
    return on_ranks(__file__, request.param, CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("label", METERED)
def test_what_torch_sends_is_metered_step_by_step(ranks, label):
    start, n = ARMS[label].get("start_step", 2), len(ranks)
    for rank in ranks:
        steps = rank["metering"][label]
        assert all(metered == sent for metered, sent in steps)
        sent = [metered for metered, _ in steps]
        assert sent[:start] == [pytest.approx(4 * NUM_ELEMENTS * 2 * (n - 1) / n, abs=6)] * start
        assert max(sent[start:]) < 0.6 * sent[0]


def matrices(size):
    """P and Q of the matrices that this makes more than twice smaller."""
    chosen = [shape for shape in SHAPES if len(shape) == 2 and sum(shape) * size * 2 < shape[0] * shape[1]]
    return {"p": size * sum(rows for rows, _ in chosen), "q": size * sum(columns for _, columns in chosen)}


@pytest.mark.parametrize("label", ARMS)
class TestArms:
    def test_training_has_the_bits_of_torchs_hook_by_hand_and_is_resumed_with_them(self, ranks, label):
        seen = [rank["agreement"][label] for rank in ranks]
        assert seen == [{**seen[0], "same": True}] * len(ranks)
        assert (seen[0]["num_buckets"] > 1) == (label != "cold")
        assert all(rank["resumed"][label] for rank in ranks)

    def test_its_memory_is_a_residual_and_thin_matrices_from_the_first_compressed_step(self, ranks, label):
        residual = {} if label == "without feedback" else {"residual": NUM_ELEMENTS}
        thin = {} if label == "cold" else matrices(ARMS[label].get("approximation_size", 1))
        assert [rank["kept"][label] for rank in ranks] == [[{}, {}, {**residual, **thin}]] * len(ranks)

    def test_a_runs_checks_see_the_law_of_residuals_and_change_nothing(self, ranks, label):
        law = "not checked: lossy" if label == "without feedback" else "residuals"
        for rank in ranks:
            found = rank["checked"][label]
            assert found["exchange"].startswith(law)
            assert (found["same"], found["steps"]) == (True, 4)
            assert found["largest_error_ratio"] <= 1.0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("other buckets", "belongs to a bucket of other parameters"),
        ("scalar", "parameter 'scale' is a scalar, which torch's PowerSGD hook does not take"),
        ("early", "start_step: allowed is 2 or more"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(ranks, what, message):
    assert all(message in rank["refused"][what] for rank in ranks)


if __name__ == "__main__":
    as_rank(all_of(agreement, metering, kept, resumed, checked, refused))
