"""Exchanges out of sight are compared with gradients computed again: rounding passes, wrong means do not."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.process_group import run_in_process
from scaling.training import exchange_check, exchanges
from scaling.training.exchange_check import deviation, place
from scaling.training.exchanges import repeatable_gradients

SHAPES = {"tokens": (64, 48), "norm": (48,), "head": (48, 10), "gate": (16, 4)}
SCALES = {"tokens": 1.0, "norm": 0.3, "head": 0.1, "gate": 1e-3}
BF16 = torch.bfloat16
BF16_EPS = torch.finfo(BF16).eps
ATOMICS, BADLY = 3e-3, 6e-3
"""What additions in a changing order do to the gradient of tokens here, as a ratio to its scale."""


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch):
    """Of which none ends with a tensor."""
    monkeypatch.setattr(exchange_check, "CHUNK_ELEMENTS", 1000)


def backward(rank, scatter, scattered):
    """Gives a rank's gradients, which come to one of the two nearest numbers of bf16 by chance.

    `scatter`: besides, what each call adds at most to those of `scattered`.
    """
    generator = torch.Generator().manual_seed(rank)
    exact = {name: SCALES[name] * torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    def noise(like, size):
        return size * (2 * torch.rand(like.shape, generator=generator) - 1)

    def compute():
        found = {name: (one * (1 + noise(one, 2.0**-9))).to(BF16).float() for name, one in exact.items()}
        found[scattered] += noise(found[scattered], scatter)
        return list(found.values())

    return compute


FAULTS = {
    "larger tensor": ("head", lambda means, _: means["head"].mul_(1.2)),
    "larger element": ("head", lambda means, _: largest(means["head"]).mul_(1.1)),
    "own for mean": ("norm", lambda means, own: means["norm"].copy_(own["norm"])),
}


def largest(values):
    return values.view(-1)[int(values.abs().argmax())]


def percent_larger(name):
    return lambda means, _: means[name].mul_(1.03)


def worst(fault=lambda *_: None, autocast=BF16, scatter=0.0, scattered="tokens"):
    """The largest deviation on any rank, the tensor, and those that vary; None: gradients do not repeat."""

    def work(group):
        compute = backward(group.rank, scatter, scattered)
        like = [torch.zeros(shape) for shape in SHAPES.values()]
        repeated = repeatable_gradients(compute, like, lambda one: group.largest_of([one])[0], autocast)
        if repeated is None:
            return None
        own = dict(zip(SHAPES, compute(), strict=True))
        means = {name: one.clone() for name, one in own.items()}
        for one in means.values():
            group.all_reduce(one)
            one.div_(group.world_size)
        fault(means, own)
        (exchange,) = exchanges.recomputed_exchanges(list(SHAPES), repeated, list(means.values()), autocast)
        found = deviation(create("all_reduce"), exchange, "exact mean", group)
        return found.ratio, place(exchange.layout, found.element).split()[-1], found.coarse

    found = run_in_process(2, work)
    return None if None in found else max(found)


@pytest.mark.parametrize("scatter", [0.0, ATOMICS])
def test_what_rounding_changes_from_one_computation_to_the_next_passes(scatter):
    assert 0.0 < worst(scatter=scatter)[0] <= 1.0


@pytest.mark.parametrize("scatter", [0.0, ATOMICS])
@pytest.mark.parametrize(("tensor", "fault"), FAULTS.values(), ids=list(FAULTS))
def test_a_planted_fault_does_not_also_where_another_tensor_scatters(fault, tensor, scatter):
    ratio, where, _ = worst(fault, scatter=scatter)
    assert (ratio > 1.0, where) == (True, tensor)


@pytest.mark.parametrize(("name", "scatter"), [*((name, 0.0) for name in SHAPES), ("tokens", BADLY)])
def test_three_percent_are_found_in_a_tensor_of_any_size_and_in_one_that_repeats_badly(name, scatter):
    ratio, where, coarse = worst(percent_larger(name), scatter=scatter)
    assert (ratio > 1.0, where, coarse) == (True, name, ())


def test_a_tensor_far_below_the_rounding_of_the_largest_is_named_and_not_compared(monkeypatch):
    monkeypatch.setitem(SCALES, "gate", 1e-6)
    ratio, _, coarse = worst(percent_larger("gate"))
    assert (ratio <= 1.0, coarse) == (True, ("gate",))


def test_a_tensor_that_varies_too_much_for_that_is_named():
    ratio, _, coarse = worst(scatter=BADLY, scattered="head")
    assert (ratio <= 1.0, coarse) == (True, ("head",))


def test_few_elements_say_little_of_how_much_they_vary():
    repeats = exchanges.RepeatDifferences(BF16_EPS, (0.1, 0.1))
    layout = BucketLayout.of([("scale", ()), ("weights", (400,))])
    values = torch.zeros(401)

    def slack(scale, weights):
        mean = torch.cat([torch.full((1,), scale), torch.full((400,), weights)])
        exchange = exchanges.BucketExchange(layout, values, mean, [(0, 401)], repeats=repeats)
        arguments = (create("all_reduce"), exchange, "exact mean")
        return run_in_process(1, lambda group: deviation(*arguments, group))[0].ratio

    assert slack(1.7, 0.2) <= 1.0 < min(slack(1.9, 0.0), slack(0.0, 0.3))


def test_what_is_allowed_is_measured(monkeypatch):
    monkeypatch.setattr(exchange_check, "REPEATED_TIMES", 0.0)
    monkeypatch.setattr(exchange_check, "OF_FEW", 0.0)
    ratio, where, _ = worst(scatter=BADLY, scattered="head")
    assert (ratio > 1.0, where) == (True, "head")


def test_another_kernel_may_round_a_small_element_twice_to_its_other_neighbour():
    def fault(means, own):
        means["head"].view(-1)[int(means["head"].abs().argmin())] += BF16_EPS * SCALES["head"]

    ratio, _, _ = worst(fault)
    assert ratio <= 1.0


@pytest.mark.parametrize("how", [{"autocast": None}, {"scatter": 0.1}], ids=["in float32", "far apart"])
def test_gradients_that_differ_by_more_than_rounding_are_not_compared(how):
    assert worst(**how) is None
