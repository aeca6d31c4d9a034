"""Three implementations of one LSTM: the same function, the same training; and the tasks."""

import pytest
import torch
from torch import nn

from scaling.device_studies import lstm_training
from scaling.device_studies.lstm_fused import NAMES, LstmFused
from scaling.device_studies.lstm_training import (
    LOSS_SCALE,
    PreciseTraining,
    SequenceClassifier,
    image_rows,
    temporal_order,
)
from tests.device_studies.conftest import CPU, SHORT, fact, measured, phases

SMALL = {"width": 8, "accuracy_width": 8, "length": 12, "real": "digits"}
SMALL |= {"train_samples": 256, "test_samples": 64}


def classifier(implementation, seed=3):
    torch.manual_seed(seed)
    return SequenceClassifier(implementation, 5, 8, 4).double()


@pytest.mark.parametrize("implementation", NAMES)
def test_all_compute_the_same_with_the_same_gradients_from_the_same_seed(implementation):
    sequence, found = torch.randn(6, 7, 5, dtype=torch.float64), []
    for one in (implementation, "fused"):
        network = classifier(one)
        output = network(sequence)
        output.square().sum().backward()
        found.append((output, [parameter.grad for parameter in network.parameters()]))
    (output, gradients), (expected, others) = found
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients, others, rtol=1e-10, atol=1e-12)
    assert not torch.allclose(classifier("fused", 4)(sequence), expected), "another seed"


class TestPrecision:
    def test_half_precision_updates_follow_those_of_float32_and_weights_stay_of_the_precision(self):
        inputs, targets = torch.randn(32, 5), torch.randint(3, (32,))
        weights = {}
        for precision in ("float32", "float16"):
            torch.manual_seed(1)
            training = PreciseTraining(nn.Linear(5, 3), precision, 0.01)
            for _ in range(5):
                training.step(inputs.to(next(training.network.parameters()).dtype), targets)
            weights[precision] = next(training.network.parameters()).detach().float()
        torch.testing.assert_close(weights["float16"], weights["float32"], rtol=0, atol=2e-3)
        for precision, dtype in (("float64", torch.float64), ("float16", torch.float16)):
            training = PreciseTraining(nn.Linear(2, 2), precision, 0.01)
            training.step(torch.ones(3, 2, dtype=dtype), torch.zeros(3, dtype=torch.int64))
            assert {parameter.dtype for parameter in training.network.parameters()} == {dtype}

    def test_gradients_too_small_for_float16_still_move_the_weights(self):
        network = nn.Linear(1, 2, bias=False)
        nn.init.zeros_(network.weight)
        training = PreciseTraining(network, "float16", 0.01)
        smallest = 2.0**-24
        # The gradient is half of the input: nothing in float16, unless it is scaled.
        training.step(torch.full((1, 1), smallest, dtype=torch.float16), torch.zeros(1, dtype=torch.int64))
        assert smallest / 2 * LOSS_SCALE > smallest
        assert network.weight.abs().max() > 0


class TestTasks:
    def test_class_of_a_sequence_is_told_by_its_two_marks_and_held_out_ones_are_others(self):
        task = temporal_order(16, 500, 100)
        for sequence, target in zip(task.train.inputs.argmax(2), task.train.targets, strict=True):
            marks = [(at, int(own) - 4) for at, own in enumerate(sequence) if own >= 4]
            (first, one), (second, other) = marks
            assert 2 * one + other == target
            assert 4 <= first < 8 <= second < 12, "apart, and neither first nor last"
        assert set(task.train.targets.tolist()) == {0, 1, 2, 3}
        task = temporal_order(24, 50, 50)
        train = {tuple(row.tolist()) for row in task.train.inputs.argmax(2)}
        assert not train & {tuple(row.tolist()) for row in task.test.inputs.argmax(2)}

    def test_image_is_read_row_by_row(self):
        task = image_rows("digits", 1, 20, 10)
        assert (task.train.inputs.shape, task.num_classes) == ((20, 8, 8), 10)
        halved = image_rows("digits", 2, 20, 10).train.inputs
        torch.testing.assert_close(halved[:, 0, 0], task.train.inputs[:, :2, :2].mean(dim=(1, 2)))


class TestPoints:
    def test_without_mnist_the_rows_say_digits(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SCALING_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert {point["task"] for point in LstmFused().points()} == {"temporal-order", "digits-rows"}

    def test_every_way_precision_and_batch_is_a_point_and_both_tasks_have_those_of_the_accuracy(self):
        points = LstmFused(real="mnist").points()
        assert (len(points), len({tuple(point.values()) for point in points})) == (9 * (2 + 3), len(points))
        assert {point["batch"] for point in points if point["width"] == 64} == {128, 1024, 4700}
        points = LstmFused(real="digits", batches=(16,), accuracy_batch=8, accuracy_width=4).points()
        trained = [p for p in points if (p["width"], p["batch"]) == (4, 8)]
        assert {p["task"] for p in trained} == {"temporal-order", "digits-rows"}
        assert {p["task"] for p in points if p not in trained} == {"digits-rows"}
        same = {"batches": (8,), "width": 4, "accuracy_batch": 8, "accuracy_width": 4}
        assert len(LstmFused(real="digits", **same).points()) == 9 * 2, "one speed is that of the accuracy"


class TestMeasure:
    point = {"task": "temporal-order", "implementation": "cell", "precision": "float32"}
    point |= {"width": 8, "batch": 16}

    def test_three_phases_and_the_accuracy_of_every_seed_at_its_batch_alone(self):
        rows = measured(LstmFused(**SMALL, accuracy_batch=16, steps=3, seeds=(1, 2)), self.point)
        assert phases(rows) == ["step", "evaluate", "predict"]
        scores = fact(rows, "accuracy_by_seed")
        assert (len(scores), fact(rows, "accuracy")) == (2, pytest.approx(sum(scores) / 2))
        other = measured(LstmFused(**SMALL, accuracy_batch=8, steps=3), self.point)
        assert (fact(other, "accuracy"), fact(rows, "samples"), fact(other, "samples")) == (None, 16, 16)

    def test_accuracy_does_not_depend_on_the_implementation_in_float64(self):
        experiment = LstmFused(**SMALL, accuracy_batch=16, steps=10, seeds=(1,), learning_rate=0.01)
        points = [{**self.point, "precision": "float64", "implementation": one} for one in NAMES]
        assert len({fact(measured(experiment, point), "accuracy") for point in points}) == 1

    def test_logits_of_float16_are_further_from_float64_than_those_of_float32(self):
        experiment = LstmFused(**SMALL, accuracy_batch=8)
        points = [{**self.point, "precision": precision} for precision in ("float16", "float32")]
        far, near = (fact(measured(experiment, one), "logit_difference") for one in points)
        assert 0 < near < 1e-6 < far < 1e-1

    def test_training_that_would_take_too_long_is_left_out_with_the_reason(self, monkeypatch):
        times = iter(float(second) for second in range(10**6))
        monkeypatch.setattr(lstm_training.time, "thread_time", lambda: next(times))
        experiment = LstmFused(**SMALL, accuracy_batch=16, steps=100, training_limit_s=10.0)
        rows = []
        for row in experiment.measure(self.point, CPU, SHORT):
            rows.append(row)
            if row.get("fact") == "accuracy_left_out":
                break
        reason = fact(rows, "accuracy_left_out")
        assert "3 trainings of 100 steps would take 100 s, more than training_limit_s: 10" in reason
        assert fact(rows, "accuracy") is None
