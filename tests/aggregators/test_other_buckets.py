"""Saved states in other buckets: what is withheld is a parameter's, whoever owns it and wherever it lies."""

from functools import cache
from itertools import pairwise

import pytest
import torch

from scaling.aggregators.registry import BUILT_IN, create
from scaling.aggregators.state import load_buckets, save_buckets
from scaling.bucket import BucketLayout
from scaling.errors import CheckpointError
from scaling.process_group import run_in_process
from tests.aggregators.conftest import CODECS, CPU, made, of_states

SHAPES = {"conv": (6, 3, 5, 5), "bias": (6,), "a": (40, 37), "b": (40, 37), "one": (), "nothing": (0, 4)}
BUCKETS = {
    "one bucket": [["conv", "bias", "a", "b", "one", "nothing"]],
    "another order": [["one", "nothing", "b", "bias", "a", "conv"]],
    "several": [["b", "one"], ["nothing", "bias", "a"], ["conv"]],
    "one each": [["nothing"], ["one"], ["b"], ["a"], ["bias"], ["conv"]],
}
MOVES = list(pairwise([*BUCKETS, next(iter(BUCKETS))]))
"""Each way of cutting is left once and come to once."""
VARIANTS = [label for label in CODECS if label not in ("fp16", "bf16")]
WITH_LAW = [
    "one_bit", "one_bit_flat", "one_bit_flat small chunks", "two_bit", "ef_sign", "top_k", "power_sgd",
    "power_sgd from cold",
]  # fmt: skip
STRIPED = ["one_bit_flat", "one_bit_flat small chunks", "one_bit_momentum"]


def gradient_of(rank, step, name):
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + list(SHAPES).index(name))
    return torch.randn(SHAPES[name], generator=generator)


class Trained:
    """One rank's buckets, and what has been delivered of each parameter."""

    def __init__(self, label, buckets, group, steps=0):
        self.label, self.aggregator, self.group, self.step = label, made(label), group, 0
        cut = [[(name, SHAPES[name]) for name in names] for names in BUCKETS[buckets]]
        self.layouts = [BucketLayout.of(tensors) for tensors in cut]
        self.states = [self.aggregator.start(one, group, torch.float32, CPU) for one in self.layouts]
        self.take_steps(steps)

    def by_name(self, flats):
        named = {}
        for layout, flat in zip(self.layouts, flats, strict=True):
            named |= dict(zip(layout.names, layout.views(flat), strict=True))
        return {name: named[name] for name in SHAPES}

    def take_steps(self, count):
        """[step] -> parameter -> mean."""
        means = []
        for step in range(self.step, self.step + count):
            flats = []
            for layout, state in zip(self.layouts, self.states, strict=True):
                gradient = [gradient_of(self.group.rank, step, name).flatten() for name in layout.names]
                flats.append(self.aggregator.aggregate(state, torch.cat(gradient)).clone())
            means.append(self.by_name(flats))
        self.step += count
        return means

    def moved_to(self, buckets):
        other = Trained(self.label, buckets, self.group)
        other.step = self.step
        load_buckets(other.states, save_buckets(self.states))
        return other

    def kept(self):
        """What is saved by parameter, but for the stripes, whose owners change."""
        saved = save_buckets(self.states)
        return {
            name: one
            for tensors in saved.values()
            for name, one in tensors.items()
            if not name.startswith("stripe_") or self.aggregator.name == "one_bit"
        }

    def stripe_residuals(self):
        """Parameter -> the own part of its stripes' residual at its place, zeros elsewhere."""
        flats = []
        for state in self.states:
            flat = torch.zeros(state.chunks.padded)
            state.chunks.matrix(flat)[state.own] = state.stripe_residual
            flats.append(flat)
        return self.by_name(flats)

    def withheld(self):
        has_own = self.aggregator.name == "one_bit_momentum"
        return self.by_name([one.withheld() if has_own else one.total_residual() for one in self.states])


def total(ranks):
    """The sum over the ranks, in float64, by parameter."""
    return {name: sum(rank[name].double() for rank in ranks) for name in SHAPES}


