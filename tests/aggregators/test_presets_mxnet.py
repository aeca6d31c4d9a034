"""MXNet's stores: owners on the GPUs, trees of GPUs, sums on the CPU."""

import math

import pytest
import torch

from scaling.aggregators.presets import mxnet
from scaling.aggregators.presets.mxnet import MxnetDevice, MxnetLocal, MxnetTree, sum_in_passes
from scaling.bucket import BucketLayout
from scaling.collectives.mxnet_tree import link_trees, tree_edges
from scaling.collectives.owners import assign_owners
from scaling.collectives.verify import verify
from tests.aggregators.conftest import NETWORK, layout_of, mean_of, one_step
from tests.collectives.conftest import run_on_tensors

WORLD_SIZES = (1, 2, 3, 4, 7)

# Above 10 million elements, with 5 rows: cut for 2 ranks, too few rows for 3.
LARGE = BucketLayout.of([("a", (3,)), ("b", (0, 2)), ("c", (5, 2_000_003)), ("d", (7, 3)), ("e", (1,))])


def elements(layout):
    return [math.prod(shape) for shape in layout.shapes]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_owners_get_all_of_their_tensors_step_them_and_send_to_all(world_size):
    owners = assign_owners(elements(NETWORK), world_size)
    outcomes = one_step(MxnetDevice(), world_size, NETWORK)
    owned = [0] * world_size
    for offset, size, owner in zip(NETWORK.offsets, elements(NETWORK), owners, strict=True):
        owned[owner] += 4 * size
        assert not size or any(a <= offset and offset + size <= b for a, b in outcomes[owner].owned)
    for rank, outcome in enumerate(outcomes):
        others = [o for o in range(world_size) if o != rank and owned[o]]
        assert outcome.aggregate_traffic == (sum(owned) - owned[rank], len(others))
        sends = (world_size - 1) * bool(owned[rank])
        assert outcome.distribute_traffic == ((world_size - 1) * owned[rank], sends)


class TestTree:
    @pytest.mark.parametrize("layout", [LARGE, layout_of("fcn-r")], ids=["large", "fcn-r"])
    @pytest.mark.parametrize("world_size", range(1, 9))
    def test_schedule_delivers_the_sum_over_all_trees_also_of_an_empty_bucket(self, world_size, layout):
        verify(MxnetTree().schedule(world_size, BucketLayout.of([("a", (0,)), ("b", (3, 0))])))
        verification = verify(MxnetTree().schedule(world_size, layout))
        assert verification.num_steps == 2 * (world_size - 1).bit_length()
        assert sum(verification.sent_ratio_per_rank) == 2 * (world_size - 1)

    def test_large_tensor_is_cut_by_rows_and_the_last_slice_takes_what_is_left(self):
        schedule = MxnetTree().schedule(2, LARGE)
        assert schedule.chunk_elements == (3, 2 * 2_000_003, 3 * 2_000_003, 22)

    @pytest.mark.parametrize(("shape", "world_size", "is_cut"), [
        ((10, 1_000_000), 2, False),  # 10 million are not more than 10 million
        ((10, 1_000_001), 2, True), ((10, 1_000_001), 5, True),
        ((10, 1_000_001), 6, False),  # fewer than 12 rows
        ((10_000_001,), 8, True), ((10_000_001,), 1, False),
    ])  # fmt: skip
    def test_tensor_is_cut_if_it_is_large_and_has_two_rows_a_rank(self, shape, world_size, is_cut):
        schedule = MxnetTree().schedule(world_size, BucketLayout.of([("w", shape)]))
        assert schedule.num_chunks == (world_size if is_cut else 1)

    def test_slice_i_ends_at_rank_i_and_everything_else_at_rank_0(self, monkeypatch):
        monkeypatch.setattr(mxnet, "TREE_ARRAY_BOUND", 3000)
        owned = [outcome.owned for outcome in one_step(MxnetTree(), 3, NETWORK)]
        fc, wide, rows = NETWORK.offsets[3], NETWORK.offsets[5], 257 // 3
        wide_slices = [wide + i * rows * 263 for i in range(3)]
        bias, last = NETWORK.offsets[4], (NETWORK.offsets[6], NETWORK.num_elements)
        assert owned[0] == [(0, fc + 17 * 73), (bias, wide_slices[1]), last]
        assert owned[1] == [(fc + 17 * 73, fc + 34 * 73), (wide_slices[1], wide_slices[2])]
        assert owned[2] == [(fc + 34 * 73, fc + 51 * 73), (wide_slices[2], wide + 257 * 263)]

    @pytest.mark.parametrize("bound", [10_000_000, 3000])
    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_ranks_send_the_bucket_twice_to_each_but_one(self, monkeypatch, world_size, bound):
        monkeypatch.setattr(mxnet, "TREE_ARRAY_BOUND", bound)
        outcomes = one_step(MxnetTree(), world_size, NETWORK)
        up = sum(outcome.aggregate_traffic[0] for outcome in outcomes)
        down = sum(outcome.distribute_traffic[0] for outcome in outcomes)
        assert up == down == (world_size - 1) * 4 * NETWORK.num_elements

    def test_small_tensors_go_up_the_tree_of_rank_0(self):
        tree = link_trees([[1.0] * 4] * 4)[0]
        steps = MxnetTree().schedule(4, NETWORK).steps[:2]
        pairs = {(t.target, t.source) for step in steps for t in step}
        assert pairs == {(parent, child) for parent, child, _ in tree_edges(tree)}

    def test_cut_tensors_are_summed_like_whole_ones(self, monkeypatch):
        monkeypatch.setattr(mxnet, "TREE_ARRAY_BOUND", 3000)
        buffers = [torch.full((NETWORK.num_elements,), float(2**rank)) for rank in range(4)]
        for result in run_on_tensors(MxnetTree().schedule(4, NETWORK), buffers):
            assert result.eq(15).all()


