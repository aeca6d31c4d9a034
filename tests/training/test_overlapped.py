"""The overlapped step in two real processes: the same training, in buckets, with the exchange in sight."""

import copy
import functools
import gc
import threading
import weakref
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock

import pytest
import torch
from torch import nn

from scaling.aggregators.base import unmarked
from scaling.aggregators.native import AllReduce
from scaling.aggregators.registry import create
from scaling.errors import LaunchError
from scaling.measure.clock import MonotonicClock
from scaling.measure.phases import PhaseRecorder
from scaling.training import ddp as wrapping
from scaling.training import noise_probe
from scaling.training.ddp import TAKES_SIZES, DdpSettings
from scaling.training.gradients import AS_THEY_ARE
from scaling.training.noise_probe import NoiseProbe
from scaling.training.optimizers import SgdSettings
from tests.ranks import as_rank, refusal
from tests.training.small import (
    CPU,
    OPTIMIZERS,
    SGD,
    all_of,
    batch,
    batch_of,
    eager,
    flat,
    normalised,
    overlapped,
)
from tests.waiting import wait_until

NUM_STEPS, SPLIT_FROM = 6, 3
EXCHANGING = ("all_reduce", "ring", "tree")
CONTROLS = ("none", "no_op", "no_op(path=hook)")
ARMS = (*EXCHANGING, *CONTROLS)
BUCKETS_MB = {"one bucket": 25.0, "several": 0.001, "split": 0.001}
KIB, MB = 1024, 2.0**20
WIDTH, DEPTH = 16, 8  # each layer has 1 KiB of weights
ONE_BY_ONE = (2 * KIB / MB, KIB / MB, 4 * KIB / MB)
SIZED = ("all_reduce", "ring")
SIZES = {
    "one size": DdpSettings(),
    "one by one": DdpSettings(bucket_sizes_mb=ONE_BY_ONE),
    "first and others": DdpSettings(bucket_sizes_mb=(KIB / MB, 3 * KIB / MB)),
}

pytestmark = pytest.mark.processes


@dataclass(frozen=True)
class FailsOnRank1(AllReduce):
    """The second exchange of rank 1 fails; as a hook, since it aggregates in its own way."""

    name = "fails_on_rank_1"
    num_exchanges: ClassVar[list[int]] = []

    def aggregate(self, state, gradient, phase=unmarked):
        self.num_exchanges.append(gradient.numel())
        if state.group.rank == 1 and len(self.num_exchanges) == 2:
            raise KeyError("planted failure")
        return super().aggregate(state, gradient, phase)


def create_arm(label):
    return create(label.partition("(")[0], {"path": "hook"} if "path=hook" in label else {})


network = functools.partial(normalised, 12, 40, 40, 6, dropout=0.3)
"""With statistics, and with random numbers in its forward pass."""


def made(aggregator, group, bucket_mb=BUCKETS_MB["several"], module=None):
    chosen = (module or network(), aggregator, SGD, group)
    return overlapped(*chosen, batch(group.rank, 0), bucket_mb=bucket_mb)


def training(step, group, split_from=NUM_STEPS):
    """What comes of some steps, of which those from `split_from` on are split."""
    torch.manual_seed(group.rank)
    recorder = PhaseRecorder(MonotonicClock())
    losses, sent = [], []
    for number in range(NUM_STEPS):
        if number == split_from:
            step.prepare_profiled(recorder)
        group.meter.reset()
        with recorder.step(profiled=number >= split_from) as marks:
            losses.append(step(*batch(group.rank, number), marks).item())
        sent.append(group.meter.bytes_sent)
    state = sorted(step.replica.module.state_dict().items())
    return {
        "losses": losses,
        "state": torch.cat([value.double().flatten() for _, value in state]).tolist(),
        "random": torch.get_rng_state().sum().item(),
        "sent": sent,
        "spans": [sample.spans for sample in recorder.take()],
        "notes": step.notes,
        "num_bytes": 4 * step.replica.layout.num_elements,
    }


