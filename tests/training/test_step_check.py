"""A run checks its own exchanges, updates and replicas: planted faults fail, right ones leave no trace."""

import dataclasses
import functools
import itertools
import random

import pytest
import torch

from scaling.aggregators.host import HostParallel, HostSerial
from scaling.aggregators.native import AllReduce
from scaling.aggregators.one_bit import OneBit
from scaling.aggregators.one_bit_flat import OneBitFlatCodec
from scaling.aggregators.qsgd import Qsgd
from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.ring import Ring
from scaling.aggregators.sign import EfSign, MeanSignCodec, Sign
from scaling.aggregators.sixteen_bit import Bf16, Fp16
from scaling.aggregators.top_k import TopK
from scaling.aggregators.tree import Tree
from scaling.errors import ExchangeError
from scaling.process_group import run_in_process
from scaling.training import exchange_check, step_check, update
from scaling.training.exchange_check import require_equal, shared_tensors
from scaling.training.optimizers import AdamSettings, SgdSettings
from scaling.training.step_check import FIRST_STEPS, LATER_STEPS, StepCheck
from tests.training import small

SETTINGS = SgdSettings(0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)
PLAIN = SgdSettings(0.05)
ADAM = AdamSettings(0.01, decoupled=True)
ADAM_COUPLED = dataclasses.replace(ADAM, decoupled=False)
IN_THREADS = [
    name for name in BUILT_IN if create(name).library is None and create(name).ddp_path() != "library_hook"
]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch):
    """A busy machine checks as many steps as a quiet one."""
    monkeypatch.setattr(step_check, "MAX_SECONDS", float("inf"))


network = functools.partial(small.normalised, 12, 40, 6, dropout=0.2)
batches = functools.partial(small.batches, count=3)


def make(aggregator, group, settings=PLAIN, *, layered=False):
    chosen = (network(), aggregator, settings, group)
    return small.layered(*chosen, bucket_mb=1e-3) if layered else small.eager(*chosen)


def check(aggregator, world_size=2, settings=PLAIN, *, layered=False, steps_before=0):
    """The findings of every rank."""

    def work(group):
        step = make(aggregator, group, settings, layered=layered)
        own = batches(group.rank)
        checked = StepCheck(step, aggregator, settings, group)
        for number in range(steps_before):
            step(*own[number % len(own)])
        checked.replicas()
        checked.steps(own, LATER_STEPS if steps_before else FIRST_STEPS)
        return checked.findings.as_dict()

    return run_in_process(world_size, work)


def settings_for(aggregator) -> SgdSettings:
    return PLAIN if aggregator.own_momentum() else SETTINGS