class TestLocal:
    @pytest.mark.parametrize(("size", "site"), [(16 << 20, "host_serial"), ((16 << 20) + 1, "replica")])
    def test_step_is_on_the_gpus_if_a_tensor_has_more_than_16_mi_elements(self, size, site):
        assert MxnetLocal().site(BucketLayout.of([("a", (3,)), ("b", (size, 1))])) == site

    @pytest.mark.parametrize("world_size", WORLD_SIZES)
    def test_mean_comes_to_every_rank_that_takes_the_step(self, monkeypatch, world_size):
        monkeypatch.setattr(mxnet, "MAX_ELEMENTS_ON_HOST", 257 * 263 - 1)
        outcomes = one_step(MxnetLocal(), world_size, NETWORK)
        for outcome in outcomes:
            assert torch.equal(outcome.mean, outcomes[0].mean)
            assert torch.allclose(outcome.mean.double(), mean_of(world_size, NETWORK), rtol=0, atol=2e-6)
            assert outcome.owned == [(0, NETWORK.num_elements)]
            assert outcome.aggregate_traffic == (2 * 4 * NETWORK.num_elements, 7)  # the mean comes back whole

    def test_only_tensors_of_a_million_elements_have_several_threads(self, monkeypatch):
        used = []
        real = mxnet.threads
        monkeypatch.setattr(mxnet, "threads", lambda count: used.append(count) or real(1))
        monkeypatch.setattr(mxnet, "BIGARRAY_BOUND", 257 * 263)
        one_step(MxnetLocal(), 2, NETWORK)
        assert used == [1, 1, 1, 1, 4, 1]

    @pytest.mark.parametrize("world_size", range(1, 11))
    def test_at_most_four_addends_join_before_they_are_added(self, world_size):
        generator = torch.Generator().manual_seed(world_size)
        rows = [torch.randn(37, generator=generator) for _ in range(world_size)]
        expected = rows[0].clone()
        for first in range(1, world_size, 4):
            joined = rows[first].clone()
            for row in rows[first + 1 : first + 4]:
                joined = joined + row
            expected = expected + joined
        out = torch.empty(37)
        sum_in_passes(rows, out)
        assert torch.equal(out, expected)
