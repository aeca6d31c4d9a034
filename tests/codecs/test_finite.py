"""The watch for NaN and infinity: the first step that has them is named by its tensors, once."""

import pytest
import torch

from scaling.bucket import BucketLayout
from scaling.codecs.finite import FiniteWatch
from scaling.errors import NotFiniteError

CPU = torch.device("cpu")
LAYOUT = BucketLayout.of([("first", (10,)), ("empty", (0, 3)), ("matrix", (5, 8)), ("last", (1,))])


def values_with(*places: int, value: float = float("nan")) -> torch.Tensor:
    values = torch.ones(LAYOUT.num_elements)
    values[list(places)] = value
    return values


def message_of(watch: FiniteWatch) -> str:
    with pytest.raises(NotFiniteError) as raised:
        watch.raise_if_marked()
    return str(raised.value)


def test_finite_values_and_none_at_all_raise_nothing():
    watch = FiniteWatch.of_chunks(LAYOUT, 8, CPU)
    watch.note_values(values_with())
    watch.note_values(values_with(0, value=1e38))
    watch.raise_if_marked()
    empty = FiniteWatch.of_chunks(BucketLayout.of([("empty", (0,))]), 8, CPU)
    empty.note_values(torch.empty(0))
    empty.raise_if_marked()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    ("place", "named"),
    [(0, "in 'first':"), (9, "in 'first', 'matrix':"), (20, "in 'matrix':"), (50, "in 'matrix', 'last':")],
)
def test_tensors_that_the_chunk_touches_are_named(place, named, value):
    watch = FiniteWatch.of_chunks(LAYOUT, 8, CPU)  # spans of 8 elements: 8 to 15 lie in both first and matrix
    watch.note_values(values_with(place, value=value))
    assert named in message_of(watch)


def test_span_a_tensor_names_exactly_that_one():
    watch = FiniteWatch.of_tensors(LAYOUT, CPU)
    watch.note(torch.tensor([1.0, 0.0, 1.0, float("inf")]))
    assert message_of(watch).startswith(
        "the gradient is NaN or infinite, or too large to be encoded, in 'last':"
    )


def test_places_are_watched_one_by_one():
    watch = FiniteWatch.of_chunks(LAYOUT, 8, CPU)
    watch.note_at(torch.tensor([3, 50], dtype=torch.int32), torch.tensor([1.0, 2.0]))
    watch.raise_if_marked()
    watch.note_at(torch.tensor([3, 20], dtype=torch.int32), torch.tensor([1.0, float("nan")]))
    assert "in 'matrix':" in message_of(watch)


def test_only_the_first_bad_step_is_named_and_only_once():
    watch = FiniteWatch.of_chunks(LAYOUT, 8, CPU)
    watch.note_values(values_with(0))
    watch.note_values(values_with(*range(51)))
    assert "in 'first':" in message_of(watch)
    watch.raise_if_marked()


def test_many_tensors_are_counted():
    watch = FiniteWatch.of_chunks(BucketLayout.of([(f"t{number}", (4,)) for number in range(9)]), 4, CPU)
    watch.note_values(torch.full((36,), float("nan")))
    assert "in 't0', 't1', 't2' and 6 more tensors:" in message_of(watch)
