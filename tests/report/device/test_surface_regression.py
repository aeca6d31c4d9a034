"""Break-even points, what capturing pays, and the surface itself."""

import numpy as np
import pytest

from scaling.device_studies.surface_training import grid_points
from scaling.report.device import device_tables, figures
from scaling.report.device.fit import surface, total_s, trainings
from tests.report.device.conftest import sentences_of


def cell(seconds, points=100, device="cpu", step="eager", data="device", *, signs=(0,), extra=(), **facts):
    """A cell with a constant time, or with launches that are so many per mille apart from it."""
    launches = [[seconds * (1 + 0.001 * sign)] * 7 for sign in signs]
    how = {"device": device, "facts": {"samples": points, **facts}, "extra": extra}
    return {"launches": launches, **how, "points": points, "step": step, "data": data}


def trained(seconds, made=None, losses=(4.0, 0.01)):
    """Rows and facts of a complete training of ten epochs."""
    epochs = [1, *range(10 - 5 * (len(losses) - 2), 11, 5)]
    rows = [{"phase": "train", "seconds": seconds}, {"fact": "loss", "x": epochs, "y": [*losses]}]
    rows.append({"fact": "fit", "value": 3, "grid": [[0.0] * 3] * 3})
    if made is not None:
        rows.append({"phase": "capture", "seconds": made})
    return {"extra": rows, **{"epochs": 10, "rms_residual": 0.1, "largest_residual": 1.0, "rms_height": 1.9}}


@pytest.fixture
def results(results_of):
    settings = {"learning_rate": 0.08, "epochs": 10}
    return lambda *cells, **more: results_of("surface-regression", cells, **settings, **more)


def test_surface_is_that_of_the_experiment_and_seconds_of_a_training_include_capturing(results):
    _, heights = grid_points(13)
    np.testing.assert_allclose(surface(13).ravel(), heights.numpy().ravel(), atol=1e-5)
    made = results(cell(0.01, device="cuda", step="captured", **trained(1.0, made=0.5)))
    assert [*map(total_s, trainings(made).values())] == [pytest.approx(1.5)]


def capturing(eager, captured):
    """Seconds of an epoch by itself, and of a training, of both ways on the GPU."""
    made = cell(captured[0], device="cuda", step="captured", **trained(captured[1], made=2.0))
    return [cell(eager[0], device="cuda", **trained(eager[1])), made]


SAID = {
    "interpolated between the points around it": ([*(cell(0.001, 100), cell(0.004, 100, "cuda")),
     *(cell(0.016, 10_000), cell(0.004, 10_000, "cuda"))], ["eager from 1,000 on (seen in one launch)"]),
    "the answer names break-even points and trainings": ([*(cell(0.001, 100),
     cell(0.016, 10_000, **trained(20.0))), *(cell(0.004, 100, "cuda"),
     cell(0.004, 10_000, "cuda", **trained(8.0))), cell(0.0001, 100, "cuda", "captured"),
     cell(0.0001, 10_000, "cuda", "captured", **trained(0.5, made=1.5))],
     ["Is a GPU worth it for the surface, with a network of 171 parameters? Seen in one launch: a "
     "complete training takes 2.00 s on GPU captured", "eager from 1,000", "captured at every measured",
     "20.0 s on CPU eager, 8.00 s on GPU eager and 2.00 s on GPU captured (1.50 s of it",]),
    "launches that agree": ([cell(seconds, device=device, signs=(-1, 0, 1), **trained(10 * seconds))
     for device, seconds in (("cpu", 0.4), ("cuda", 0.1))],
     ["? Yes: a complete training takes 1.00 s on GPU eager"]),
    # 0.4 s less an epoch
    "capturing pays": (capturing((0.5, 5.0), (0.1, 1.0)),
     ["Capturing on the GPU takes 2.00 s once; it is paid for after 5 "]),
    "trainings contradict epochs by themselves": (capturing((0.1, 2.0), (0.2, 1.0)),
     ["whether it is ever paid for is open: an epoch by itself took 200 ms instead of 100 ms",
     "one of the complete training 100 ms instead of 200 ms"]),
    "capturing never pays": (capturing((0.1, 1.0), (0.1, 1.0)), ["is not paid for in this training"]),
    "one number of points": ([cell(0.001, 100), cell(0.004, 100, "cuda"), cell(0.004, 10_000, "cuda")],
     ["eager at no measured point (100 to 100)"]),
    "swing of the residual": ([cell(0.1, device="cuda", **trained(1.0, losses=(4.0, 0.01, 0.04)))],
     ["Over the last half of the epochs it moves between 0.100 and 0.200"]),
    "launches do not tell of the loader": ([cell(0.0100, signs=(-30, 0, 30)),
     cell(0.0101, data="loader", signs=(30, 0, -30))],
     ["with data on the device, 1.0 times (undecided) at 100 points"]),
}  # fmt: skip


@pytest.mark.parametrize(("cells", "texts"), SAID.values(), ids=SAID)
def test_it_is_said(results, cells, texts):
    told = " ".join(sentences_of(results(*cells)))
    assert ([text for text in texts if text not in told], "Yes" in told) == ([], "Yes" in texts[0])


def test_loader_is_compared_at_equal_points_and_epochs_to_pay_have_an_interval(results):
    told = sentences_of(results(cell(0.01), cell(0.05, data="loader"), cell(0.01, 400)))[0]
    assert ("with data on the device, 5.0 times at 100 points" in told, "400" in told) == (True, False)
    eager = cell(0.5, device="cuda", signs=(-10, 0, 10), **trained(5.0))
    captured = cell(0.1, device="cuda", step="captured", signs=(10, 0, -10), **trained(1.0, made=2.0))
    told = " ".join(sentences_of(results(eager, captured)))
    low, high = told.partition("is paid for after 5 epochs [")[2].partition("]")[0].split(", ")
    assert 4.4 < float(low) < 5 < float(high) < 5.6


def test_without_a_gpu_the_question_is_not_answered_and_tables_have_a_row_a_cell(results):
    made = results(cell(0.01, 100, **trained(3.0)), cell(0.02, 400), has_gpu=False)
    told = sentences_of(made)[-1]
    for text in ("That is not answered here", "no GPU", "A complete training takes 3.00 s on CPU eager"):
        assert text in told
    epochs, training = device_tables([made])
    assert [row[:4] for row in epochs.rows] == [["cpu", "eager", "device", size] for size in ("100", "400")]
    assert training.rows[0][3:8] == ["10", "–", "–", "3.00", "0.100"]  # noqa: RUF001


@pytest.mark.parametrize(
    ("parameters", "named"), [({"activation": "relu"}, "relu"), ({}, "tanh")], ids=["today", "before"]
)
def test_activation_of_a_fit_is_named(results, parameters, named):
    made = results(cell(0.01, 100, **trained(3.0)), has_gpu=False, **parameters)
    assert "a complete training, Adam 0.08" in device_tables([made])[1].title
    assert f"of the residual with {named} is 0.100" in " ".join(sentences_of(made))
    assert f"(CPU eager, {named}, 10 epochs)" in list(figures(made))[1].title


def test_picture_is_surface_fit_and_residual_of_the_fastest_training(results):
    epochs, fit = figures(results(cell(0.01, **trained(3.0)), cell(0.01, device="cuda", **trained(1.0))))
    assert "GPU eager" in fit.title
    truth, network, residual = (axes.images[0].get_array() for axes in fit.figure.axes[:3])
    np.testing.assert_allclose(residual, truth - network)
    np.testing.assert_allclose(truth, surface(3).T)
    assert len(epochs.figure.axes[0].get_lines()) > 0