def across_a_move(seen, label, old, new, world_size):
    """[rank] -> what `seen` tells before and after a change of buckets."""

    def work(group):
        before = Trained(label, old, group, steps=2)
        group.meter.reset()
        after = before.moved_to(new)
        assert group.meter.messages_sent == 0, "handing over is not metered"
        return seen(before), seen(after)

    return run_in_process(world_size, work)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("old", "new", "world_size"), [(*MOVES[0], 1), *((*move, 3) for move in MOVES)])
@pytest.mark.parametrize("label", VARIANTS)
def test_what_a_rank_keeps_of_a_parameter_moves_with_it_bit_for_bit(label, old, new, world_size):
    for before, after in across_a_move(Trained.kept, label, old, new, world_size):
        assert set(before) == set(after)
        for name, kept in before.items():
            if not name.startswith("drawn/"):  # of a bucket; which one's, is free
                assert torch.equal(after[name], kept), name


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("old", "new", "world_size"), [(*MOVES[0], 2), *((*move, 7) for move in MOVES)])
@pytest.mark.parametrize("label", STRIPED)
def test_residuals_of_stripes_go_to_their_new_owners_bit_for_bit(label, old, new, world_size):

    ranks = across_a_move(Trained.stripe_residuals, label, old, new, world_size)
    before, after = (total(kept) for kept in zip(*ranks, strict=True))
    assert any(bool(one.any()) for one in before.values())
    for name in SHAPES:
        assert torch.equal(before[name], after[name])
        owners = torch.stack([rank[1][name] for rank in ranks]).ne(0).sum(0)
        assert bool((owners <= 1).all())


@cache
def run_across(label, buckets, world_size):
    """[rank] -> the means of all steps, two in each of `buckets`, and what is withheld in the end."""

    def work(group):
        trained = Trained(label, buckets[0], group)
        means = trained.take_steps(2)
        for after in buckets[1:]:
            trained = trained.moved_to(after)
            means += trained.take_steps(2)
        return means, trained.withheld() if label in (*WITH_LAW, "one_bit_momentum") else None

    return run_in_process(world_size, work)


ACROSS = ("one bucket", "several", "another order", "one each", "one bucket")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("world_size", [2, 3, 7])
@pytest.mark.parametrize("label", [*WITH_LAW, "one_bit_momentum"])
def test_law_of_what_is_withheld_holds_across_changes_of_buckets(label, world_size):
    """Gradients - n means = what is withheld, over all steps: nothing was lost or taken twice on the way.

    Where there is momentum, each rank adds its gradient to momentum times the last result.
    """
    ranks = run_across(label, ACROSS, world_size)
    withheld = total([rank[1] for rank in ranks])
    momentum = made(label).momentum if label == "one_bit_momentum" else 0.0
    for name in SHAPES:
        owed, last = (torch.zeros(SHAPES[name], dtype=torch.float64) for _ in range(2))
        for step, means in enumerate(ranks[0][0]):
            owed += sum(gradient_of(rank, step, name).double() for rank in range(world_size))
            owed += world_size * (momentum * last - means[name].double())
            last = means[name].double()
        assert torch.allclose(withheld[name], owed, rtol=0, atol=1e-3 if momentum else 3e-4), name


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("label", VARIANTS)
def test_replicas_have_the_same_bits_across_changes_of_buckets(label, world_size):
    (first, _), *others = run_across(label, ACROSS, world_size)
    for means, _ in others:
        for ours, theirs in zip(first, means, strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in SHAPES)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("label", ["one_bit", "two_bit", "power_sgd"])  # neighbours decide nothing
def test_codecs_that_no_bucket_decides_go_on_as_if_buckets_had_stayed(label, world_size):
    moved, stayed = (run_across(label, way, world_size) for way in (ACROSS, ACROSS[:1] * len(ACROSS)))
    for ours, theirs in zip(moved[0][0], stayed[0][0], strict=True):
        for name in SHAPES:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("buckets", ["one bucket", "several"])