def trainings(group):
    """Every arm in every way: eager, overlapped with one bucket, with several, and split half-way."""
    seen = {}
    for label in ARMS:
        if not label.startswith("no_op"):
            seen[f"{label} eager"] = training(eager(network(), create_arm(label), SGD, group), group)
        for way, bucket_mb in BUCKETS_MB.items():
            step = made(create_arm(label), group, bucket_mb)
            seen[f"{label} {way}"] = training(step, group, SPLIT_FROM if way == "split" else NUM_STEPS)
    return seen


def dry_passes(group):
    """What is no more as it was after a step was made, and made ready for split ones."""
    seen = {}
    for label in ARMS:
        module, expected = network(), network().state_dict()
        torch.manual_seed(5)
        random_state = torch.get_rng_state()
        made(create_arm(label), group, module=module).prepare_profiled(PhaseRecorder(MonotonicClock()))
        now = {**module.state_dict(), "random": torch.get_rng_state()}
        before = {**expected, "random": random_state}
        seen[label] = [name for name, value in now.items() if not torch.equal(value, before[name])]
    return seen


def any_exchange_thread():
    return any(thread.name.startswith("exchange") for thread in threading.enumerate())


def left(group):
    """Which steps are still there when nobody has them, and whether a thread of their exchanges is."""
    seen = []
    for label in ARMS:
        for is_split in (False, True):
            step = made(create_arm(label), group)
            if is_split:
                step.prepare_profiled(PhaseRecorder(MonotonicClock()))
            step(*batch(group.rank, 0))
            watched = [weakref.ref(step), weakref.ref(step.replica.module)]
            del step
            gc.collect()
            seen += [f"{label} {is_split}" for one in watched if one() is not None]
    wait_until(lambda: not any_exchange_thread())
    return [*seen, *(["a thread"] if any_exchange_thread() else [])]


def trained_in_buckets(name, group, ddp):
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]
    module = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
    data = [batch_of(100 * number + group.rank, 8, WIDTH, WIDTH) for number in range(3)]
    chosen = (module, create(name), SgdSettings(0.1, 0.5), group, data[0])
    step = overlapped(*chosen, bucket_mb=25.0, ddp=ddp)
    for one in data:
        step(*one)
    step.prepare_profiled(PhaseRecorder(MonotonicClock()))
    return {"bytes": step.bucket_bytes, "parameters": flat(module).tolist()}


def bucket_sizes(group):
    """By aggregator and way the buckets, and what was trained; what is said of unused parameters."""
    seen = {name: {way: trained_in_buckets(name, group, ddp) for way, ddp in SIZES.items()} for name in SIZED}
    unused = DdpSettings(bucket_sizes_mb=ONE_BY_ONE, find_unused_parameters=True)
    seen["refused"] = refusal(LaunchError, lambda: trained_in_buckets("all_reduce", group, unused))
    with mock.patch.object(wrapping, "TAKES_SIZES", False):
        for name in SIZED:
            seen[name]["in older torch"] = trained_in_buckets(name, group, SIZES["first and others"])
    return seen


def looks_with_adam(group):
    """What the noise scale of a training is made of, overlapped and eager."""
    seen = {}
    for name in ("all_reduce", "ring"):
        chosen = (normalised(12, 40, 6), create(name), OPTIMIZERS["adamw"], group)
        hooked = overlapped(*copy.deepcopy(chosen[:3]), group, batch(group.rank, 0), bucket_mb=0.001)
        for way, step in (("overlapped", hooked), ("eager", eager(*chosen))):
            probe = NoiseProbe(step, create(name), AS_THEY_ARE, group, 10)
            for number in range(NUM_STEPS):
                probe.take(number, number, *batch(group.rank, number))
            seen[f"{name} {way}"] = probe.finish_epoch()
    return seen


