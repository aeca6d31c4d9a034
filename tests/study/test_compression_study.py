"""The shipped study of what compression does to the accuracy."""

import pytest

from scaling.study.cell import AvailableMachine
from scaling.study.overrides import load_study
from scaling.study.resolve import resolve

LOSSY = {
    "one_bit", "one_bit_flat", "power_sgd", "top_k", "ef_sign", "qsgd",
    "one_bit_flat(error_feedback=False)", "power_sgd(error_feedback=False)", "top_k(error_feedback=False)",
    "ef_sign(error_feedback=False)",
}  # fmt: skip


@pytest.mark.parametrize(("num_gpus", "sharing"), [(8, None), (4, None), (3, 2), (2, 2), (1, 4)])
def test_every_codec_trains_beside_the_exact_mean_at_one_rate(num_gpus, sharing):
    cells = resolve(load_study("compression", []), AvailableMachine(num_gpus, 8)).cells.values()
    by_label = {cell.aggregator_label: cell for cell in cells}
    assert set(by_label) == LOSSY | {"host_parallel"}
    assert {cell.aggregator_label for cell in cells if cell.lossy} == LOSSY
    assert {(cell.world_size, cell.workers_per_gpu) for cell in cells} == {(4, sharing)}
    assert len({(cell.learning_rate, cell.momentum, cell.epochs, cell.global_batch) for cell in cells}) == 1
    assert {(cell.kind, cell.model, cell.dataset) for cell in cells} == {("convergence", "fcn-r", "mnist")}


def test_density_is_one_in_a_hundred():
    cells = resolve(load_study("compression", []), AvailableMachine(4, 8)).cells.values()
    assert {c.aggregator_parameters["density"] for c in cells if c.aggregator == "top_k"} == {0.01}