@pytest.mark.parametrize("label", VARIANTS)
def test_in_the_same_buckets_it_goes_on_bit_for_bit_and_sends_nothing_for_it(label, buckets):
    def work(group):
        uncut = Trained(label, buckets, group, steps=2)
        saved = save_buckets(uncut.states)
        resumed = Trained(label, buckets, group)
        group.all_reduce = None  # would be called
        group.meter.reset()
        load_buckets(resumed.states, saved)
        del group.all_reduce
        assert group.meter.messages_sent == 0
        resumed.step = uncut.step
        pairs = zip(uncut.take_steps(2), resumed.take_steps(2), strict=True)
        return [torch.equal(ours[name], theirs[name]) for ours, theirs in pairs for name in SHAPES]

    for same in run_in_process(3, work):
        assert all(same)


@pytest.mark.parametrize("name", [name for name in BUILT_IN if create(name).library is None])
def test_every_built_in_keeps_its_state_by_parameter(name):
    layout = BucketLayout.of(list(SHAPES.items()))
    for kept in of_states(create(name), layout, 2, lambda state: list(state.state_dict())):
        assert all(one.split("/", 1)[1] in SHAPES for one in kept)


def without_a(tensors):
    for name in [name for name in tensors if name.endswith("/a")]:
        del tensors[name]


def with_one_value_of_b(tensors):
    if "residual/b" in tensors:
        tensors["residual/b"] = tensors["residual/b"].flatten()[:1]


def with_borders_that_are_none(tensors):
    if "stripe_borders/a" in tensors:
        tensors["stripe_borders/a"] = torch.tensor([0, 2000, 1480])


@pytest.mark.parametrize(("label", "num_ranks", "change", "match"), [
    *((label, 2, without_a, r"has no '\w+/a': it is of another model")
      for label in VARIANTS if label != "sign"),
    *((label, 2, with_one_value_of_b, r"has '\w+/b' with shape \[1\], here it is \[40, 37\]")
      for label in VARIANTS if label not in ("sign", "qsgd")),
    *((label, 3, dict, "world size") for label in ("one_bit", *STRIPED)),
    ("one_bit_flat", 2, with_borders_that_are_none,
     r"'stripe_borders/a' \[0, 2000, 1480\], for a parameter of 1480"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_on_every_rank_and_what_was_there_stays(label, num_ranks, change, match):
    saved = run_in_process(num_ranks, lambda group: save_buckets(Trained(label, "several", group, 2).states))
    for tensors in (tensors for rank in saved for tensors in rank.values()):
        change(tensors)

    def work(group):
        trained = Trained(label, "one bucket", group, steps=1)
        before = trained.kept()
        with pytest.raises(CheckpointError, match=match):
            load_buckets(trained.states, saved[group.rank])
        return all(torch.equal(one, before[name]) for name, one in trained.kept().items())

    assert all(run_in_process(2, work))


class TestOfABucketAsAWhole:
    """What an aggregator of somebody else names in `persistent`."""

    def state(self, group, buckets):
        trained = Trained("ef_sign", buckets, group)
        for state in trained.states:
            state.by_parameter, state.persistent = (), ("residual",)
        return trained

    def test_it_goes_on_in_the_same_buckets(self):
        def work(group):
            before, after = self.state(group, "several"), self.state(group, "several")
            before.take_steps(1)
            load_buckets(after.states, save_buckets(before.states))
            pairs = zip(before.states, after.states, strict=True)
            return [torch.equal(one.residual, other.residual) for one, other in pairs]

        assert all(all(same) for same in run_in_process(2, work))

    @pytest.mark.parametrize("new", ["several", "another order"])
    def test_other_buckets_are_refused(self, new):
        """Even where they are of the same size."""

        def work(group):
            before, after = self.state(group, "one bucket"), self.state(group, new)
            with pytest.raises(CheckpointError, match=r"a bucket of other parameters, or in another order"):
                load_buckets(after.states, save_buckets(before.states))

        run_in_process(2, work)

    def test_one_bucket_too_many_is_refused(self):
        def work(group):
            before, after = self.state(group, "one bucket"), self.state(group, "several")
            with pytest.raises(CheckpointError, match=r"has no 'bucket': .* other buckets"):
                load_buckets(after.states[1:], {"1": before.states[0].state_dict()})

        run_in_process(2, work)