def failure_of_a_step(group):
    try:
        made(FailsOnRank1(), group)(*batch(group.rank, 0))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def seen_by(workers):
    """Besides: an exchange fails on rank 1; afterwards a new group works."""
    seen = all_of(trainings, dry_passes, left, bucket_sizes)(workers)
    with mock.patch.dict(noise_probe.STRIDE, dict.fromkeys(noise_probe.STRIDE, 1)):
        seen |= all_of(looks_with_adam)(workers)
    failure = failure_of_a_step(workers.group(CPU))
    order = workers.first_failure("fails")
    workers.leave_group()
    outcome = workers.outcome("fails", failure, None, failure_order=order)
    again = training(made(create_arm("ring"), workers.group(CPU)), workers.group(CPU))
    seen["failed"] = {
        "failure": failure,
        "outcome": [outcome.reason, outcome.can_go_on, len(FailsOnRank1.num_exchanges)],
        "losses_again": again["losses"],
    }
    return seen


@pytest.fixture(scope="module")
def trained(ranks):
    """trained(arm and way): what both ranks saw of a training."""
    return lambda key: [rank["trainings"][key] for rank in ranks]


class TestSameTraining:
    @pytest.mark.parametrize("way", BUCKETS_MB)
    @pytest.mark.parametrize("arm", EXCHANGING)
    def test_losses_and_parameters_are_the_eager_steps_to_rounding(self, trained, arm, way):
        """Dropout and batch normalisation too: random numbers and statistics are drawn and kept alike."""
        for one, other in zip(trained(f"{arm} eager"), trained(f"{arm} {way}"), strict=True):
            assert other["losses"] == pytest.approx(one["losses"], rel=1e-5)
            assert other["state"] == pytest.approx(one["state"], rel=1e-4, abs=1e-6)
            assert other["random"] == one["random"]

    @pytest.mark.parametrize("way", BUCKETS_MB)
    @pytest.mark.parametrize("arm", CONTROLS)
    def test_control_arms_drift_apart_exactly_as_none_does(self, trained, arm, way):
        seen = trained(f"{arm} {way}")
        for one, other in zip(trained("none eager"), seen, strict=True):
            assert (other["losses"], other["state"]) == (one["losses"], one["state"])
        assert seen[0]["state"] != pytest.approx(seen[1]["state"], rel=1e-3)

    def test_exchange_makes_a_difference_that_would_be_seen(self, trained):
        for one, other in zip(trained("ring eager"), trained("none eager"), strict=True):
            assert one["losses"][0] == other["losses"][0]
            assert one["losses"] != pytest.approx(other["losses"], rel=1e-3)
            assert one["state"] != pytest.approx(other["state"], rel=1e-2, abs=1e-4)


class TestBuckets:
    @pytest.mark.parametrize("arm", ["ring", "tree", "no_op(path=hook)"])
    def test_their_number_and_size_are_noted(self, trained, arm):
        for one, several in zip(trained(f"{arm} one bucket"), trained(f"{arm} several"), strict=True):
            assert one["notes"][0].startswith("1 bucket of ")
            assert int(several["notes"][0].split()[0]) > 2

    @pytest.mark.parametrize("arm", ["all_reduce", "no_op", "none"])
    def test_those_of_ddps_own_path_are_not_seen_before_split_steps(self, trained, arm):
        assert [rank["notes"] for rank in trained(f"{arm} several")] == [[], []]

    @pytest.mark.parametrize("way", BUCKETS_MB)
    @pytest.mark.parametrize("arm", ARMS)
    def test_bytes_are_metered_in_every_step(self, trained, arm, way):
        """Two ranks: by a ring, a tree and an all-reduce alike each sends what it has once."""
        for rank in trained(f"{arm} {way}"):
            assert rank["sent"] == [rank["num_bytes"] if arm in EXCHANGING else 0] * NUM_STEPS


