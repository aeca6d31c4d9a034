"""1-bit quantisation, against its laws and against columns worked out by hand."""

import math

import pytest
import torch

from scaling.codecs.one_bit import Encoded, as_matrix, decode, encode, matrix_shape, pack, unpack
from tests.codecs.wire_words import wire_words

THRESHOLDS = ("zero", "mean")
ROWS = (1, 2, 31, 32, 33, 64, 100)


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32).view(-1, 1)


def quantised(values: torch.Tensor, threshold: str) -> torch.Tensor:
    return decode(encode(values, threshold), values.shape[0])


@pytest.mark.parametrize("threshold", THRESHOLDS)
class TestLaws:
    @pytest.mark.parametrize("rows", ROWS)
    def test_decoded_plus_residual_is_what_was_encoded(self, threshold, rows):
        values = normal(rows, 7)
        decoded = quantised(values, threshold)
        residual = values - decoded
        error = (decoded.double() + residual.double() - values.double()).abs()
        # The one rounding is that of the difference itself.
        assert bool((error <= torch.finfo(torch.float32).eps / 2 * residual.double().abs()).all())

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

    def test_input_is_not_changed(self, threshold):
        values = normal(40, 6)
        before = values.clone()
        encode(values, threshold)
        assert torch.equal(values, before)

    def test_scaling_by_a_power_of_two_scales_the_result(self, threshold):
        values = normal(40, 6)
        assert torch.equal(quantised(8 * values, threshold), 8 * quantised(values, threshold))

    @pytest.mark.parametrize("rows", ROWS)
    def test_encoded_size_is_what_wire_words_says(self, threshold, rows):
        encoded = encode(normal(rows, 7), threshold)
        assert [part.dtype for part in encoded] == [torch.float32, torch.float32, torch.int32]
        assert sum(part.numel() for part in encoded) == wire_words(rows, 7)


class TestByHand:
    def test_zero_takes_the_means_of_the_negative_and_of_the_others(self):
        values = column(-3, -1, 0, 2, 4)
        # m0 = -2, m1 = 2: middle 0, half 4.
        encoded = encode(values, "zero")
        assert (encoded.lower.item(), encoded.upper.item()) == (-4, 4)
        assert torch.equal(decode(encoded, 5), column(-2, -2, 2, 2, 2))
        assert encoded.words.tolist() == [[0b11100]]

    def test_mean_takes_the_mean_deviation_to_either_side(self):
        values = column(1, 2, 3, 10)
        # mu = 4, d = (3 + 2 + 1 + 6) / 4 = 3: m0 = 1, m1 = 7, middle 4, half 6.
        encoded = encode(values, "mean")
        assert (encoded.lower.item(), encoded.upper.item()) == (-2, 10)
        assert torch.equal(decode(encoded, 4), column(1, 1, 1, 7))
        assert encoded.words.tolist() == [[0b1000]]

    @pytest.mark.parametrize(("sign", "limits"), [(1, (-1, 3)), (-1, (-3, 1))])
    def test_zero_with_one_class_empty_takes_nought_for_it(self, sign, limits):
        # m0 = 0, m1 = 2: middle 1, half 2.
        encoded = encode(sign * column(1, 3), "zero")
        assert (encoded.lower.item(), encoded.upper.item()) == limits
        assert torch.equal(decode(encoded, 2), sign * column(2, 2))

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

    def test_limits_that_coincide_stand_for_themselves(self):
        one = torch.tensor([0.5])
        bits = pack(torch.tensor([[True], [False]]))
        assert torch.equal(decode(Encoded(one, one, bits), 2), column(0.5, 0.5))

    def test_levels_are_a_quarter_and_three_quarters_between_the_limits(self):
        encoded = Encoded(torch.tensor([2.0]), torch.tensor([6.0]), pack(torch.tensor([[False], [True]])))
        assert torch.equal(decode(encoded, 2), column(3, 5))


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


class TestShapes:
    @pytest.mark.parametrize(("shape", "matrix"), [
        ((), (1, 1)), ((5,), (5, 1)), ((5, 3), (5, 3)), ((5, 3, 2), (5, 6)), ((0,), (0, 0)), ((5, 0), (5, 0)),
        ((0, 3), (0, 0)),
    ])  # fmt: skip
    def test_first_axis_is_the_rows(self, shape, matrix):
        assert (matrix_shape(shape), tuple(as_matrix(torch.empty(shape)).shape)) == (matrix, matrix)

    def test_matrix_is_a_view(self):
        tensor = torch.zeros(4, 3, 2)
        as_matrix(tensor)[1, 4] = 7
        assert tensor[1, 2, 0] == 7

    @pytest.mark.parametrize(
        ("rows", "columns", "words"),
        [(1, 1, 3), (32, 1, 3), (33, 1, 4), (64, 10, 40), (2048, 784, 784 * 66), (0, 0, 0), (5, 0, 0)],
    )
    def test_column_takes_two_limits_and_a_bit_a_row(self, rows, columns, words):
        assert wire_words(rows, columns) == words
        assert 4 * wire_words(rows, columns) == columns * (8 + 4 * math.ceil(rows / 32))
