"""Views of PowerSGD: every matrix once, where it lies; all thin ones orthonormal as if each were alone."""

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs.power_sgd import (
    PowerSgdCodec,
    ThinMatrices,
    batches_of,
    matrix_views,
    orthonormalise_,
    spans_sent_whole,
    strided_batches,
)
from scaling.workloads.registry import build_module, create_model

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
    assert list(strided_batches(LAYOUT, squares)) == [(0, 3, start, 620), (3, 1, LAYOUT.offsets[10], 600)]


def test_every_matrix_is_seen_once_and_where_it_lies():
    flat = torch.arange(LAYOUT.num_elements, dtype=torch.float32)
    seen = [one for batch in matrix_views(flat, LAYOUT, groups()) for one in batch]
    expected = [LAYOUT.views(flat)[number] for group in groups() for number in group.tensors]
    assert len(seen) == 5
    assert all(torch.equal(one, other) for one, other in zip(seen, expected, strict=True))
    seen[-1].zero_()
    assert bool((LAYOUT.views(flat)[10] == 0).all())


def test_what_is_sent_whole_is_the_rest_and_neighbours_are_one_span():
    spans = spans_sent_whole(LAYOUT, groups())
    sizes = [stop - start for start, stop in spans]
    assert sizes == [6, 20, 20, 4, 4]
    assert sum(sizes) + sum(group.num_elements for group in groups()) == LAYOUT.num_elements


def test_nothing_to_compress_is_one_span():
    layout = BucketLayout.of([("a", (3,)), ("b", (2, 2))])
    assert spans_sent_whole(layout, []) == [(0, 7)]
    assert matrix_views(torch.zeros(7), layout, []) == []


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
    message = torch.arange(sum(one.q_elements for one in own), dtype=torch.float32)
    thin = ThinMatrices(message, [one.columns for one in own], own)
    batches = batches_of(thin.sent, LAYOUT, own)
    matrices = matrix_views(torch.zeros(LAYOUT.num_elements), LAYOUT, own)
    assert [one.shape for one in batches] == [(len(one), one.shape[2], 1) for one in matrices]
    assert torch.equal(torch.cat([one.flatten() for one in batches]), message)


def test_the_matrices_of_resnet_56_are_7_batches():
    """A step's launches go by these, on GPUs."""
    model = create_model("resnet-56")
    with torch.device("meta"):
        module = build_module(model, model.shape)
    layout = BucketLayout.of([(name, tuple(one.shape)) for name, one in module.named_parameters()])
    found = [
        batch
        for group in PowerSgdCodec(1, 2.0).groups(layout.shapes)
        for batch in strided_batches(layout, group)
    ]
    assert (sum(count for _, count, _, _ in found), len(found)) == (56, 7)