class TestBucketSizes:
    """DDP's buckets with their sizes one by one are what is exchanged, and the training stays the same."""

    @pytest.mark.parametrize("name", SIZED)
    @pytest.mark.parametrize(
        ("way", "sizes"),
        [
            ("one size", [8]),
            pytest.param(
                *("one by one", [2, 1, 4, 1]),
                marks=pytest.mark.skipif(not TAKES_SIZES, reason="this torch takes two sizes"),
            ),
            *((way, [1, 3, 3, 1]) for way in ("first and others", "in older torch")),
        ],
    )
    def test_last_one_is_repeated_and_they_change_no_training(self, ranks, name, way, sizes):
        for rank in (rank["bucket_sizes"][name] for rank in ranks):
            assert rank[way]["bytes"] == [size * KIB for size in sizes]
            expected = pytest.approx(rank["one size"]["parameters"], rel=1e-6, abs=1e-7)
            assert rank[way]["parameters"] == expected

    def test_unused_parameters_are_not_looked_for_where_sizes_are_those_of_gradients_in_order(self, ranks):
        said = "needs a loss that depends on every parameter"
        assert all(said in rank["bucket_sizes"]["refused"] for rank in ranks)


@pytest.mark.parametrize("arm", ARMS)
def test_dry_passes_leave_parameters_statistics_and_random_state(ranks, arm):
    assert [rank["dry_passes"][arm] for rank in ranks] == [[], []]


class TestSpans:
    def split(self, trained, arm):
        """Spans of each split step of both ranks."""
        seen = trained(f"{arm} split")
        assert [rank["spans"][:SPLIT_FROM] for rank in seen] == [[None] * SPLIT_FROM] * 2
        return [spans for rank in seen for spans in rank["spans"][SPLIT_FROM:]]

    @pytest.mark.parametrize("arm", ARMS)
    def test_computation_is_on_main(self, trained, arm):
        for spans in self.split(trained, arm):
            phases = [phase for phase, lane, *_ in spans if lane == "main"]
            assert (phases[0], phases[-1]) == ("forward", "update")
            assert set(phases) == {"forward", "backward", "update"}

    @pytest.mark.parametrize("arm", EXCHANGING)
    def test_exchange_is_beside_and_begins_before_backward_ends(self, trained, arm):
        for spans in self.split(trained, arm):
            exchanges = [start for phase, lane, start, _ in spans if (phase, lane) == ("communicate", "comm")]
            assert len(exchanges) > 2
            assert min(exchanges) < max(stop for phase, _, _, stop in spans if phase == "backward")

    @pytest.mark.parametrize("arm", ARMS)
    def test_control_arms_exchange_nothing_and_only_none_has_no_hook(self, trained, arm):
        lanes = {lane for spans in self.split(trained, arm) for _, lane, *_ in spans}
        assert ("hook" in lanes) == (arm != "none")
        assert (lanes <= {"main", "hook"}) == (arm in CONTROLS)


@pytest.mark.parametrize("name", ["all_reduce", "ring"])
@pytest.mark.parametrize("form", ["noise", "preconditioned_noise"])
def test_looks_at_gradients_are_those_of_the_eager_step(ranks, name, form):
    seen, expected = (ranks[1]["looks_with_adam"][f"{name} {way}"][form] for way in ("overlapped", "eager"))
    places = [expected["steps"].index(step) for step in seen["steps"]]
    assert places == ([1] if name == "all_reduce" else [0, 1, 2]), "DDP hides its exchange: seldom"
    for norm in ("small", "big"):
        assert seen[norm] == pytest.approx([expected[norm][place] for place in places], rel=1e-3)


def test_step_is_gone_when_nobody_has_it(ranks):
    assert [rank["left"] for rank in ranks] == [[], []]


def test_after_an_exchange_that_fails_nothing_is_exchanged_and_a_new_group_works(ranks, trained):
    """The reason is the error of the rank that failed, whatever it was that the other one waited for."""
    waited, failed = (rank["failed"]["failure"] for rank in ranks)
    assert (failed, waited is None) == ("KeyError: 'planted failure'", False)
    assert [rank["failed"]["outcome"] for rank in ranks] == [[failed, True, 2]] * 2
    again = [rank["failed"]["losses_again"] for rank in ranks]
    assert again == [rank["losses"] for rank in trained("ring several")]


if __name__ == "__main__":
    as_rank(seen_by)