class TestRightOnes:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("world_size", [1, 3])
    @pytest.mark.parametrize("name", IN_THREADS)
    def test_every_built_in_passes_in_the_eager_step(self, name, world_size):
        aggregator = create(name)
        for found in check(aggregator, world_size, settings_for(aggregator)):
            if aggregator.exchanges:
                assert found["steps"] == FIRST_STEPS
                assert ("not checked" in found["exchange"]) == (aggregator.settling_steps() > 0)
                assert found["largest_error_ratio"] <= 1
            else:
                assert found["exchange"].startswith("not checked: a control arm")

    @pytest.mark.parametrize("name", ["all_reduce", "one_bit", "power_sgd", "fp16", "one_bit_momentum"])
    def test_bucket_by_bucket(self, name):
        aggregator = create(name)
        for found in check(aggregator, 2, settings_for(aggregator), layered=True):
            assert found["exchanges"] > found["steps"] == FIRST_STEPS

    @pytest.mark.parametrize("name", ["ring", "host_parallel", "one_bit", "top_k"])
    def test_late_in_a_training(self, name):
        for found in check(create(name), 2, SETTINGS, steps_before=5):
            assert found["steps"] == LATER_STEPS

    def test_without_residuals_and_bound_it_says_that_nothing_was_checked(self):
        for found in check(create("power_sgd", {"error_feedback": False, "minimum_compression": 1.0})):
            assert "not checked: lossy, without residuals or an error bound" in found["exchange"]

    @pytest.mark.parametrize("name", ["ring", "host_serial", "tensorflow", "one_bit", "qsgd"])
    def test_the_training_goes_on_bit_for_bit_as_without_a_check(self, name):
        aggregator = create(name)

        def train(group, checked):
            torch.manual_seed(group.rank)
            step, losses = make(aggregator, group, SETTINGS), []
            for number in range(6):
                if checked and number in (0, 4):
                    StepCheck(step, aggregator, SETTINGS, group).steps(batches(group.rank), 3)
                losses.append(step(*batches(group.rank)[number % 3]))
            return [*losses, *(one.clone() for one in step.replica.module.state_dict().values())]

        # One rank: threads would share the random state of dropout.
        seen, wanted = (run_in_process(1, lambda group, on=on: train(group, on))[0] for on in (True, False))
        assert all(torch.equal(one, other) for one, other in zip(seen, wanted, strict=True))

    @pytest.mark.parametrize("settings", [SETTINGS, ADAM], ids=["sgd", "adamw"])
    def test_a_mean_that_is_not_known_once_is_no_wrong_update_later(self, monkeypatch, settings):
        """As where a library hides its exchange, and a gradient computed again is another in that step."""
        original = StepCheck._check_exchange

        def hidden_in_the_third(self, exchange):
            delivered = original(self, exchange)
            return {} if self.findings.num_steps == 2 else delivered

        monkeypatch.setattr(StepCheck, "_check_exchange", hidden_in_the_third)
        assert [one["steps"] for one in check(create("ring"), 2, settings)] == [FIRST_STEPS] * 2

    def test_gradients_that_are_not_finite_are_not_judged(self):
        def work(group):
            step = make(AllReduce(), group)
            checked = StepCheck(step, AllReduce(), PLAIN, group)
            inputs, targets = batches(group.rank)[0]
            checked.steps([(inputs * float("inf"), targets)], 2)
            return checked.findings.as_dict()

        for found in run_in_process(2, work):
            assert found["exchange"] == "not checked: a gradient is not finite"


def faulty(base, *, scale=1.0, dtype=None, ranks=(0, 1, 2), at_call=None, every=None, element=None):
    """As an aggregator whose result is wrong: on some ranks, in some calls, at some elements."""
    calls: dict[int, int] = {}
    right = base() if isinstance(base, type) else base

    @dataclasses.dataclass(frozen=True)
    class Faulty(type(right)):
        name = "faulty"

        def aggregate(self, state, gradient, *phase):
            mean = super().aggregate(state, gradient, *phase)
            rank = state.group.rank
            calls[rank] = calls.get(rank, 0) + 1
            now = calls[rank] == at_call if at_call else calls[rank] % (every or 1) == 0
            if mean is None or rank not in ranks or not now:
                return mean
            mean = mean.clone()
            part = mean if element is None else mean[element : element + 1]
            part.copy_(part.to(dtype).to(part.dtype) if dtype else part * scale)
            return mean

    return Faulty(**dataclasses.asdict(right))


