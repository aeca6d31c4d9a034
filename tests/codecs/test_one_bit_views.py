"""What a column of a gradient is: by the first axis, or as CNTK keeps its convolutions."""

import pytest
import torch

from scaling.codecs import one_bit
from scaling.codecs.one_bit import as_matrix, matrix_shape

SHAPES = [
    (),
    (7,),
    (0,),
    (40, 12),
    (0, 3),
    (3, 0),
    (2, 3, 4),
    (6, 4, 5, 3),
    (0, 4, 5, 3),
    (6, 4, 5, 0),
    (1, 1, 1, 1),
]


@pytest.mark.parametrize("view", ["torch", "cntk"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
class TestMatrix:
    def test_shape_is_that_of_the_matrix_and_nothing_is_lost(self, shape, view):
        tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
        matrix = as_matrix(tensor, view)
        assert tuple(matrix.shape) == matrix_shape(shape, view)
        assert sorted(matrix.flatten().tolist()) == tensor.flatten().tolist()

    def test_writing_to_the_matrix_writes_to_the_tensor(self, shape, view):
        tensor = torch.zeros(shape)
        as_matrix(tensor, view).fill_(3)
        assert tensor.eq(3).all()


class TestCntk:
    def test_columns_of_a_filter_are_its_rows_in_cntks_order(self):
        # torch's [K, C, H, W] is CNTK's W x H x C x K, whose first axes vary fastest.
        tensor = torch.arange(2 * 3 * 5 * 4.0).view(2, 3, 5, 4)
        matrix = as_matrix(tensor, "cntk")
        assert tuple(matrix.shape) == (4, 5 * 3 * 2)
        columns = iter(range(30))
        for k in range(2):
            for c in range(3):
                for h in range(5):
                    assert torch.equal(matrix[:, next(columns)], tensor[k, c, h])

    @pytest.mark.parametrize("shape", [(), (7,), (40, 12), (2, 3, 4)], ids=str)
    def test_all_others_are_as_before(self, shape):
        assert matrix_shape(shape, "cntk") == matrix_shape(shape, "torch")
        tensor = torch.randn(shape)
        assert torch.equal(as_matrix(tensor, "cntk"), as_matrix(tensor))

    @pytest.mark.parametrize("threshold", ["zero", "mean"])
    def test_what_is_decoded_has_the_mean_of_each_column(self, threshold):
        matrix = as_matrix(torch.randn(6, 4, 5, 3), "cntk")
        decoded = one_bit.decode(one_bit.encode(matrix, threshold), matrix.shape[0])
        assert decoded.shape == matrix.shape
        if threshold == "zero":
            assert torch.allclose(decoded.mean(0), matrix.mean(0), atol=1e-6)
