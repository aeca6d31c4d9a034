"""PowerSGD's parts: which matrices, the same start, orthonormal columns."""

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs.power_sgd import PowerSgdCodec, orthonormalise_, starting_q
from scaling.errors import StudyError

SHAPES = [(40, 30), (40,), (12, 5, 3, 3), (40, 30), (2, 2), (), (0, 4), (30, 40)]


def test_matrices_of_one_shape_are_one_group_and_small_ones_none():
    groups = PowerSgdCodec(2, 2.0).groups(SHAPES)
    assert [(g.tensors, g.rows, g.columns, g.rank) for g in groups] == [
        ((0, 3), 40, 30, 2), ((2,), 12, 45, 2), ((7,), 30, 40, 2)
    ]  # fmt: skip


@pytest.mark.parametrize(("minimum", "compressed"), [(2.0, True), (8.5, True), (8.6, False)])
def test_minimum_compression_decides_strictly(minimum, compressed):
    # 40 x 30 = 1200 values; rank 2 sends 2 (40 + 30) = 140: 8.57 times fewer.
    assert bool(PowerSgdCodec(2, minimum).groups([(40, 30)])) == compressed


def test_bytes_of_the_two_messages():
    first, second = PowerSgdCodec(2, 2.0).message_bytes(
        BucketLayout.of([(str(i), s) for i, s in enumerate(SHAPES)])
    )
    as_they_are = 40 + 4 + 1
    assert first == 4 * (2 * (40 + 40 + 12 + 30) + as_they_are)
    assert second == 4 * 2 * (30 + 30 + 45 + 40)


def test_start_is_the_same_everywhere_and_the_seeds_own():
    groups = PowerSgdCodec(2, 2.0).groups(SHAPES)
    assert torch.equal(starting_q(groups, 0), starting_q(groups, 0))
    assert not torch.equal(starting_q(groups, 0), starting_q(groups, 1))
    assert starting_q([], 0).numel() == 0


@pytest.mark.parametrize("rank", [1, 2, 5])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_columns_become_orthonormal(rank, scale):
    matrices = scale * torch.randn(3, 20, rank, generator=torch.Generator().manual_seed(0))
    orthonormalise_(matrices)
    products = torch.bmm(matrices.transpose(1, 2), matrices)
    assert torch.allclose(products, torch.eye(rank).expand(3, rank, rank), atol=1e-5)


def test_zeros_stay_zeros_and_nan_stays_nan():
    matrices = torch.zeros(2, 4, 2)
    matrices[1, 0, 0] = float("nan")
    orthonormalise_(matrices)
    assert bool((matrices[0] == 0).all())
    assert bool(matrices[1, :, 0].isnan().all())


def test_approximation_size_below_one_is_an_error():
    with pytest.raises(StudyError, match="approximation_size: allowed is 1 or more, got 0"):
        PowerSgdCodec(0, 2.0)
