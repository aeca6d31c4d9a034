"""Break-even points, what capturing pays, and the surface itself."""

import numpy as np
import pytest

from scaling.device_studies.surface_training import grid_points
from scaling.report.device import device_tables, figures
from scaling.report.device.fit import surface, trainings
from tests.report.device.conftest import sentences_of


@pytest.fixture
def peaks(of):
    """A folder of `surface-regression`, and a function that adds a cell with a constant time."""

    def make(has_gpu: bool = True, **parameters):
        folder = of("surface-regression", has_gpu=has_gpu, learning_rate=0.08, epochs=10, **parameters)

        def add(seconds, points=100, device="cpu", step="eager", data="device", extra=(), **facts):
            folder.add(
                [[seconds] * 7],
                device=device,
                facts={"samples": points, **facts},
                extra=extra,
                points=points,
                step=step,
                data=data,
            )

        return folder, add

    return make


def trained(seconds, made=None, residual=0.1):
    """Rows and facts of a complete training."""
    rows = [{"phase": "train", "seconds": seconds}, {"fact": "loss", "x": [1, 10], "y": [4.0, 0.01]}]
    rows.append({"fact": "fit", "value": 3, "grid": [[0.0] * 3] * 3})
    if made is not None:
        rows.append({"phase": "capture", "seconds": made})
    facts = {"epochs": 10, "rms_residual": residual, "largest_residual": 1.0, "rms_height": 1.9}
    return {"extra": rows, **facts}


def test_surface_is_that_of_the_experiment():
    _, heights = grid_points(13)
    np.testing.assert_allclose(surface(13).ravel(), heights.numpy().ravel(), atol=1e-5)


class TestBreakEven:
    def test_is_interpolated_between_the_points_around_it(self, peaks):
        folder, add = peaks()
        for points, cpu, gpu in ((100, 0.001, 0.004), (10_000, 0.016, 0.004)):
            add(cpu, points)
            add(gpu, points, device="cuda")
        assert "eager from 1,000 on (seen in one launch)" in sentences_of(folder.results())[-1]

    def test_answer_names_it_and_the_trainings(self, peaks):
        folder, add = peaks()
        add(0.001, 100)
        add(0.016, 10_000, **trained(20.0))
        add(0.004, 100, device="cuda")
        add(0.004, 10_000, device="cuda", **trained(8.0))
        add(0.0001, 100, device="cuda", step="captured")
        add(0.0001, 10_000, device="cuda", step="captured", **trained(0.5, made=1.5))
        told = sentences_of(folder.results())
        assert told[-1].startswith("Is a GPU worth it for the surface, with a network of 171 parameters?")
        assert "eager from 1,000" in told[-1]
        assert "captured at every measured points" in told[-1] or "captured at every measured" in told[-1]
        assert "20.0 s on CPU eager, 8.00 s on GPU eager and 2.00 s on GPU captured (1.50 s of it" in told[-1]
        assert (
            "171 parameters? Seen in one launch: a complete training takes 2.00 s on GPU captured" in told[-1]
        )
        assert "Yes" not in told[-1]

    def test_launches_that_agree_say_yes(self, peaks):
        folder, _ = peaks()
        for device, seconds in (("cpu", 0.4), ("cuda", 0.1)):
            fit = trained(10 * seconds)
            extra = fit.pop("extra")
            launches = [[seconds * (1 + 0.001 * sign)] * 7 for sign in (-1, 0, 1)]
            point = {"device": device, "points": 100, "step": "eager", "data": "device"}
            folder.add(launches, facts={"samples": 100, **fit}, extra=extra, **point)
        assert "? Yes: a complete training takes 1.00 s on GPU eager" in sentences_of(folder.results())[-1]

    def test_capturing_pays_after_so_many_epochs(self, peaks):
        folder, add = peaks()
        add(0.5, device="cuda", **trained(5.0))
        add(0.1, device="cuda", step="captured", **trained(1.0, made=2.0))
        told = " ".join(sentences_of(folder.results()))
        # 0.4 s less an epoch
        assert "Capturing on the GPU takes 2.00 s once; it is paid for after 5 epochs" in told

    def test_epochs_to_pay_have_the_interval_of_several_launches(self, peaks):
        folder, _ = peaks()
        for step, seconds, made, signs in (
            ("eager", 0.5, None, (-1, 0, 1)),
            ("captured", 0.1, 2.0, (1, 0, -1)),
        ):
            fit = trained(10 * seconds, made=made)
            extra = fit.pop("extra")
            launches = [[seconds * (1 + 0.01 * sign)] * 7 for sign in signs]
            point = {"device": "cuda", "points": 100, "step": step, "data": "device"}
            folder.add(launches, facts={"samples": 100, **fit}, extra=extra, **point)
        told = " ".join(sentences_of(folder.results()))
        low, high = told.partition("is paid for after 5 epochs [")[2].partition("]")[0].split(", ")
        assert 4.4 < float(low) < 5 < float(high) < 5.6

    def test_training_that_contradicts_its_epochs_leaves_it_open(self, peaks):
        folder, add = peaks()
        add(0.1, device="cuda", **trained(2.0))
        add(0.2, device="cuda", step="captured", **trained(1.0, made=2.0))
        told = " ".join(sentences_of(folder.results()))
        assert "whether it is ever paid for is open: an epoch by itself took 200 ms instead of 100 ms" in told
        assert "one of the complete training 100 ms instead of 200 ms" in told

    def test_compiling_that_gains_nothing_is_never_paid_for(self, peaks):
        folder, add = peaks()
        add(0.1, device="cuda", **trained(1.0))
        add(0.1, device="cuda", step="captured", **trained(1.0, made=2.0))
        assert "is not paid for in this training" in " ".join(sentences_of(folder.results()))

    def test_one_number_of_points_answers_nothing(self, peaks):
        folder, add = peaks()
        add(0.001, 100)
        add(0.004, 100, device="cuda")
        add(0.004, 10_000, device="cuda")
        answer = sentences_of(folder.results())[-1]
        assert "eager at no measured point (100 to 100)" in answer

    def test_swing_of_the_residual_is_told(self, peaks):
        folder, add = peaks()
        fit = trained(1.0)
        fit["extra"][1] = {"fact": "loss", "x": [1, 5, 10], "y": [4.0, 0.01, 0.04]}
        add(0.1, device="cuda", **fit)
        told = " ".join(sentences_of(folder.results()))
        assert "Over the last half of the epochs it moves between 0.100 and 0.200" in told


