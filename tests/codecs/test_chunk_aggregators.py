"""Aggregators whose codec has kernels by chunks: on a GPU, or interpreted (`test_kernels_interpreted`)."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.codecs.finite import NotFiniteError
from scaling.process_group import run_in_process
from tests.codecs import test_chunk_kernels as kernels_alone
from tests.codecs.test_chunk_kernels import DEVICE, normal

pytestmark = kernels_alone.pytestmark

OF_64 = {"chunk_elements": 64}
AGGREGATORS = [(name, OF_64) for name in ("one_bit_flat", "one_bit_momentum", "sign", "ef_sign", "qsgd")]
AGGREGATORS += [("one_bit_flat", {**OF_64, "error_feedback": False}), ("two_bit", {"threshold": 0.5})]
LAYOUT = BucketLayout.of([("filter", (6, 3, 5, 5)), ("bias", (7,)), ("wide", (40, 37))])


@pytest.mark.parametrize(("name", "parameters"), AGGREGATORS)
class TestAggregators:
    def steps_of(self, name, parameters, kernels, bad=False):
        aggregator = create(name, {**parameters, "kernels": kernels})

        def work(group):
            state = aggregator.start(LAYOUT, group, torch.float32, DEVICE)
            results = []
            for step in range(1 if bad else 3):
                gradient = normal(LAYOUT.num_elements, 10 * step + group.rank)
                if bad and group.rank == 1:
                    gradient[-3] = float("inf")
                results.append(aggregator.aggregate(state, gradient.to(DEVICE)).cpu().clone())
            return results, state.notes, state.watch

        return run_in_process(3, work)

    def test_are_those_of_plain_torch(self, name, parameters):
        ours, theirs = (self.steps_of(name, parameters, kernels) for kernels in ("triton", "torch"))
        for step in range(3):
            assert all(torch.equal(results[step], ours[0][0][step]) for results, *_ in ours), "replicas"
            expected = theirs[0][0][step]
            size = expected.abs().max()
            near = torch.isclose(ours[0][0][step], expected, rtol=1e-5, atol=1e-5 * size.item())
            # A norm's rounding may lift one of QSGD's values to another level.
            assert near.float().mean() >= (0.999 if name == "qsgd" else 1)
        assert all(notes == [f"{name} in Triton's kernels"] for _, notes, _ in ours)

    def test_what_is_not_finite_is_an_error_on_all_ranks(self, name, parameters):
        for _, _, watch in self.steps_of(name, parameters, "triton", bad=True):
            with pytest.raises(NotFiniteError, match="in 'wide':"):
                watch.raise_if_marked()