class TestPlantedFaults:
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("seed", range(8))
    @pytest.mark.parametrize("base", [AllReduce, Ring, Tree, HostSerial, HostParallel, OneBit, EfSign, Fp16])
    def test_a_wrong_mean_fails_the_run(self, base, seed):
        drawn = random.Random(f"{base.__name__} {seed}")
        fault = {
            "scale": drawn.choice([0.0, -1.0, 0.5, 1.5, 7.0]),
            "ranks": drawn.choice([(0, 1, 2), (0,) if base is HostSerial else (drawn.randrange(3),)]),
            "at_call": drawn.randint(1, FIRST_STEPS),
        }
        with pytest.raises(ExchangeError):
            check(faulty(base, **fault), 3)

    @pytest.mark.parametrize(
        ("base", "fault", "said"),
        [
            *((one, {"dtype": torch.bfloat16}, "lossy = True") for one in (AllReduce, Ring, HostParallel)),
            (AllReduce, {"scale": 2.0, "every": 7}, "checked step 7"),
            (EfSign, {"scale": 7.0}, "total_residual"),
            *((one, {"scale": 7.0}, "error_bound") for one in (Fp16, Bf16, Sign)),
            *((one, {"scale": 7.0}, "breaks its law") for one in (Qsgd, TopK(error_feedback=False))),
            (TopK(momentum_correction=0.9), {"scale": 7.0}, "breaks its law"),
        ],
    )
    def test_what_is_wrong_or_to_be_mended_is_said(self, base, fault, said):
        with pytest.raises(ExchangeError, match=said):
            check(faulty(base, **fault), 2)

    @pytest.mark.parametrize("element", [0, 17, 480, 843])
    def test_a_single_element_is_named(self, element):
        names = {0: "element 0 of 0.weight", 17: "17 of 0.weight", 480: "0 of 0.bias", 843: "3 of 4.bias"}
        with pytest.raises(ExchangeError, match=names[element]) as raised:
            check(faulty(AllReduce, scale=7.0, element=element), 2)
        assert "7 times it" in str(raised.value)

    def test_what_begins_late_is_seen_by_the_later_check(self):
        with pytest.raises(ExchangeError):
            check(faulty(AllReduce, scale=2.0, at_call=21), 2, steps_before=20)

    @pytest.mark.parametrize("seed", range(6))
    @pytest.mark.parametrize(
        ("name", "codec"), [("one_bit_flat", OneBitFlatCodec), ("ef_sign", MeanSignCodec)]
    )
    def test_a_codec_that_restores_wrongly_once(self, monkeypatch, name, codec, seed):
        drawn = random.Random(f"{name} {seed}")
        scale, at_call, calls = drawn.choice([0.5, 0.99, 1.01, 2.0]), drawn.randint(1, 40), []
        original = codec.restore

        def restore(self, heads, codes):
            calls.append(None)
            values = original(self, heads, codes)
            return values * scale if len(calls) == at_call else values

        monkeypatch.setattr(codec, "restore", restore)
        with pytest.raises(ExchangeError):
            check(create(name, {"kernels": "torch", "chunk_elements": 64}), 2)
        assert len(calls) >= at_call

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("name", ["all_reduce", "host_serial", "host_parallel", "tensorflow", "tf_spec"])
    def test_an_update_site_that_steps_wrongly(self, monkeypatch, name, seed):
        drawn = random.Random(f"{name} {seed}")
        scale, at_call, calls = drawn.choice([0.0, 0.9, 1.1, -1.0]), drawn.randint(1, 8), []
        original = update.OwnedUpdate.step_parts

        def step_parts(self, parts):
            calls.append(None)
            wrong = [part * scale for part in parts] if len(calls) == at_call else parts
            original(self, wrong)

        monkeypatch.setattr(update.OwnedUpdate, "step_parts", step_parts)
        with pytest.raises(ExchangeError, match=r"update is not SGD's|drifted apart"):
            check(create(name), 2, SETTINGS)

    @pytest.mark.parametrize(
        ("settings", "lost"),
        [
            (SETTINGS, {"momentum": 0.0, "nesterov": False}),
            (SETTINGS, {"weight_decay": 0.0}),
            (SETTINGS, {"nesterov": False}),
            (ADAM, {"beta2": 0.9}),
        ],
    )
    def test_an_update_by_another_rule(self, monkeypatch, settings, lost):
        kind, changed = type(settings), dataclasses.replace(settings, **lost)
        original = kind.optimizer
        monkeypatch.setattr(kind, "optimizer", lambda _, *args, **named: original(changed, *args, **named))
        with pytest.raises(ExchangeError, match=r"update is not (SGD|AdamW)'s"):
            check(create("ring"), 2, settings)

    @pytest.mark.parametrize(
        ("settings", "fault"),
        [
            *itertools.product((SETTINGS, ADAM_COUPLED, ADAM), ("rate", "twice", "stale")),
            *((one, "correction") for one in (ADAM_COUPLED, ADAM)),
        ],
    )
    def test_a_wrong_step_of_every_optimizer(self, monkeypatch, settings, fault):
        original = type(settings).optimizer

        def wrong(self, *args, **named):
            optimizer = original(self, *args, **named)
            right, old = optimizer.step, []

            def step():
                (group,) = optimizer.param_groups
                parameters, rate = group["params"], group["lr"]
                new = [one.grad.clone() for one in parameters]
                if fault == "stale" and old:
                    for one, gradient in zip(parameters, old, strict=True):
                        one.grad.copy_(gradient)
                old[:] = new
                if fault == "correction":
                    for state in optimizer.state.values():
                        state["step"] += 1000
                group["lr"] = 1.01 * rate if fault == "rate" else rate
                for _ in range(2 if fault == "twice" else 1):
                    right()
                group["lr"] = rate

            optimizer.step = step
            return optimizer

        monkeypatch.setattr(type(settings), "optimizer", wrong)
        with pytest.raises(ExchangeError, match=r"update is not (SGD|Adam|AdamW)'s"):
            check(create("ring"), 2, settings)


