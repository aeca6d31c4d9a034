"""1-bit quantisation, against its laws and against columns worked out by hand."""

import math

import pytest
import torch

from scaling.codecs.one_bit import Encoded, as_matrix, decode, encode, matrix_shape, pack, unpack

THRESHOLDS = ("zero", "mean")
ROWS = (1, 2, 31, 32, 33, 64, 100)


def wire_words(rows: int, columns: int) -> int:
    """32-bit words that an encoded matrix takes, by formula."""
    return columns * (2 + math.ceil(rows / 32))


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1)


def quantised(values: torch.Tensor, threshold: str) -> torch.Tensor:
    return decode(encode(values, threshold), values.shape[0])


@pytest.mark.parametrize("threshold", THRESHOLDS)
class TestLaws:
    @pytest.mark.parametrize("rows", ROWS)
    def test_every_element_is_the_level_of_its_own_bit(self, threshold, rows):
        values = normal(rows, 7)
        limit = 0 if threshold == "zero" else values.mean(0)
        assert torch.equal(unpack(encode(values, threshold).words, rows), values >= limit)

    @pytest.mark.parametrize("rows", [2, 33, 100])
    def test_columns_keep_their_mean(self, threshold, rows):
        # "zero": each class has its own mean. "mean": the classes stand for equal deviations, so as long as
        # they are of equal size the mean is kept, and otherwise what is lost is in the residual.
        values = normal(rows, 50)
        decoded = quantised(values, threshold)
        if threshold == "zero":
            assert torch.allclose(decoded.mean(0), values.mean(0), atol=1e-6)
        else:
            half = (values >= values.mean(0)).sum(0) * 2 == rows
            assert torch.allclose(decoded[:, half].mean(0), values[:, half].mean(0), atol=1e-6)

    def test_columns_do_not_know_of_one_another(self, threshold):
        values = normal(40, 6)
        together = quantised(values, threshold)
        apart = torch.cat([quantised(values[:, i : i + 1], threshold) for i in range(6)], dim=1)
        # Sums over a column may be taken in another order.
        assert torch.allclose(together, apart, rtol=1e-5)

    def test_scaling_by_a_power_of_two_scales_the_result_and_the_input_is_not_changed(self, threshold):
        values = normal(40, 6)
        assert torch.equal(quantised(8 * values, threshold), 8 * quantised(values, threshold))
        assert torch.equal(values, normal(40, 6))

    @pytest.mark.parametrize("rows", ROWS)
    def test_encoded_size_is_what_wire_words_says(self, threshold, rows):
        encoded = encode(normal(rows, 7), threshold)
        assert [part.dtype for part in encoded] == [torch.float32, torch.float32, torch.int32]
        assert sum(part.numel() for part in encoded) == wire_words(rows, 7)


class TestByHand:
    @pytest.mark.parametrize(("threshold", "values", "limits", "levels", "word"), [
        # m0 = -2, m1 = 2, the means of the negative and of the others: middle 0, half 4.
        ("zero", (-3, -1, 0, 2, 4), (-4, 4), (-2, -2, 2, 2, 2), 0b11100),
        # mu = 4, d = (3 + 2 + 1 + 6) / 4 = 3 to either side: m0 = 1, m1 = 7, middle 4, half 6.
        ("mean", (1, 2, 3, 10), (-2, 10), (1, 1, 1, 7), 0b1000),
        # Nought for a class that is empty; m0 = 0, m1 = 2: middle 1, half 2.
        ("zero", (1, 3), (-1, 3), (2, 2), 0b11),
        ("zero", (-1, -3), (-3, 1), (-2, -2), 0),
    ])  # fmt: skip
    def test_limits_levels_and_bits_are_those_of_the_threshold(self, threshold, values, limits, levels, word):
        encoded = encode(column(*values), threshold)
        assert (encoded.lower.item(), encoded.upper.item()) == limits
        assert torch.equal(decode(encoded, len(values)), column(*levels))
        assert encoded.words.tolist() == [[word]]

    @pytest.mark.parametrize("threshold", THRESHOLDS)
    def test_zeros_stay_zeros(self, threshold):
        encoded = encode(torch.zeros(40, 3), threshold)
        assert bool((encoded.lower == 0).all())
        assert bool((encoded.upper == 0).all())
        assert torch.equal(decode(encoded, 40), torch.zeros(40, 3))

    @pytest.mark.parametrize("threshold", THRESHOLDS)
    @pytest.mark.parametrize("value", [1.0, -1.0, 0.25, -3.0])
    @pytest.mark.parametrize("rows", [1, 4, 64])
    def test_constant_column_comes_back(self, threshold, value, rows):
        values = torch.full((rows, 2), value)
        assert torch.equal(quantised(values, threshold), values)

    @pytest.mark.parametrize("threshold", THRESHOLDS)
    def test_matrix_without_columns_has_no_words(self, threshold):
        encoded = encode(torch.empty(5, 0), threshold)
        assert [tuple(part.shape) for part in encoded] == [(0,), (0,), (1, 0)]
        assert decode(encoded, 5).shape == (5, 0)

    @pytest.mark.parametrize(("limits", "levels"), [((2.0, 6.0), (3.0, 5.0)), ((0.5, 0.5), (0.5, 0.5))])
    def test_levels_are_a_quarter_and_three_quarters_between_the_limits(self, limits, levels):
        encoded = Encoded(*torch.tensor(limits).view(2, 1), pack(torch.tensor([[False], [True]])))
        assert torch.equal(decode(encoded, 2), column(*levels))


class TestPacking:
    @pytest.mark.parametrize("rows", [*ROWS, 0, 63, 65, 1024])
    def test_unpack_gives_back_what_pack_took(self, rows):
        bits = normal(rows, 5) > 0
        words = pack(bits)
        assert (words.shape, words.dtype) == ((math.ceil(rows / 32), 5), torch.int32)
        assert torch.equal(unpack(words, rows), bits)

    def test_all_ones_are_minus_one_and_rows_beyond_the_end_are_nought(self):
        assert pack(torch.ones(64, 1, dtype=torch.bool)).tolist() == [[-1], [-1]]
        assert pack(torch.ones(3, 1, dtype=torch.bool)).tolist() == [[0b111]]

    @pytest.mark.parametrize("rows", [32, 33, 70, 96, 100])
    def test_word_holds_every_num_words_th_row(self, rows):
        num_words = math.ceil(rows / 32)
        for row in range(rows):
            bits = torch.zeros(rows, 1, dtype=torch.bool)
            bits[row] = True
            words = pack(bits).flatten().tolist()
            bit, word = divmod(row, num_words)
            expected = [0] * num_words
            expected[word] = 1 << bit if bit < 31 else -(2**31)
            assert words == expected


@pytest.mark.parametrize(("shape", "matrix"), [
    ((), (1, 1)), ((5,), (5, 1)), ((5, 3), (5, 3)), ((5, 3, 2), (5, 6)), ((0,), (0, 0)), ((5, 0), (5, 0)),
    ((0, 3), (0, 0)),
])  # fmt: skip
def test_first_axis_of_a_shape_is_the_rows_of_its_matrix(shape, matrix):
    assert (matrix_shape(shape), tuple(as_matrix(torch.empty(shape)).shape)) == (matrix, matrix)
