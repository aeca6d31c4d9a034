"""QSGD, top-k, and the random numbers of the device."""

import math

import pytest
import torch

from scaling.aggregators.qsgd import QsgdCodec
from scaling.aggregators.top_k import TopKCodec
from scaling.bucket import BucketLayout
from scaling.codecs.noise import Noise
from scaling.errors import StudyError

CPU = torch.device("cpu")
SIZE, NUM_CHUNKS, NUM_DRAWS = 128, 8, 600


@pytest.mark.parametrize("norm", ["two", "max"])
@pytest.mark.parametrize("bits", [2, 4, 8])
class TestPromise:
    def decoded(self, bits, norm):
        """[draws, chunks, elements], and the values."""
        codec = QsgdCodec(SIZE, bits, norm)
        values = torch.randn(NUM_CHUNKS, SIZE, generator=torch.Generator().manual_seed(0))
        valid = torch.full((NUM_CHUNKS, 1), float(SIZE))
        noise = Noise(values.numel(), 5, CPU)
        drawn = []
        for _ in range(NUM_DRAWS):
            heads, codes = codec.quantise(values, valid, noise.uniform().view(values.shape))
            drawn.append(codec.restore(heads, codes))
        return torch.stack(drawn).double(), values.double(), codec

    def test_mean_of_many_draws_is_the_value(self, bits, norm):
        drawn, values, codec = self.decoded(bits, norm)
        order = 2 if norm == "two" else float("inf")
        step = torch.linalg.vector_norm(values, order, dim=1, keepdim=True) / codec.num_levels
        up = torch.frac(values.abs() / step)
        deviation = step * (up * (1 - up) / NUM_DRAWS).sqrt()
        error = drawn.mean(0) - values
        # Rare levels are drawn so seldom that their mean is no normal number: hence the second term.
        assert bool((error.abs() < 5 * deviation + 0.01 * step).all())
        assert error.sum().abs() < 4 * deviation.square().sum().sqrt()
        assert (error * values.sign()).sum().abs() < 4 * deviation.square().sum().sqrt()

    def test_variance_is_below_the_papers_bound(self, bits, norm):
        drawn, values, codec = self.decoded(bits, norm)
        s = codec.num_levels
        bound = min(SIZE / s**2, math.sqrt(SIZE) / s) * values.square().sum(1)
        assert bool(((drawn - values).square().sum(2).mean(0) < 1.05 * bound).all())


@pytest.mark.parametrize("norm", ["two", "max"])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("value", [1.0, -1.0, 3e-5, -7e8])
def test_value_that_is_all_of_its_norm_stays_itself_whatever_is_drawn(bits, norm, value):
    """The largest level plus the largest number below 1 is rounded up in float32: no level is above it."""
    codec = QsgdCodec(SIZE, bits, norm)
    largest = 1 - 2**-24
    values, valid = torch.zeros(3, SIZE), torch.full((3, 1), float(SIZE))
    values[:, 5] = value
    noise = torch.tensor([0.0, 0.5, largest]).view(3, 1).expand(3, SIZE)
    heads, codes = codec.quantise(values, valid, noise)
    torch.testing.assert_close(codec.restore(heads, codes), values, rtol=1e-6, atol=0.0)


def encoded(values, density):
    codec = TopKCodec(density)
    wire = torch.zeros(2, codec.num_sent(values.numel()), dtype=torch.int32)
    return codec, wire, codec.encode(values, wire)


@pytest.mark.parametrize(
    ("n", "density", "sent"), [(100, 0.01, 1), (101, 0.01, 2), (1, 0.001, 1), (7, 1.0, 7)]
)
def test_k_is_rounded_up_and_eight_bytes_each(n, density, sent):
    codec, wire, _ = encoded(torch.randn(n), density)
    assert codec.num_sent(n) == sent
    assert codec.bucket_bytes(BucketLayout.of([("values", (n,))])) == wire.nbytes == 8 * sent


def test_decoded_are_the_largest_magnitudes_and_nothing_else_and_nan_is_sent_first():
    values = torch.tensor([0.1, -5.0, 3.0, 0.0, 4.0, -0.2, 1.0, 2.0])
    codec, wire, places = encoded(values, 3 / 8)
    total = torch.zeros(8)
    codec.add_decoded(wire, total)
    assert (total.tolist(), sorted(places.tolist())) == ([0, -5.0, 3.0, 0, 4.0, 0, 0, 0], [1, 2, 4])
    values[7] = float("nan")
    codec, wire, places = encoded(values, 0.1)
    assert (places.tolist(), codec.parts(wire)[0].isnan().all().item()) == ([7], True)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1])
def test_other_densities_are_an_error(density):
    with pytest.raises(StudyError, match="density: allowed is more than 0 and at most 1"):
        TopKCodec(density)


def test_numbers_are_uniform_and_below_one_and_one_elements_over_steps():
    drawn = torch.stack([Noise(50_000, 3, CPU).uniform(), Noise(50_000, 4, CPU).uniform()])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert (torch.histc(drawn, 10, 0, 1) / drawn.numel() - 0.1).abs().max() < 0.005
    noise = Noise(20, 3, CPU)
    over_steps = torch.stack([noise.uniform() for _ in range(4000)])
    assert (over_steps.mean(0) - 0.5).abs().max() < 0.03
    assert ((over_steps < 0.1).float().mean(0) - 0.1).abs().max() < 0.03


def test_steps_and_neighbours_do_not_go_together():
    noise = Noise(50_000, 3, CPU)
    steps = torch.stack([noise.uniform() for _ in range(8)])
    neighbours = torch.corrcoef(torch.stack([steps[0, 1:], steps[0, :-1]]))[0, 1]
    assert torch.corrcoef(steps).fill_diagonal_(0).abs().max() < 0.03
    assert neighbours.abs() < 0.03


def test_state_of_two_numbers_decides_what_comes_next():
    one, other, apart = (Noise(100, seed, CPU) for seed in (5, 5, 6))
    for _ in range(3):
        one.uniform()
    other.drawn.copy_(one.drawn)
    assert torch.equal(one.uniform(), other.uniform())
    assert not torch.equal(one.uniform(), apart.uniform())
