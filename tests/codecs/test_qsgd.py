"""QSGD's promise: on average over its random numbers the decoded value is the value."""

import math

import pytest
import torch

from scaling.aggregators.qsgd import QsgdCodec
from scaling.codecs.noise import Noise

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
