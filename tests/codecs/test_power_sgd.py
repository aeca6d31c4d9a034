"""PowerSGD's parts: which matrices, the same start, orthonormal columns."""

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs import power_sgd
from scaling.codecs.power_sgd import PowerSgdCodec, ThinMatrices, matrix_views, orthonormalise_, starting_q
from scaling.errors import StudyError
from tests.aggregators.conftest import layout_of

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
    layout = BucketLayout.of([(str(number), shape) for number, shape in enumerate(SHAPES)])
    first = 2 * (40 + 40 + 12 + 30) + 40 + 4 + 1  # and what is sent as it is
    assert PowerSgdCodec(2, 2.0).message_bytes(layout) == (4 * first, 4 * 2 * (30 + 30 + 45 + 40))


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


# Equal layers, one apart, and one layer that lies at another distance.
LAYOUT = BucketLayout.of([
    ("first", (6, 40)), ("bias", (6,)),
    ("a", (20, 30)), ("a bias", (20,)), ("b", (20, 30)), ("b bias", (20,)), ("c", (20, 30)),
    ("norm", (3,)), ("scale", ()), ("empty", (0, 5)), ("d", (20, 30)), ("last", (2, 2)),
])  # fmt: skip


def groups(rank=1):
    return PowerSgdCodec(rank, 2.0).groups(LAYOUT.shapes)


def test_equal_distances_make_one_batch():
    (_, squares) = groups()
    start = LAYOUT.offsets[2]
    assert list(power_sgd.strided_batches(LAYOUT, squares)) == [
        (0, 3, start, 620),
        (3, 1, LAYOUT.offsets[10], 600),
    ]


def test_every_matrix_is_seen_once_and_where_it_lies():
    flat = torch.arange(LAYOUT.num_elements, dtype=torch.float32)
    seen = [one for batch in matrix_views(flat, LAYOUT, groups()) for one in batch]
    expected = [LAYOUT.views(flat)[number] for group in groups() for number in group.tensors]
    assert len(seen) == 5
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    seen[-1].zero_()
    assert bool((LAYOUT.views(flat)[10] == 0).all())


def test_what_is_sent_whole_is_the_rest_and_neighbours_or_all_are_one_span():
    sizes = [stop - start for start, stop in power_sgd.spans_sent_whole(LAYOUT, groups())]
    assert sizes == [6, 20, 20, 4, 4]
    assert sum(sizes) + sum(group.num_elements for group in groups()) == LAYOUT.num_elements
    layout = BucketLayout.of([("a", (3,)), ("b", (2, 2))])
    assert (power_sgd.spans_sent_whole(layout, []), matrix_views(torch.zeros(7), layout, [])) == (
        [(0, 7)],
        [],
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_thin_matrices_are_orthonormal_as_if_each_were_alone(rank):
    own = groups(rank)
    message = torch.randn(sum(one.p_elements for one in own), generator=torch.Generator().manual_seed(0))
    thin = ThinMatrices(message, [one.rows for one in own], own)
    expected = [one.clone() for one in thin.sent]
    for one in expected:
        orthonormalise_(one)
    thin.orthonormalise()
    for one, other in zip(thin.orthonormal, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_batches_of_thin_matrices_are_those_of_the_matrices():
    own = groups()
    size = sum(len(one.tensors) * one.columns * one.rank for one in own)
    message = torch.arange(size, dtype=torch.float32)
    batches = power_sgd.batches_of(ThinMatrices(message, [one.columns for one in own], own).sent, LAYOUT, own)
    matrices = matrix_views(torch.zeros(LAYOUT.num_elements), LAYOUT, own)
    assert [one.shape for one in batches] == [(len(one), one.shape[2], 1) for one in matrices]
    assert torch.equal(torch.cat([one.flatten() for one in batches]), message)


def test_the_matrices_of_resnet_56_are_7_batches():
    """A step's launches go by these, on GPUs."""
    layout = layout_of("resnet-56")
    groups = PowerSgdCodec(1, 2.0).groups(layout.shapes)
    found = [batch for group in groups for batch in power_sgd.strided_batches(layout, group)]
    assert (sum(count for _, count, _, _ in found), len(found)) == (56, 7)
