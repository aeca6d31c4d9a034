"""The largest values and their places."""

import pytest
import torch

from scaling.aggregators.top_k import TopKCodec
from scaling.bucket import BucketLayout
from scaling.errors import StudyError


def encoded(values, density):
    codec = TopKCodec(density)
    wire = torch.zeros(2, codec.num_sent(values.numel()), dtype=torch.int32)
    return codec, wire, codec.encode(values, wire)


@pytest.mark.parametrize(
    ("num", "density", "sent"), [(100, 0.01, 1), (101, 0.01, 2), (1, 0.001, 1), (7, 1.0, 7)]
)
def test_k_is_rounded_up_and_eight_bytes_each(num, density, sent):
    codec, wire, _ = encoded(torch.randn(num), density)
    assert codec.num_sent(num) == sent
    assert codec.bucket_bytes(BucketLayout.of([("values", (num,))])) == wire.nbytes == 8 * sent


def test_decoded_are_the_largest_magnitudes_and_nothing_else():
    values = torch.tensor([0.1, -5.0, 3.0, 0.0, 4.0, -0.2, 1.0, 2.0])
    codec, wire, places = encoded(values, 3 / 8)
    total = torch.zeros(8)
    codec.add_decoded(wire, total)
    assert total.tolist() == [0, -5.0, 3.0, 0, 4.0, 0, 0, 0]
    assert sorted(places.tolist()) == [1, 2, 4]


def test_nan_is_sent_first():
    values = torch.arange(50.0)
    values[7] = float("nan")
    codec, wire, places = encoded(values, 0.01)
    assert places.tolist() == [7]
    assert bool(codec.parts(wire)[0].isnan().all())


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1])
def test_other_densities_are_an_error(density):
    with pytest.raises(StudyError, match="density: allowed is more than 0 and at most 1"):
        TopKCodec(density)
