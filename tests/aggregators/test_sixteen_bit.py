"""16 bits on the wire; beside PyTorch's hooks in tests/training/test_codecs.py."""

import pytest
import torch

from scaling.aggregators.registry import create
from scaling.bucket import BucketLayout
from scaling.errors import NotFiniteError
from scaling.process_group import run_in_process

CPU = torch.device("cpu")
LAYOUT = BucketLayout.of([("first", (2000,)), ("second", (7, 11))])


def run(name, values):
    """Rank 0's result of [rank] values in all elements."""
    aggregator = create(name)

    def work(group):
        state = aggregator.start(LAYOUT, group, torch.float32, CPU)
        result = aggregator.aggregate(state, torch.full((LAYOUT.num_elements,), values[group.rank]))
        state.check()
        return result.clone()

    return run_in_process(len(values), work)[0]


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_mean_is_exact_where_sixteen_bits_hold_it(name):
    assert run(name, [1.0, 2.0, -4.0, 0.5]).unique().tolist() == [-0.125]


def test_division_comes_before_the_sum_so_large_values_do_not_overflow():
    assert run("fp16", [60000.0] * 4).unique().tolist() == [60000.0]


def test_overflow_is_an_error_and_no_silent_infinity():
    with pytest.raises(
        NotFiniteError, match=r"the mean gradient in fp16 is NaN or infinite.*'first', 'second'"
    ):
        run("fp16", [1e6, 1.0])
    assert run("bf16", [1e6, 0.0]).unique().item() == pytest.approx(5e5, rel=2**-8)
