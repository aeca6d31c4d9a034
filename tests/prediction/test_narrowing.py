"""The measurement that narrows most is that of what is most uncertain."""

import pytest

from scaling.prediction.estimate import PredictedValue
from scaling.prediction.narrowing import next_measurement
from scaling.prediction.predict import Prediction
from tests.prediction.conftest import cell


def prediction(values, of_compute, of_exchange):
    iteration = PredictedValue(10.0, {"compute of net, eager": of_compute, "flow of native": of_exchange})
    return Prediction(values, "box", iteration, None, PredictedValue(4.0), PredictedValue(4.0))


def test_uncertain_exchange_asks_for_half_of_the_workers():
    found = next_measurement([prediction(cell(8, "all_reduce", peer_access=False), 0.1, 3.0)])
    assert (found.changes["world_size"], found.changes["global_batch"]) == (4, 4 * found.cell["local_batch"])
    assert "all_reduce of net" in found.text
    assert "on 4 workers without peer access" in found.text
    assert found.before > 0.5
    assert found.after == pytest.approx(0.084, abs=0.002)  # 4 s of exchange at 10%, and 0.1 s


def test_uncertain_computation_asks_for_one_worker_without_exchange():
    found = next_measurement([prediction(cell(8, "ring"), 3.0, 0.1)])
    assert "measure none of net" in found.text
    assert "on 1 worker:" in found.text


def test_one_measurement_that_serves_many_cells_wins():
    widest = prediction(cell(8, "all_reduce"), 0.1, 3.0)
    several = [prediction(cell(8, name, local_batch=64), 2.5, 0.1) for name in ("ring", "tree", "star")]
    found = next_measurement([widest, *several])
    assert found.num_cells == 3
    assert "and of 2 more" in found.text


def test_nothing_narrows_what_is_certain():
    assert next_measurement([prediction(cell(1, "none"), 0.0, 0.0)]) is None