class TestLoader:
    def test_what_launches_do_not_tell_is_undecided(self, peaks):
        folder, _ = peaks()
        for data, seconds, signs in (("device", 0.0100, (-1, 0, 1)), ("loader", 0.0101, (1, 0, -1))):
            launches = [[seconds * (1 + 0.03 * sign)] * 7 for sign in signs]
            folder.add(launches, device="cpu", points=100, step="eager", data=data)
        told = sentences_of(folder.results())[0]
        assert "with data on the device, 1.0 times (undecided) at 100 points" in told

    def test_is_compared_at_equal_points(self, peaks):
        folder, add = peaks()
        add(0.01, 100)
        add(0.05, 100, data="loader")
        add(0.01, 400)
        told = sentences_of(folder.results())[0]
        assert "with data on the device, 5.0 times at 100 points" in told
        assert "400" not in told


class TestWithoutGpu:
    def test_question_is_not_answered_and_that_is_said(self, peaks):
        folder, add = peaks(has_gpu=False)
        add(0.01, 100, **trained(3.0))
        told = sentences_of(folder.results())[-1]
        assert "That is not answered here" in told
        assert "no GPU" in told
        assert "A complete training takes 3.00 s on CPU eager" in told

    def test_tables_have_a_row_a_cell_and_a_training(self, peaks):
        folder, add = peaks(has_gpu=False)
        add(0.01, 100, **trained(3.0))
        add(0.02, 400)
        epochs, training = device_tables([folder.results()])
        assert [row[:4] for row in epochs.rows] == [
            ["cpu", "eager", "device", "100"],
            ["cpu", "eager", "device", "400"],
        ]
        assert training.rows[0][3:8] == ["10", "–", "–", "3.00", "0.100"]  # noqa: RUF001

    @pytest.mark.parametrize(
        ("parameters", "named"), [({"activation": "relu"}, "relu"), ({}, "tanh")], ids=["today", "before"]
    )
    def test_activation_of_a_fit_is_named(self, peaks, parameters, named):
        folder, add = peaks(has_gpu=False, **parameters)
        add(0.01, 100, **trained(3.0))
        results = folder.results()
        assert "a complete training, Adam 0.08" in device_tables([results])[1].title
        assert f"of the residual with {named} is 0.100" in " ".join(sentences_of(results))
        assert f"(CPU eager, {named}, 10 epochs)" in list(figures(results))[1].title


class TestFigures:
    def test_picture_is_surface_fit_and_residual_of_the_fastest_training(self, peaks):
        folder, add = peaks()
        add(0.01, 100, **trained(3.0))
        add(0.01, 100, device="cuda", **trained(1.0))
        epochs, fit = figures(folder.results())
        assert "GPU eager" in fit.title
        truth, network, residual = (axes.images[0].get_array() for axes in fit.figure.axes[:3])
        np.testing.assert_allclose(residual, truth - network)
        np.testing.assert_allclose(truth, surface(3).T)
        assert len(epochs.figure.axes[0].get_lines()) > 0

    def test_seconds_of_a_training_include_capturing(self, peaks):
        folder, add = peaks()
        add(0.01, device="cuda", step="captured", **trained(1.0, made=0.5))
        (one,) = trainings(folder.results())
        assert one.total_s == pytest.approx(1.5)