class TestReplicas:
    def test_drift_names_tensor_ranks_and_distance(self):
        def work(group):
            module = network()
            if group.rank == 2:
                module[4].bias.data[3] += 0.25
            require_equal(shared_tensors(module, {}, group), group)

        with pytest.raises(ExchangeError, match=r"in 4\.bias rank 2 differs from rank 0 by up to 0\.25"):
            run_in_process(3, work)

    def test_what_a_rank_alone_changes_in_a_training_is_found(self):
        def work(group):
            step = make(AllReduce(), group)
            checked = StepCheck(step, AllReduce(), PLAIN, group)
            for number, batch in enumerate(batches(group.rank)):
                step(*batch)
                if (group.rank, number) == (1, 1):
                    step.replica.trainable[0].data[0, 0] += 1e-3
            checked.replicas()

        with pytest.raises(ExchangeError, match=r"0\.weight rank 1 differs"):
            run_in_process(2, work)

    def test_statistics_of_each_rank_may_differ_but_constants_may_not(self):
        def work(group, is_constant):
            module = network()
            module.register_buffer("table", torch.full((3,), 0.0 if is_constant else float(group.rank)))
            initial = {name: one.clone() for name, one in module.named_buffers()}
            module[1].running_mean += group.rank
            require_equal(shared_tensors(module, initial, group), group)

        run_in_process(2, lambda group: work(group, True))
        with pytest.raises(ExchangeError, match="table"):
            run_in_process(2, lambda group: work(group, False))

    def test_signs_of_zeros_and_bits_of_nan_are_no_difference(self):
        def work(group):
            values = torch.tensor([0.0 if group.rank else -0.0, float("nan")])
            require_equal({"values": values}, group)

        run_in_process(2, work)

    @pytest.mark.parametrize("element", [1, 16, 17, 49])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool])
    def test_one_element_of_any_type_and_block_is_found(self, dtype, element, monkeypatch):
        monkeypatch.setattr(exchange_check, "BLOCK", 16)

        def work(group):
            values = torch.ones(50, dtype=dtype)
            if group.rank:
                values[element] = 0
            require_equal({"values": values[1:]}, group)  # which begins at no whole word

        with pytest.raises(ExchangeError, match="in values rank 1 differs from rank 0 by up to 1"):
            run_in_process(2, work)

    def test_a_control_arm_is_exempt(self):
        def work(group):
            step = make(create("none"), group)
            step(*batches(group.rank)[0])
            StepCheck(step, create("none"), PLAIN, group).replicas()

        run_in_process(2, work)
